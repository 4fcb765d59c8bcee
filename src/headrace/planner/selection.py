"""Select a placement, its batch shares and a flow policy by simulation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.core.job import Sync
from headrace.core.placement import Placement
from headrace.core.plan import Candidate, SeedMixName, Shortlist
from headrace.core.profile import Problem
from headrace.planner.cost.objective import Objective, evaluate
from headrace.planner.cost.seed_mix import Shares, seeds_of
from headrace.planner.cost.shares import best_shares
from headrace.planner.methods.by_speed import improved
from headrace.simulator.rehearser import Rehearser

NUM_PLACEMENTS = 4
"""Placements on the shortlist per seed mix."""

NUM_FINALISTS = 2
"""Placements simulated under every policy; the others only under the first."""

GOOD_ENOUGH_MARGIN = 0.01
"""Times within this relative distance of the objective are not improved, unless jobs are small."""

_SHORTLIST_MARGIN = 0.05
"""Largest relative distance to the smallest objective for a place on the shortlist."""

_MOST_IMPROVEMENT_WORK = 3_000_000
"""Largest edges x iterations x machines of all simulations that improve one placement."""

_SIMULATIONS_OF_SMALL_JOBS = 300
"""A job is small if so many simulations are within the limit of improvements."""

_SMALLEST_GAIN = 0.005
"""Smallest relative gain of a simulated makespan; smaller ones are random."""

_SMALLEST_GAIN_OF_MOVES = 1e-5
"""The same for moved tasks of small jobs: another placement costs nothing."""

_NUM_STARTS_OF_SMALL_JOBS = 3
"""Options whose tasks are moved if the job is small; otherwise only the best."""


@dataclass(frozen=True)
class Option:
    """A placement with a seed mix, batch shares and its objective."""

    placement: Placement
    mix: SeedMixName
    shares: Shares
    seeds: np.ndarray
    objective: Objective

    @property
    def key(self) -> tuple[Placement, SeedMixName, Shares]:
        """What distinguishes the option from others."""
        return self.placement, self.mix, self.shares


@dataclass(frozen=True)
class Selected:
    """An option and a policy; `shortlist` is None if nothing was simulated."""

    option: Option
    policy: str
    shortlist: Shortlist | None

    @property
    def makespan_s(self) -> float:
        """Smallest simulated makespan; infinite if nothing was simulated."""
        return np.inf if self.shortlist is None else self.shortlist.candidates[0].makespan_s


def option_of(
    problem: Problem, placement: Placement, mix: SeedMixName, shares: Shares = None
) -> Option:
    """An option with its seeds and its objective."""
    seeds = seeds_of(problem, placement, local_seeds=mix == "local-first", shares=shares)
    return Option(placement, mix, shares, seeds, evaluate(problem, placement, seeds))


def most_promising(options: list[Option]) -> list[Option]:
    """Options within the shortlist margin, smallest objective first.

    If these have unequal shares or only uniform seeds, the best option with equal shares or local
    seeds follows.
    """
    ranked = sorted(options, key=lambda option: option.objective.time_s)
    most_s = ranked[0].objective.time_s * (1 + _SHORTLIST_MARGIN)
    near = [option for option in ranked if option.objective.time_s <= most_s]
    kept = near[:NUM_PLACEMENTS]
    if all(option.mix == "uniform" for option in kept):
        kept += [option for option in near if option.mix == "local-first"][:1]
    if all(option.shares is not None for option in kept):
        kept.append(next(option for option in ranked if option.shares is None))
    return kept


def num_edges(problem: Problem) -> int:
    """Edges of the task graph of one iteration."""
    job = problem.job
    sync = 2 * job.trainers * job.num_servers
    if job.sync is Sync.RING:
        sync = 2 * (job.trainers - 1) * job.trainers
    swaps = len(job.swaps) * job.trainers * (job.trainers + 1)
    return (problem.cluster.num_machines + 1) * job.num_samplers + sync + swaps


class Selection:
    """Simulates options with equal random draws and improves the best ones.

    Args:
        problem: The machines, the job and its profile.
        policies: Flow policies to compare, the cheapest to simulate first.
        iterations: Iterations per simulation; 0 to select by the objective alone.
        seed: Random seed of the simulations.
        improves: Whether to move tasks where the simulation differs from the objective.
        may_share: Whether to compare batch shares by simulation.
    """

    def __init__(
        self,
        problem: Problem,
        policies: tuple[str, ...],
        iterations: int,
        seed: int,
        *,
        improves: bool,
        may_share: bool,
    ) -> None:
        self._problem, self._policies, self._iterations = problem, policies, iterations
        self._improves, self._may_share = improves, may_share
        work = iterations * num_edges(problem) * problem.cluster.num_machines
        self._most = _MOST_IMPROVEMENT_WORK // work if work else 0
        self.is_small = improves and self._most >= _SIMULATIONS_OF_SMALL_JOBS
        self._seed = seed

    @cached_property
    def _rehearser(self) -> Rehearser:
        return Rehearser(self._problem, num_iterations=self._iterations, seed=self._seed)

    def select(self, options: list[Option], published: list[Option]) -> Selected:
        """Simulate all options under the first policy and the best options under all policies.

        `published` are options that are simulated under all policies. The best options are
        improved: three if the job is small, else one.
        """
        is_alone = len(options) * len(self._policies) == 1 and not self.is_small
        if not self._iterations or is_alone:
            return Selected(options[0], self._policies[0], None)
        keys = {each.key for each in options}
        others = {each.key: each for each in published if each.key not in keys}
        simulated = _Simulated(self._rehearser, [*options, *others.values()])
        first, *further = self._policies
        ranked = sorted(range(len(options)), key=lambda number: simulated.run(number, first))
        for number in ranked[:NUM_FINALISTS]:
            for policy in further:
                if not self._is_enough(simulated.best_s, options[number]):
                    simulated.run(number, policy)
        for number in range(len(options), len(simulated.options)):
            for policy in self._policies:
                if self._may_win(simulated.options[number].objective, simulated.best_s):
                    simulated.run(number, policy)
        self._move_tasks(simulated)
        if self._may_share and self.is_small:
            self._share(simulated)
        # Ties: options of the method by their objective, then others; then the simpler policy.
        lines = sorted(
            simulated.makespans,
            key=lambda line: (
                simulated.makespans[line],
                line[0],
                self._policies.index(line[1]),
            ),
        )
        lines = simulated.with_local_seeds_first(lines)
        candidates = tuple(
            Candidate(
                placement=number,
                seed_mix=simulated.options[number].mix,
                policy=policy,
                makespan_s=simulated.makespans[number, policy],
            )
            for number, policy in lines
        )
        number, policy = lines[0]
        shortlist = Shortlist(iterations=self._iterations, candidates=candidates)
        return Selected(simulated.options[number], policy, shortlist)

    def _is_enough(self, makespan_s: float, option: Option) -> bool:
        if self.is_small:
            return False
        return makespan_s <= (1 + GOOD_ENOUGH_MARGIN) * self._iterations * option.objective.time_s

    def _may_win(self, objective: Objective, best_s: float) -> bool:
        """Whether a simulation can be faster: NICs and the longest task limit every schedule."""
        return self._iterations * max(objective.nic_s, objective.task_s) < best_s

    def _move_tasks(self, simulated: _Simulated) -> None:
        """Compare other placements where the objective is too small or assumes no overlap."""
        for number, policy in simulated.ranked()[
            : _NUM_STARTS_OF_SMALL_JOBS if self.is_small else 1
        ]:
            chosen = simulated.options[number]
            is_needed = (
                not self._is_enough(simulated.makespans[number, policy], chosen)
                or chosen.objective.limit == "latency"
            )
            if self._improves and is_needed:
                self._move_tasks_of(chosen, policy, simulated)

    def _move_tasks_of(self, chosen: Option, policy: str, simulated: _Simulated) -> None:
        is_local = chosen.mix == "local-first"

        def makespan_s(placement: Placement) -> float:
            seeds = seeds_of(self._problem, placement, local_seeds=is_local, shares=chosen.shares)
            if not self._may_win(evaluate(self._problem, placement, seeds), simulated.best_s):
                return np.inf
            return simulated.rehearser.makespan_s(placement, policy, seeds)

        gain = _SMALLEST_GAIN_OF_MOVES if self.is_small else _SMALLEST_GAIN
        better = improved(self._problem, chosen.placement, makespan_s, self._most, gain)
        if better == chosen.placement:
            return
        numbered, shares = better.numbered_by_ring(), None
        if chosen.shares is not None:
            shares = best_shares(self._problem, numbered, local_seeds=is_local)
        self._add(option_of(self._problem, numbered, chosen.mix, shares), policy, simulated)

    def _add(self, option: Option, policy: str, simulated: _Simulated) -> None:
        """Simulate an improved option, if the job is small under all policies."""
        simulated.options.append(option)
        for each in self._policies if self.is_small else (policy,):
            simulated.run(len(simulated.options) - 1, each)

    def _share(self, simulated: _Simulated) -> None:
        """Compare batch shares of the best placement by simulation."""
        number, policy = simulated.best
        chosen = simulated.options[number]
        is_local = chosen.mix == "local-first"

        def makespan_s(seeds: np.ndarray) -> float:
            return simulated.rehearser.makespan_s(chosen.placement, policy, seeds)

        shares = best_shares(
            self._problem,
            chosen.placement,
            local_seeds=is_local,
            measure=makespan_s,
            start=chosen.shares,
            smallest_gain=_SMALLEST_GAIN,
        )
        if shares != chosen.shares:
            option = option_of(self._problem, chosen.placement, chosen.mix, shares)
            self._add(option, policy, simulated)


class _Simulated:
    """Options and their simulated makespans by policy."""

    def __init__(self, rehearser: Rehearser, options: list[Option]) -> None:
        self.rehearser, self.options = rehearser, options
        self.makespans: dict[tuple[int, str], float] = {}

    def run(self, number: int, policy: str) -> float:
        option = self.options[number]
        found = self.rehearser.makespan_s(option.placement, policy, option.seeds)
        self.makespans[number, policy] = found
        return found

    @property
    def best(self) -> tuple[int, str]:
        return min(self.makespans, key=lambda line: self.makespans[line])

    def ranked(self) -> list[tuple[int, str]]:
        """Each option once, with its best policy, smallest makespan first."""
        found: dict[int, str] = {}
        for number, policy in sorted(self.makespans, key=lambda line: self.makespans[line]):
            found.setdefault(number, policy)
        return list(found.items())

    def with_local_seeds_first(self, lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
        """Ranked lines; one with local seeds is first if it is about as fast as the best.

        It moves fewer bytes, which counts if the network is slower than the cluster file says.
        """
        most_s = self.makespans[lines[0]] * (1 + _SMALLEST_GAIN)
        for line in lines:
            if self.makespans[line] <= most_s and self.options[line[0]].mix == "local-first":
                return [line, *(other for other in lines if other != line)]
        return lines

    @property
    def best_s(self) -> float:
        return min(self.makespans.values())
