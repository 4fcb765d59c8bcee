"""How a run goes, from the first task to the last, decided without doing anything."""
