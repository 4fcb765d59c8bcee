"""Planning commands."""
