"""Discrete-event simulation of training jobs under any placement and flow policy."""

from headrace.simulator.coflows import build_coflow_instance
from headrace.simulator.instance import Instance, build_instance
from headrace.simulator.outcome import Outcome, Record
from headrace.simulator.rehearse import simulate, trace_of
from headrace.simulator.rehearser import Rehearser

__all__ = [
    "Instance",
    "Outcome",
    "Record",
    "Rehearser",
    "build_coflow_instance",
    "build_instance",
    "simulate",
    "trace_of",
]
