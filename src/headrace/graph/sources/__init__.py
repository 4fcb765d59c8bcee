"""Readers of input graphs; every module here creates a `GraphSource`.

All readers raise `SpecError` for missing or invalid input, and `MissingExtraError` if a required
package is not installed.
"""
