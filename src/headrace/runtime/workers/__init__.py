"""Actors around the processes of a run: each starts one, watches it and ends with it.

They import little, neither torch nor numpy, so that many of them start fast and stay small.
"""
