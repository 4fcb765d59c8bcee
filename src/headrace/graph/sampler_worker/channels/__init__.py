"""Channels from samplers to their trainer."""
