"""Exact full-graph training over the parts of a graph, with an unchanged PyG model."""
