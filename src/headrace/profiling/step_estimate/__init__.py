"""Memory and work of a training step that is traced, not run."""
