"""Graph store service: one process per machine serves its graph partition to samplers."""
