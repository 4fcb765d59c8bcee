"""Emulation of several machines on one."""

from __future__ import annotations

from headrace.testbed import DEFAULT_NAME, Host, LinkBytes, Testbed, take_down

__all__ = ["DEFAULT_NAME", "Host", "LinkBytes", "Testbed", "take_down"]
