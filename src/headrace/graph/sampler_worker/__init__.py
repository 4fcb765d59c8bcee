"""Sampler processes that prepare batches ahead of time for a trainer."""
