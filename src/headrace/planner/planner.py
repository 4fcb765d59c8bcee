"""Build a plan: search placements, choose by simulation, predict, compute the lower bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from headrace.core.errors import SpecError
from headrace.core.job import Sync
from headrace.core.placement import Placement, PlacementFile
from headrace.core.plan import (
    Asked,
    Candidate,
    Fingerprints,
    Plan,
    Prediction,
    SeedMix,
    SeedMixName,
    Shortlist,
    Terms,
)
from headrace.core.profile import Problem, Profile
from headrace.planner.cost.objective import Objective, evaluate
from headrace.planner.cost.seed_mix import Shares, seeds_of
from headrace.planner.cost.shares import best_shares, share_bound_s, speeds_differ
from headrace.planner.cost.speed_classes import time_bound_s
from headrace.planner.cost.traffic_matrix import traffic_of
from headrace.planner.methods import PLACEMENT_METHODS, anneal, exact, place
from headrace.planner.methods.by_speed import Found, improved, search_by_speed, search_shares
from headrace.policies.flow import FLOW_POLICIES
from headrace.simulator import build_instance, simulate
from headrace.simulator.rehearser import Rehearser

AUTO = "auto"
"""Choose the policy or the seed mix by simulation."""

AUTO_POLICIES = ("maxmin", "oes", "priority", "paced")
"""Candidates of `auto`, cheapest to simulate first; the others are published baselines."""

SHORTLIST_ITERATIONS = 40
"""Simulated iterations per candidate."""

PREDICTED_ITERATIONS = 200
"""Most simulated iterations of a prediction."""

NUM_PLACEMENTS = 4
"""Placements on the shortlist per seed mix."""

NUM_FINALISTS = 2
"""Placements simulated under every policy; the others only under the first."""

_SHORTLIST_MARGIN = 0.05
"""Largest relative distance to the smallest objective for a place on the shortlist."""

_GOOD_ENOUGH_MARGIN = 0.01
"""Stop trying policies if a makespan is within this relative distance of the objective."""

_PACED_EDGES = 600
"""Most edges for which `auto` tries `paced`; its kernel scans every open flow at each event."""

_PRIORITY_MACHINES = 32
"""Most machines for which `auto` tries `priority`: measured with 64 machines and 320 samplers, it
takes 15 times as long as `maxmin` and gains 0.4 %."""

_SHORTLIST_WORK, _PREDICTION_WORK = 10_000_000, 100_000_000
"""Largest edges x iterations x machines of a simulation; `maxmin` takes about 50 ns per unit."""

_MOST_IMPROVEMENT_WORK = 3_000_000
"""Largest edges x iterations x machines of all simulations that improve a placement."""

_NUM_STARTS = 2
"""Placements for equal shares from which a search with shares starts."""

_SMALLEST_GAIN = 0.005
"""Smallest relative gain of a simulated makespan by a move; smaller ones are random."""

_FEWEST_ITERATIONS = 4
"""Shorter simulations only cover pipeline fill and are skipped."""

_PROVEN = 1e-9
"""Relative distance of objective and bound below which a plan is optimal."""

KeepSearching = Callable[[], bool]


@dataclass(frozen=True)
class _Option:
    """A placement with a seed mix, batch shares and its objective."""

    placement: Placement
    mix: SeedMixName
    shares: Shares
    seeds: np.ndarray
    objective: Objective


def make_plan(
    problem: Problem,
    *,
    method: str = "anneal",
    policy: str = AUTO,
    seed_mix: str = AUTO,
    shares: str = AUTO,
    seed: int = 0,
    steps: int | None = None,
    rounds: int = 1,
    keep_searching: KeepSearching | None = None,
    also: Sequence[Placement] = (),
    on_step: Callable[[str], None] = lambda name: None,
) -> Plan:
    """Choose the placement, the flow policy, the seed mix and the batch shares of a job.

    Placements of the method are ranked by the objective T. The best ones are simulated with equal
    random draws, and the winner is simulated for more iterations. Equal arguments give equal plans
    unless `keep_searching` depends on a clock.

    Args:
        problem: The machines, the job and its profile.
        method: Name of a placement method.
        policy: Name of a flow policy, or `auto`.
        seed_mix: `uniform`, `local-first` or `auto`.
        shares: `equal`, or `auto` to give slower trainers fewer seeds (`anneal` and `exact`).
        seed: Seed of the search and the simulations.
        steps: Steps per `anneal` search; depends on the job size by default.
        rounds: Number of `anneal` searches from different starts.
        keep_searching: Returns whether `anneal` runs another round after the last one.
        also: Additional placements to consider.
        on_step: Called with the name of each step before it begins.

    Raises:
        SpecError: The method, policy, seed mix or kind of shares does not exist.
        InfeasibleError: The job does not fit; the message names the missing resource.
        MissingExtraError: The method needs a package that is not installed.
    """
    policies = policies_to_try(policy, problem)
    mixes = _mixes(seed_mix, problem.profile)
    if method not in PLACEMENT_METHODS:
        raise SpecError(
            f"there is no placement method {method!r}",
            f"use one of {', '.join(sorted(PLACEMENT_METHODS))}",
        )
    if shares not in (AUTO, "equal"):
        raise SpecError(f"there are no shares {shares!r}", "use auto or equal")
    may_differ = shares == AUTO and method in ("anneal", "exact") and speeds_differ(problem)
    on_step(f"placing tasks with {method}")
    options: list[_Option] = []
    bounds: dict[SeedMixName, float] = {}
    num_rounds = 1
    for mix in mixes:
        search = _Search(problem, mix == "local-first", seed)
        found = search.run(method, steps, rounds, keep_searching)
        bounds[mix], num_rounds = found.bound_s, max(num_rounds, found.rounds)
        # Without simulations only the best placement is evaluated.
        most = None if _iterations(problem, SHORTLIST_ITERATIONS, _SHORTLIST_WORK) else 1
        placements = dict.fromkeys([*found.placements[:most], *also])
        for placement in dict.fromkeys(each.numbered_by_ring() for each in placements):
            options.append(_option(problem, placement, mix))
        best_s = min(option.objective.time_s for option in options if option.mix == mix)
        if may_differ and best_s > share_bound_s(problem) * (1 + _GOOD_ENOUGH_MARGIN):
            for placement, found_shares in search.shared([*also, *found.placements[:_NUM_STARTS]]):
                options.append(_option(problem, placement, mix, found_shares))
    on_step("choosing by simulation")
    choose = partial(_choose, problem, policies, seed, method == "anneal")
    chosen, chosen_policy, shortlist = choose(_most_promising(options))
    if chosen.shares is not None and shortlist is not None:
        # Moving tasks may have improved a placement with equal shares even more.
        equal = choose(_most_promising([each for each in options if each.shares is None]))
        if equal[2] is not None and _best_s(equal[2]) < _best_s(shortlist):
            chosen, chosen_policy, shortlist = equal
    on_step("predicting")
    predicted = predict(problem, chosen.placement, chosen.seeds, chosen_policy, seed)
    network_bytes, uniform_network_bytes = (
        traffic_of(problem, chosen.placement, seeds).network_bytes
        for seeds in (chosen.seeds, problem.uniform_seeds)
    )
    terms = terms_of(chosen.objective)
    bound_s = bounds[chosen.mix] if chosen.shares is None else share_bound_s(problem)
    bound_s = min(bound_s, terms.time_s)
    return Plan(
        method=method,
        policy=chosen_policy,
        placement=PlacementFile.of(chosen.placement, problem.cluster),
        seed_mix_name=chosen.mix,
        seed_mix=None if chosen.mix == "uniform" else SeedMix.of(chosen.seeds, problem.cluster),
        shares=None if chosen.shares is None else tuple(chosen.shares),
        seed=seed,
        rounds=num_rounds,
        asked=Asked.model_validate({"policy": policy, "seed_mix": seed_mix, "shares": shares}),
        predicted=predicted,
        terms=terms,
        bound_s=bound_s,
        gap=terms.time_s / bound_s - 1 if bound_s > 0 else 0.0,
        proven=terms.time_s <= bound_s * (1 + _PROVEN),
        network_bytes=network_bytes,
        uniform_network_bytes=uniform_network_bytes,
        shortlist=shortlist,
        fingerprints=Fingerprints.of(problem),
        **problem._asdict(),
    )


def predict(
    problem: Problem, placement: Placement, seeds: np.ndarray, policy: str, seed: int
) -> Prediction | None:
    """Simulate the chosen plan as `headrace.simulate` does; None if the job is too large."""
    iterations = _iterations(problem, PREDICTED_ITERATIONS, _PREDICTION_WORK)
    if iterations == 0:
        return None
    instance, _ = build_instance(
        problem, placement, seeds=seeds, num_iterations=iterations, seed=seed
    )
    makespan_s = simulate(instance, policy).makespan_s
    return Prediction(
        iterations=iterations,
        window=problem.job.window,
        seed=seed,
        makespan_s=makespan_s,
        iteration_time_s=makespan_s / iterations,
    )


def rehearsable_iterations(problem: Problem, most: int, work: int = _PREDICTION_WORK) -> int:
    """Iterations that can be simulated within the work limit, up to `most`; may be 0."""
    return min(most, work // (_num_edges(problem) * problem.cluster.num_machines))


def follows_locality(profile: Profile) -> bool:
    """Whether traffic depends on a seed's partition; runs with uniform seeds give equal rows."""
    return len(set(profile.store_traffic.matrix)) > 1 or profile.store_traffic.locality > 0


