"""Several machines emulated on one, to try on it what needs a cluster."""

from __future__ import annotations

from headrace.testbed.layout import DEFAULT_NAME, Host
from headrace.testbed.network import LinkBytes
from headrace.testbed.testbed import Testbed, take_down

__all__ = ["DEFAULT_NAME", "Host", "LinkBytes", "Testbed", "take_down"]
