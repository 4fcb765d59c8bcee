"""What a placement costs."""
