"""The Ray cluster: nodes, placement groups, clock offsets, bandwidth."""
