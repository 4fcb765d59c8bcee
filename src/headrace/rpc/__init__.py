"""Requests and answers between processes: who may ask, over which connection, with what limits."""
