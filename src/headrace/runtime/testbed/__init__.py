"""Several machines emulated on one, to try on it what needs a cluster."""

from __future__ import annotations

from headrace.runtime.testbed.bed import Testbed, take_down
from headrace.runtime.testbed.layout import DEFAULT_NAME, Host
from headrace.runtime.testbed.network import LinkBytes

__all__ = ["DEFAULT_NAME", "Host", "LinkBytes", "Testbed", "take_down"]
