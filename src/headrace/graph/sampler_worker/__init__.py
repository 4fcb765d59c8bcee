"""Batches made ahead of time by sampler processes, and handed to a trainer as it wants them."""
