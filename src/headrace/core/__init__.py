"""Immutable data models: cluster, job, profile, plan, trace and report."""
