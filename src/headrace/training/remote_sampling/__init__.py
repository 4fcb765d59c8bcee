"""Sampling of remote nodes and features by scores (DGS, "online explanation")."""
