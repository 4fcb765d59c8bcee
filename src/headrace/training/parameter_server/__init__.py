"""Parameter servers: each holds an equal shard of the model and updates it for all trainers."""
