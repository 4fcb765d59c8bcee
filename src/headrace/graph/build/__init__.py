"""From tables to a partitioned graph."""
