"""headrace: plan, rehearse and run distributed GNN training on the cluster people have.

    import headrace

    cluster = headrace.load_cluster("cluster.yaml")
    job = headrace.load_job("job.yaml")
    print(headrace.simulate(cluster, job).makespan_s)

Every name below loads its module when it is first used, so that `import headrace` costs nothing.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.core.views import provide

if TYPE_CHECKING:
    from headrace.api.defaults import default_profile
    from headrace.api.files import (
        load_cluster,
        load_job,
        load_placement,
        load_plan,
        load_profile,
        save_plan,
    )
    from headrace.api.graph import PartitionedGraph, open_graph, partition
    from headrace.api.inference import Inference, export, infer
    from headrace.api.loading import LinkNeighborLoader, NeighborLoader
    from headrace.api.planning import Explanation, PlanDiff, diff_plans, explain, plan
    from headrace.api.rehearsed import Comparison, Simulation
    from headrace.api.reporting import RunReport, report_on
    from headrace.api.running import report
    from headrace.api.schema import json_schema
    from headrace.api.simulation import compare, simulate
    from headrace.api.tracing import load_trace, save_trace
    from headrace.api.training import TrainContext, train
    from headrace.core.cluster import Cluster, Machine
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
    from headrace.planner import PLACEMENT_METHODS
    from headrace.policies.flow import FLOW_POLICIES

__version__ = "0.1.0"

__all__ = [
    "FLOW_POLICIES",
    "PLACEMENT_METHODS",
    "Cluster",
    "Comparison",
    "Explanation",
    "HeadraceError",
    "InfeasibleError",
    "Inference",
    "Job",
    "LinkNeighborLoader",
    "Machine",
    "MissingExtraError",
    "NeighborLoader",
    "PartitionedGraph",
    "Placement",
    "Plan",
    "PlanDiff",
    "Profile",
    "RunReport",
    "Simulation",
    "SpecError",
    "Trace",
    "TrainContext",
    "__version__",
    "compare",
    "default_profile",
    "diff_plans",
    "explain",
    "export",
    "infer",
    "json_schema",
    "load_cluster",
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
    "train",
]

_HOMES = {
    "api.defaults": ("default_profile",),
    "api.files": (
        "load_cluster",
        "load_job",
        "load_placement",
        "load_plan",
        "load_profile",
        "save_plan",
    ),
    "api.graph": ("PartitionedGraph", "open_graph", "partition"),
    "api.inference": ("Inference", "export", "infer"),
    "api.loading": ("LinkNeighborLoader", "NeighborLoader"),
    "api.planning": ("Explanation", "PlanDiff", "diff_plans", "explain", "plan"),
    "api.rehearsed": ("Comparison", "Simulation"),
    "api.reporting": ("RunReport", "report_on"),
    "api.running": ("report",),
    "api.schema": ("json_schema",),
    "api.simulation": ("compare", "simulate"),
    "api.tracing": ("load_trace", "save_trace"),
    "api.training": ("TrainContext", "train"),
    "core.cluster": ("Cluster", "Machine"),
    "core.errors": ("HeadraceError", "InfeasibleError", "MissingExtraError", "SpecError"),
    "core.job": ("Job",),
    "core.placement": ("Placement",),
    "core.plan": ("Plan",),
    "core.profile": ("Profile",),
    "core.trace": ("Trace",),
    "planner": ("PLACEMENT_METHODS",),
    "policies.flow": ("FLOW_POLICIES",),
}
_HOME_OF = {name: f"headrace.{home}" for home, names in _HOMES.items() for name in names}


def _loaded_later(home: str, name: str) -> Callable[..., Any]:
    """A function that loads another one's module when it is called."""

    def call(*given: Any) -> Any:
        return getattr(import_module(f"headrace.{home}"), name)(*given)

    return call


# What plans and traces can be asked for, and only floors above theirs can answer.
provide(
    {
        "explain": _loaded_later("api.planning", "explain"),
        "gantt": _loaded_later("api.views", "gantt"),
        "html": _loaded_later("api.views", "html"),
    }
)

# Hidden from type checkers, which would otherwise believe that every attribute exists.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'headrace' has no attribute {name!r}")
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
