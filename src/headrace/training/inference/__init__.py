"""Rows of all nodes from all their neighbours, layer by layer: activations are on disk."""