def policies_to_try(policy: str, problem: Problem) -> tuple[str, ...]:
    """The given policy, or the candidates of `auto` for this cluster and job."""
    if policy == AUTO:
        worth_trying = {
            "priority": problem.cluster.num_machines <= _PRIORITY_MACHINES,
            # In the paper's settings pacing is best only at K = 1, without overlap.
            "paced": problem.job.window == 1 and _num_edges(problem) <= _PACED_EDGES,
        }
        return tuple(name for name in AUTO_POLICIES if worth_trying.get(name, True))
    if policy not in FLOW_POLICIES:
        raise SpecError(
            f"there is no flow policy {policy!r}", f"use auto or one of {', '.join(FLOW_POLICIES)}"
        )
    return (policy,)


def _mixes(seed_mix: str, profile: Profile) -> tuple[SeedMixName, ...]:
    if seed_mix == AUTO:
        return ("uniform", "local-first") if follows_locality(profile) else ("uniform",)
    if seed_mix == "uniform":
        return ("uniform",)
    if seed_mix == "local-first":
        return ("local-first",)
    raise SpecError(f"there is no seed mix {seed_mix!r}", "use auto, uniform or local-first")


@dataclass(frozen=True)
class _Search:
    """Runs any placement method for one seed mix."""

    problem: Problem
    local_seeds: bool
    seed: int

    def run(
        self, method: str, steps: int | None, rounds: int, keep_searching: KeepSearching | None
    ) -> Found:
        search = self._exact
        if method == "anneal":
            search = partial(self._anneal, steps, rounds, keep_searching)
        elif method != "exact":
            bound_s = time_bound_s(self.problem, local_seeds=self.local_seeds)
            return Found([place(method, self.problem, self.seed)], bound_s)
        found = search_by_speed(self.problem, search, local_seeds=self.local_seeds)
        return replace(found, placements=found.placements[:NUM_PLACEMENTS])

    def shared(self, placements: Sequence[Placement]) -> list[tuple[Placement, Shares]]:
        """Placements with unequal batch shares, best first."""
        return search_shares(self.problem, placements, local_seeds=self.local_seeds)

    def _exact(self, problem: Problem) -> Found:
        # `exact` does not support local seeds with a measured matrix.
        local = self.local_seeds and not problem.profile.store_traffic.matrix
        certified = exact.solve(problem, local_seeds=local, seed=self.seed)
        return Found([certified.placement], certified.bound_s if local == self.local_seeds else 0.0)

    def _anneal(
        self,
        steps: int | None,
        rounds: int,
        keep_searching: KeepSearching | None,
        problem: Problem,
    ) -> Found:
        found: dict[Placement, float] = {}
        num_rounds = 0
        while num_rounds < rounds or (keep_searching is not None and keep_searching()):
            candidates, bound_s = anneal.shortlist(
                problem,
                seed=self.seed + 1_000_003 * num_rounds,
                steps=steps,
                local_seeds=self.local_seeds,
                most=NUM_PLACEMENTS,
            )
            found |= {each.placement: each.load_s for each in candidates}
            num_rounds += 1
            if min(found.values()) <= bound_s * (1 + _PROVEN):
                break
        ranked = sorted(found, key=lambda placement: found[placement])
        return Found(ranked[:NUM_PLACEMENTS], 0.0, num_rounds)


