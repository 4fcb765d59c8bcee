"""Commands that run."""
