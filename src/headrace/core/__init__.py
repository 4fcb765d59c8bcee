"""Frozen values: what is asked, measured, decided and seen."""