def _option(
    problem: Problem, placement: Placement, mix: SeedMixName, shares: Shares = None
) -> _Option:
    seeds = seeds_of(problem, placement, local_seeds=mix == "local-first", shares=shares)
    return _Option(placement, mix, shares, seeds, evaluate(problem, placement, seeds))


def _most_promising(options: list[_Option]) -> list[_Option]:
    """Options within the shortlist margin, smallest objective first.

    If these have unequal shares, the best option with equal ones is last.
    """
    ranked = sorted(options, key=lambda option: option.objective.time_s)
    most_s = ranked[0].objective.time_s * (1 + _SHORTLIST_MARGIN)
    kept = [option for option in ranked if option.objective.time_s <= most_s][:NUM_PLACEMENTS]
    if all(option.shares is not None for option in kept):
        kept.append(next(option for option in ranked if option.shares is None))
    return kept


def _choose(
    problem: Problem, policies: tuple[str, ...], seed: int, improves: bool, options: list[_Option]
) -> tuple[_Option, str, Shortlist | None]:
    """Simulate all options under the first policy and the best options under all policies.

    With `improves`, move tasks where the simulation differs from the objective.
    """
    iterations = _iterations(problem, SHORTLIST_ITERATIONS, _SHORTLIST_WORK)
    if iterations == 0 or len(options) * len(policies) == 1:
        return options[0], policies[0], None
    rehearser = Rehearser(problem, num_iterations=iterations, seed=seed)
    makespans: dict[tuple[int, str], float] = {}

    def simulate_option(number: int, policy: str) -> float:
        option = options[number]
        makespans[number, policy] = rehearser.makespan_s(option.placement, policy, option.seeds)
        return makespans[number, policy]

    first, *others = policies
    ranked = sorted(range(len(options)), key=lambda number: simulate_option(number, first))
    for number in ranked[:NUM_FINALISTS]:
        enough_s = (1 + _GOOD_ENOUGH_MARGIN) * iterations * options[number].objective.time_s
        for policy in others:
            if min(makespans.values()) > enough_s:
                simulate_option(number, policy)
    number, policy = min(makespans, key=lambda line: makespans[line])
    chosen = options[number]
    enough_s = (1 + _GOOD_ENOUGH_MARGIN) * iterations * chosen.objective.time_s
    if improves and (makespans[number, policy] > enough_s or chosen.objective.limit == "latency"):
        # The objective is too small, or assumes that no transfer overlaps with computing: compare
        # other placements by simulation.
        is_local = chosen.mix == "local-first"

        def makespan_s(placement: Placement) -> float:
            seeds = seeds_of(problem, placement, local_seeds=is_local, shares=chosen.shares)
            return rehearser.makespan_s(placement, policy, seeds)

        work = iterations * _num_edges(problem) * problem.cluster.num_machines
        most = _MOST_IMPROVEMENT_WORK // work
        better = improved(problem, chosen.placement, makespan_s, most, _SMALLEST_GAIN)
        if better != chosen.placement:
            numbered, shares = better.numbered_by_ring(), None
            if chosen.shares is not None:
                shares = best_shares(problem, numbered, local_seeds=is_local)
            options.append(_option(problem, numbered, chosen.mix, shares))
            simulate_option(len(options) - 1, policy)
    # Ties: smaller objective first, then the simpler policy.
    lines = sorted(makespans, key=lambda line: (makespans[line], line[0], policies.index(line[1])))
    number, policy = lines[0]
    candidates = tuple(
        Candidate(
            placement=line[0],
            seed_mix=options[line[0]].mix,
            policy=line[1],
            makespan_s=makespans[line],
        )
        for line in lines
    )
    return options[number], policy, Shortlist(iterations=iterations, candidates=candidates)


def _best_s(shortlist: Shortlist) -> float:
    return shortlist.candidates[0].makespan_s


def terms_of(objective: Objective) -> Terms:
    """The terms of a plan."""
    return Terms(
        nic_s=objective.nic_s,
        busiest_nic=objective.busiest_nic if objective.nic_s > 0 else "",
        cycle_s=objective.cycle_s,
        task_s=objective.task_s,
        latency_s=objective.latency_s,
        time_s=objective.time_s,
    )


def _num_edges(problem: Problem) -> int:
    job = problem.job
    sync = 2 * job.trainers * job.num_servers
    if job.sync is Sync.RING:
        sync = 2 * (job.trainers - 1) * job.trainers
    return (problem.cluster.num_machines + 1) * job.num_samplers + sync


def _iterations(problem: Problem, most: int, work: int) -> int:
    """Iterations to simulate, limited by job and work; 0 if too few."""
    wanted = problem.job.iterations
    iterations = min(wanted, rehearsable_iterations(problem, most, work))
    return iterations if iterations >= min(_FEWEST_ITERATIONS, wanted) else 0
