"""Folders of runs and their files."""
