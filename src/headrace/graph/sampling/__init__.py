"""Neighbours of many nodes, hop by hop."""
