"""Commands that train and run inference."""
