"""headrace: plan, simulate and run distributed GNN training on an existing cluster.

    import headrace

    cluster = headrace.load_cluster("cluster.yaml")
    job = headrace.load_job("job.yaml")
    print(headrace.simulate(cluster, job).makespan_s)

Public names are imported lazily, on first use.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.core.views import provide

if TYPE_CHECKING:
    from headrace.api.coflows import simulate_coflows
    from headrace.api.documents.load import (
        load_cluster,
        load_coflows,
        load_job,
        load_placement,
        load_plan,
        load_profile,
        save_plan,
    )
    from headrace.api.documents.schema import json_schema
    from headrace.api.estimate import MemoryEstimate, estimate
    from headrace.api.graph import PartitionedGraph, open_graph, partition
    from headrace.api.inference import Inference, export, infer
    from headrace.api.plan import Explanation, PlanDiff, diff_plans, explain, plan
    from headrace.api.profile import load_trace, save_trace
    from headrace.api.report import RunReport, report_on
    from headrace.api.results.coflows import CoflowSimulation
    from headrace.api.results.simulation import Comparison, Simulation
    from headrace.api.simulate import compare, simulate
    from headrace.api.train import LinkNeighborLoader, NeighborLoader, TrainContext, train
    from headrace.core.cluster import Cluster, Machine
    from headrace.core.coflows import CoflowGraph
    from headrace.core.errors import (
        HeadraceError,
        InfeasibleError,
        MissingExtraError,
        SpecError,
    )
    from headrace.core.job import Job
    from headrace.core.placement import Placement
    from headrace.core.plan import Plan
    from headrace.core.profile import Profile
    from headrace.core.trace import Trace
    from headrace.planner.methods import PLACEMENT_METHODS
    from headrace.policies.flow import FLOW_POLICIES
    from headrace.profiling.default_profile import default_profile
    from headrace.runtime.trainer.report import report
    from headrace.training.remote_sampling.settings import RemoteSampling

__version__ = "0.1.0"

__all__ = [
    "FLOW_POLICIES",
    "PLACEMENT_METHODS",
    "Cluster",
    "CoflowGraph",
    "CoflowSimulation",
    "Comparison",
    "Explanation",
    "HeadraceError",
    "InfeasibleError",
    "Inference",
    "Job",
    "LinkNeighborLoader",
    "Machine",
    "MemoryEstimate",
    "MissingExtraError",
    "NeighborLoader",
    "PartitionedGraph",
    "Placement",
    "Plan",
    "PlanDiff",
    "Profile",
    "RemoteSampling",
    "RunReport",
    "Simulation",
    "SpecError",
    "Trace",
    "TrainContext",
    "__version__",
    "compare",
    "default_profile",
    "diff_plans",
    "estimate",
    "explain",
    "export",
    "infer",
    "json_schema",
    "load_cluster",
    "load_coflows",
    "load_job",
    "load_placement",
    "load_plan",
    "load_profile",
    "load_trace",
    "open_graph",
    "partition",
    "plan",
    "report",
    "report_on",
    "save_plan",
    "save_trace",
    "simulate",
    "simulate_coflows",
    "train",
]

_HOMES = {
    "api.coflows": ("simulate_coflows",),
    "api.documents.load": (
        "load_cluster",
        "load_coflows",
        "load_job",
        "load_placement",
        "load_plan",
        "load_profile",
        "save_plan",
    ),
    "api.documents.schema": ("json_schema",),
    "api.estimate": ("MemoryEstimate", "estimate"),
    "api.graph": ("PartitionedGraph", "open_graph", "partition"),
    "api.inference": ("Inference", "export", "infer"),
    "api.plan": ("Explanation", "PlanDiff", "diff_plans", "explain", "plan"),
    "api.profile": ("load_trace", "save_trace"),
    "api.report": ("RunReport", "report_on"),
    "api.results.coflows": ("CoflowSimulation",),
    "api.results.simulation": ("Comparison", "Simulation"),
    "api.simulate": ("compare", "simulate"),
    "api.train": ("LinkNeighborLoader", "NeighborLoader", "TrainContext", "train"),
    "core.cluster": ("Cluster", "Machine"),
    "core.coflows": ("CoflowGraph",),
    "core.errors": ("HeadraceError", "InfeasibleError", "MissingExtraError", "SpecError"),
    "core.job": ("Job",),
    "core.placement": ("Placement",),
    "core.plan": ("Plan",),
    "core.profile": ("Profile",),
    "core.trace": ("Trace",),
    "planner.methods": ("PLACEMENT_METHODS",),
    "policies.flow": ("FLOW_POLICIES",),
    "profiling.default_profile": ("default_profile",),
    "runtime.trainer.report": ("report",),
    "training.remote_sampling.settings": ("RemoteSampling",),
}
_HOME_OF = {name: f"headrace.{home}" for home, names in _HOMES.items() for name in names}


def _loaded_later(home: str, name: str) -> Callable[..., Any]:
    """Wrap a function so that its module is imported when it is called."""

    def call(*given: Any) -> Any:
        return getattr(import_module(f"headrace.{home}"), name)(*given)

    return call


# `core` must not import these modules, so its views are registered here.
provide(
    {
        "explain": _loaded_later("api.plan", "explain"),
        "gantt": _loaded_later("api.results.notebook", "gantt"),
        "html": _loaded_later("api.results.notebook", "html"),
    }
)

# Hidden from type checkers, which would otherwise accept every attribute name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'headrace' has no attribute {name!r}")
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
