"""Flow policies: rate allocation among open flows.

To add a policy, write a module with a compiled rule and a `FlowPolicy` and list it here; the
contract tests then run on it.
"""

from headrace.policies.flow._base import FLOW_DTYPE, Flow, FlowPolicy
from headrace.policies.flow.fair import FAIR
from headrace.policies.flow.fifo import FIFO
from headrace.policies.flow.matching import MATCHING
from headrace.policies.flow.maxmin import MAXMIN
from headrace.policies.flow.mrtf import MRTF, MRTF_EXCLUSIVE
from headrace.policies.flow.oes import OES
from headrace.policies.flow.omcoflow import OMCOFLOW
from headrace.policies.flow.paced import PACED
from headrace.policies.flow.priority import PRIORITY

FLOW_POLICIES: dict[str, FlowPolicy] = {
    policy.name: policy
    for policy in (OES, MAXMIN, PRIORITY, PACED, MATCHING, MRTF, MRTF_EXCLUSIVE, OMCOFLOW, FIFO)
}
"""All flow policies by name."""

__all__ = ["FAIR", "FLOW_DTYPE", "FLOW_POLICIES", "Flow", "FlowPolicy"]
