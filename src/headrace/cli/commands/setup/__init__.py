"""Commands that set up machines and graphs."""
