"""What to do about a fault of a run, decided without doing anything."""
