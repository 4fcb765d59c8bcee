"""The graph store service: one process per machine serves its part to samplers elsewhere."""
