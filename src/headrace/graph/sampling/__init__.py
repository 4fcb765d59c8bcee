"""Neighbour sampling and feature gathering."""
