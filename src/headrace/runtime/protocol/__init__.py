"""Messages between trainers, task actors and the driver."""
