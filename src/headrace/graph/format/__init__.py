"""On-disk format of a partitioned graph."""
