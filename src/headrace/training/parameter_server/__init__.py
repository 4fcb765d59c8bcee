"""Parameter servers: each has an equal part of the model, which it changes for all trainers."""
