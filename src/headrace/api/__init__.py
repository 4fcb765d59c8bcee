"""Implementation of the public API: loads files, calls the lower layers, returns values."""
