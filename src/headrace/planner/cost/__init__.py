"""Cost models of placements."""
