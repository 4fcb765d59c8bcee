"""Real TCP flows between machines of a testbed, and how fast they are."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from headrace.testbed import Testbed

_RECEIVE = """
import json, socket, sys, threading, time
num_flows, warm_s, measure_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
receiver = socket.create_server(("", 20000), backlog=num_flows)
print("ready", flush=True)
links = [receiver.accept()[0] for _ in range(num_flows)]
begin_s = time.monotonic() + warm_s
rates = [0.0] * num_flows

def receive(i):
    buffer, received, first_s, last_s = bytearray(1 << 18), 0, None, None
    while last_s is None or last_s < begin_s + measure_s:
        num_bytes = links[i].recv_into(buffer)
        last_s = time.monotonic()
        if first_s is not None:
            received += num_bytes
        elif last_s > begin_s:
            first_s = last_s
    rates[i] = received / (last_s - first_s)

threads = [threading.Thread(target=receive, args=(i,)) for i in range(num_flows)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(rates))
"""

_SEND = """
import socket, sys
link, block = socket.create_connection((sys.argv[1], 20000)), bytes(1 << 18)
try:
    while True:
        link.sendall(block)
except OSError:
    pass
"""


def measure(
    bed: Testbed, senders: Sequence[str], receiver: str, measure_s: float = 2.0
) -> list[float]:
    """Payload bytes per second of flows that run at the same time, one per sender."""
    figures = [str(len(senders)), "0.5", str(measure_s)]
    # First in line for a core: who waits for one sends nothing.
    python = ["nice", "-n", "-20", sys.executable, "-I", "-S", "-c"]
    with ExitStack() as stack:
        counter = stack.enter_context(
            subprocess.Popen(
                bed.command(receiver, [*python, _RECEIVE, *figures]),
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert counter.stdout is not None
        assert counter.stdout.readline() == "ready\n"
        for sender in senders:
            command = bed.command(sender, [*python, _SEND, receiver])
            stack.enter_context(subprocess.Popen(command))
        rates: list[float] = json.loads(counter.stdout.read())
    return rates
