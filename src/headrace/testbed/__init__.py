"""A testbed: several machines emulated on one."""

from __future__ import annotations

from headrace.testbed.layout import DEFAULT_NAME, Host
from headrace.testbed.network import LinkBytes
from headrace.testbed.testbed import Testbed, take_down

__all__ = ["DEFAULT_NAME", "Host", "LinkBytes", "Testbed", "take_down"]
