"""A trainer's process: the user's script and what it is given."""
