"""Commands that plan."""
