"""Detection of drift between a run and its plan, without side effects."""
