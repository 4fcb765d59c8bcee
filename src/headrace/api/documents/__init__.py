"""Cluster, job, profile and plan files."""
