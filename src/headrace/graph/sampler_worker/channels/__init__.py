"""How sub-batches get from a sampler to its trainer."""
