"""How a partitioned graph lies in files."""
