"""Task actors: each starts, monitors and stops one task process.

They import neither torch nor numpy, so that many of them start fast and stay small.
"""
