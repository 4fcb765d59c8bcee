"""Notebook cells (HTML) and their text equivalents."""

from headrace.observability.cells.frame import cell, facts, whole_page
from headrace.observability.cells.gantt import gantt_cell, stretch_of, text_gantt
from headrace.observability.cells.plans import explanation_cell, plan_cell
from headrace.observability.cells.rehearsals import comparison_cell, simulation_cell

__all__ = [
    "cell",
    "comparison_cell",
    "explanation_cell",
    "facts",
    "gantt_cell",
    "plan_cell",
    "simulation_cell",
    "stretch_of",
    "text_gantt",
    "whole_page",
]
