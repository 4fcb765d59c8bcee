"""Build a plan: search placements, choose by simulation, predict, compute the lower bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from headrace.core.errors import SpecError
from headrace.core.job import JobKind
from headrace.core.placement import Placement, PlacementFile
from headrace.core.plan import (
    Asked,
    Fingerprints,
    Plan,
    Prediction,
    SeedMix,
    SeedMixName,
    Terms,
)
from headrace.core.profile import Problem, Profile
from headrace.planner import full_graph
from headrace.planner.cost.objective import Objective, evaluate
from headrace.planner.cost.seed_mix import Shares
from headrace.planner.cost.shares import nics_differ, share_bound_s, speeds_differ
from headrace.planner.cost.speed_classes import time_bound_s
from headrace.planner.cost.traffic_matrix import traffic_of
from headrace.planner.methods import PLACEMENT_METHODS, anneal, exact, place
from headrace.planner.methods.by_speed import Found, search_by_speed, search_shares
from headrace.planner.parallelism import ways_of
from headrace.planner.selection import (
    GOOD_ENOUGH_MARGIN,
    NUM_PLACEMENTS,
    Option,
    Selection,
    most_promising,
    num_edges,
    option_of,
)
from headrace.policies.flow import FLOW_POLICIES
from headrace.simulator import build_instance, simulate

AUTO = "auto"
"""Choose the policy or the seed mix by simulation."""

AUTO_POLICIES = ("maxmin", "oes", "priority", "paced")
"""Candidates of `auto`, cheapest to simulate first; the others are published baselines."""

SHORTLIST_ITERATIONS = 40
"""Simulated iterations per candidate."""

PREDICTED_ITERATIONS = 200
"""Most simulated iterations of a prediction."""

_PACED_EDGES = 600
"""Most edges for which `auto` tries `paced`; its kernel scans every open flow at each event."""

_PRIORITY_MACHINES = 32
"""Most machines for which `auto` tries `priority`: measured with 64 machines and 320 samplers, it
takes 15 times as long as `maxmin` and gains 0.4 %."""

_SHORTLIST_WORK, _PREDICTION_WORK = 10_000_000, 100_000_000
"""Largest edges x iterations x machines of a simulation; `maxmin` takes about 50 ns per unit."""

_PUBLISHED = ("colocate", "ifs")
"""Fast published methods whose placements are simulated too if the job is small."""

_NUM_STARTS = 2
"""Placements for equal shares from which a search with shares starts."""

_FEWEST_ITERATIONS = 4
"""Shorter simulations only cover pipeline fill and are skipped."""

_PROVEN = 1e-9
"""Relative distance of objective and bound below which a plan is optimal."""

KeepSearching = Callable[[], bool]


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
    if problem.job.kind is JobKind.FULL_GRAPH:
        return _full_graph_plan(problem, policy, seed, on_step)
    policies = policies_to_try(policy, problem)
    mixes = _mixes(seed_mix, problem.profile)
    if method not in PLACEMENT_METHODS:
        raise SpecError(
            f"there is no placement method {method!r}",
            f"use one of {', '.join(sorted(PLACEMENT_METHODS))}",
        )
    if shares not in (AUTO, "equal"):
        raise SpecError(f"there are no shares {shares!r}", "use auto or equal")
    may_share = shares == AUTO and method in ("anneal", "exact")
    may_differ = may_share and speeds_differ(problem)
    selection = Selection(
        problem,
        policies,
        _iterations(problem, SHORTLIST_ITERATIONS, _SHORTLIST_WORK),
        seed,
        improves=method == "anneal",
        may_share=may_share and (may_differ or nics_differ(problem)),
    )
    on_step(f"placing tasks with {method}")
    options: list[Option] = []
    published: list[Option] = []
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
            options.append(option_of(problem, placement, mix))
        if selection.is_small:
            for name in _PUBLISHED:
                placement = place(name, problem, seed).numbered_by_ring()
                published.append(option_of(problem, placement, mix))
        best_s = min(option.objective.time_s for option in options if option.mix == mix)
        if may_differ and best_s > share_bound_s(problem) * (1 + GOOD_ENOUGH_MARGIN):
            for placement, found_shares in search.shared([*also, *found.placements[:_NUM_STARTS]]):
                options.append(option_of(problem, placement, mix, found_shares))
    on_step("choosing by simulation")
    selected = selection.select(most_promising(options), published)
    if selected.option.shares is not None and any(each.shares for each in options):
        # Moving tasks may have improved a placement with equal shares even more.
        equal = [each for each in options if each.shares is None]
        selected = min(
            selected,
            selection.select(most_promising(equal), published),
            key=lambda each: each.makespan_s,
        )
    chosen, chosen_policy, shortlist = selected.option, selected.policy, selected.shortlist
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


def _full_graph_plan(
    problem: Problem, policy: str, seed: int, on_step: Callable[[str], None]
) -> Plan:
    """Choose machines of parts and what layers divide by simulation; see `full_graph.shortlist`.

    Without a policy to use, the network is shared as TCP does.
    """
    chosen = policies_to_try(policy, problem)[0] if policy != AUTO else "maxmin"
    on_step("placing parts of the graph")
    ways = ways_of(problem, full_graph.least_s)
    found = [(way, parts) for way in ways for parts in full_graph.shortlist(way, NUM_PLACEMENTS)]
    on_step("predicting")
    options: list[tuple[Any, ...]] = []
    for way, parts in found:
        changed, placement = full_graph.placed(way, parts)
        objective = evaluate(changed, placement)
        predicted = predict(changed, placement, changed.uniform_seeds, chosen, seed)
        time_s = objective.time_s if predicted is None else predicted.iteration_time_s
        options.append((time_s, len(options), parts, changed, placement, objective, predicted))
    _, _, parts, changed, placement, objective, predicted = min(options)
    network_bytes = traffic_of(changed, placement, changed.uniform_seeds).network_bytes
    terms = terms_of(objective)
    bound_s = min(*map(full_graph.bound_s, ways), terms.time_s)
    return Plan(
        method=full_graph.METHOD,
        policy=chosen,
        placement=PlacementFile.of(placement, changed.cluster),
        seed=seed,
        asked=Asked.model_validate({"policy": policy}),
        predicted=predicted,
        terms=terms,
        bound_s=bound_s,
        gap=terms.time_s / bound_s - 1 if bound_s > 0 else 0.0,
        proven=terms.time_s <= bound_s * (1 + _PROVEN),
        network_bytes=network_bytes,
        uniform_network_bytes=network_bytes,
        fingerprints=Fingerprints.of(changed),
        parts=parts,
        **changed._asdict(),
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
    return min(most, work // (num_edges(problem) * problem.cluster.num_machines))


def follows_locality(profile: Profile) -> bool:
    """Whether traffic depends on a seed's partition."""
    return len(set(profile.store_traffic.matrix)) > 1 or profile.store_traffic.locality > 0


def policies_to_try(policy: str, problem: Problem) -> tuple[str, ...]:
    """The given policy, or the candidates of `auto` for this cluster and job."""
    if policy == AUTO:
        worth_trying = {
            "priority": problem.cluster.num_machines <= _PRIORITY_MACHINES,
            # In the paper's settings pacing is best only at K = 1, without overlap.
            "paced": problem.job.window == 1 and num_edges(problem) <= _PACED_EDGES,
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


def _iterations(problem: Problem, most: int, work: int) -> int:
    """Iterations to simulate, limited by job and work; 0 if too few."""
    wanted = problem.job.iterations
    iterations = min(wanted, rehearsable_iterations(problem, most, work))
    return iterations if iterations >= min(_FEWEST_ITERATIONS, wanted) else 0
