"""Which places of other machines can be reached from this one."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

TIMEOUT_S = 3.0
"""Long enough for two lost packets: TCP sends the first one again after 1 s and after 3 s."""

_AT_ONCE = 32


def unreachable(
    places: Mapping[str, tuple[str, int]], timeout_s: float = TIMEOUT_S
) -> dict[str, str]:
    """Connect to each place and hang up; why each of those that cannot be reached cannot.

    Whoever refuses is there: its machine answers, though nobody listens.

    Args:
        places: Host and port by name.
        timeout_s: How long each may take.
    """

    def why_not(place: tuple[str, int]) -> str:
        try:
            socket.create_connection(place, timeout_s).close()
        except ConnectionRefusedError:
            return ""
        except OSError as error:
            return "it does not answer" if isinstance(error, TimeoutError) else str(error.strerror)
        return ""

    if not places:
        return {}
    with ThreadPoolExecutor(min(len(places), _AT_ONCE)) as pool:
        found = dict(zip(places, pool.map(why_not, places.values()), strict=True))
    return {name: why for name, why in found.items() if why}
