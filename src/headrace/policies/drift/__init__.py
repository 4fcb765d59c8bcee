"""Whether a run is still what its plan was made for, decided without doing anything."""
