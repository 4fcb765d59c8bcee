"""Fork servers of all emulated machines, which share the imports of one process.

`python -m headrace.testbed.warm_servers PRELOAD TESTBED PADDING` imports the modules of a kind of
task, then forks a server for every machine. Time and memory of the imports are shared.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.prefork import server as fork_server
from headrace.prefork.client import socket_path
from headrace.prefork.identity import identity_of
from headrace.testbed import nsenter, state_file
from headrace.testbed.layout import Host, HostLayout, Process
from headrace.testbed.machines import tmp_folder, variables_of


@dataclass(frozen=True)
class Server:
    """A fork server of one machine, before it is forked; `init` is the machine's first process."""

    cgroup: Path | None
    init: Process
    place: fork_server.Place
    identity: Mapping[str, Any]
    environment: Mapping[str, str]


def main(arguments: Sequence[str]) -> int:
    """Import, then serve on every machine; forked tasks run inside this call, too."""
    preload, name, _ = arguments
    layout = state_file.read(name)
    if layout is None:
        return 1
    # `testbed down` finds this process by its network namespace.
    first = layout.hosts[0]
    assert first.init is not None
    nsenter.enter(first.init.pid, first.init.start_ticks, ("net",))
    servers = [made for host in layout.hosts if (made := _listen(layout, host, preload))]
    fork_server.show_as(preload)
    fork_server.import_all(preload, kernels=True)
    for server in servers:
        pid = os.fork()
        if pid == 0:
            return _serve(server, [each for each in servers if each is not server])
        os.waitpid(pid, 0)
    return 0


def _listen(layout: HostLayout, host: Host, preload: str) -> Server | None:
    assert host.init is not None
    changed = {**os.environ, **variables_of(layout, host)}
    environment = {name: value for name, value in changed.items() if value is not None}
    identity = identity_of(environment, host.init.pid)
    place = fork_server.listen(socket_path(preload, identity, tmp_folder(host)))
    if place is None:
        return None
    return Server(host.cgroup, host.init, place, identity, environment)


def _serve(server: Server, others: Sequence[Server]) -> int:
    for other in others:
        other.place.close()
    if server.cgroup is not None:
        (server.cgroup / "cgroup.procs").write_text(str(os.getpid()))
    nsenter.enter(server.init.pid, server.init.start_ticks)
    if os.fork():
        # Only a child has a process ID on the machine.
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.environ.clear()
    os.environ.update(server.environment)
    return fork_server.serve(server.place, server.identity, None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
