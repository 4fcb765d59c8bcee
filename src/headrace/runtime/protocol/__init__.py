"""What trainers, actors and the driver tell each other."""
