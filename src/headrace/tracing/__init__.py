"""What tasks record of their work."""
