"""Code that runs in a trainer's process: loaders, checkpoints and the training context."""
