"""Listeners for a crowd, and a client that asks them, as processes on emulated machines.

    python -m tests.support.crowd_listeners FOLDER HOST HANDSHAKE_S    # traffic and bandwidth
    python -m tests.support.crowd_listeners FOLDER                     # the client

Both read lines and answer each with a line of JSON.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import time
from pathlib import Path
from typing import Any

from headrace.rpc.client import RpcChannel
from headrace.rpc.config import TaskAddress
from headrace.rpc.credentials import Credentials
from headrace.runtime.cluster import bandwidth_probe
from headrace.runtime.cluster.bandwidth_probe import Receiver
from headrace.runtime.traffic import coordinator
from headrace.runtime.traffic.coordinator import TrafficControl
from headrace.runtime.traffic.messages import Line, register
from tests.support.shaped_plan import make_plan

RPC_KINDS = ("store", "sampler", "parameter server")
_PAUSE_S = 0.01


def listen(folder: Path, host: str, handshake_s: float) -> None:
    """Listen as a driver and a probe do; a line is answered with how many senders were heard."""
    coordinator._REGISTER_TIMEOUT_S = bandwidth_probe._TIMEOUT_S = handshake_s
    control = TrafficControl(make_plan(), lambda _: None)
    control._warm_up.join()
    port = control.begin(host)
    token = secrets.token_hex(bandwidth_probe.TOKEN_BYTES // 2).encode()
    (folder / "traffic").write_text(control._token)
    (folder / "bandwidth").write_bytes(token)
    receiver = Receiver(host, token, 10**6, 1.0)
    print(json.dumps({"traffic": port, "bandwidth": receiver.port}), flush=True)
    for _ in sys.stdin:
        print(len(receiver._begins), flush=True)
    receiver.close()
    control.close()


def ask(folder: Path, kind: str, host: str, port: int, length_s: float) -> dict[str, Any]:
    """Connect, ask and disconnect, again and again."""
    took_s: list[float] = []
    failed: list[str] = []
    end_s = time.monotonic() + length_s
    while time.monotonic() < end_s:
        began_s = time.monotonic()
        try:
            ask_once(folder, kind, host, port)
            took_s.append(time.monotonic() - began_s)
        except Exception as error:
            failed.append(repr(error))
        time.sleep(_PAUSE_S)
    return {"took_s": took_s, "failed": failed}


def ask_once(folder: Path, kind: str, host: str, port: int) -> None:
    """One request of a peer of the run."""
    if kind in RPC_KINDS:
        address = TaskAddress(task=kind, machine="m0", host=host, port=port)
        channel = RpcChannel(address, Credentials.load(folder / "client"), 30.0)
        channel.ask({"op": "ping"}, (), 30.0).result()
        channel.close()
        return
    with socket.create_connection((host, port), 30) as sock:
        if kind == "traffic":
            # Under a name that no agent has.
            register(Line(sock), (folder / kind).read_text().encode(), secrets.token_hex(8))
            return
        sock.sendall((folder / kind).read_bytes())
        sock.shutdown(socket.SHUT_WR)
        # It hears a sender until the end and closes then, without a byte.
        if sock.recv(1):
            raise OSError("a probe has answered")


def main() -> None:
    """Run the listeners or the client."""
    folder, *words = sys.argv[1:]
    if words:
        listen(Path(folder), words[0], float(words[1]))
        return
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(ask(Path(folder), *json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
