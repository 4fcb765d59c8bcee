"""The Ray cluster: nodes, placement groups, clocks, bandwidth."""
