"""Accept connections although the process or the system has no file descriptor left."""

from __future__ import annotations

import errno
import socket
import threading

_TEMPORARY = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.ECONNABORTED,
        errno.EPROTO,
        errno.EINTR,
    }
)
_RETRY_S = 0.05


def accept(listener: socket.socket) -> socket.socket:
    """Accept the next connection; waits while descriptors or memory are exhausted.

    Raises:
        OSError: The listener was shut down.
    """
    while True:
        try:
            return listener.accept()[0]
        except OSError as error:
            if error.errno not in _TEMPORARY:
                raise
            threading.Event().wait(_RETRY_S)
