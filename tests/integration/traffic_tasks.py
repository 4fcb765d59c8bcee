"""What `test_traffic` runs in namespaces: a driver, and tasks that send and take."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

HOSTS = {"m0": "10.79.0.1", "m1": "10.79.0.2"}
NIC_BYTES_PER_S = 25e6


def log(line: str) -> None:
    """Answer whoever started this process."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def drive(folder: Path, policy: str) -> None:
    """Control a run's traffic; answers every line with figures."""
    from headrace.api.plan import plan
    from headrace.core.cluster import Cluster
    from headrace.core.job import Job
    from headrace.core.placement import PlacementFile
    from headrace.runtime.traffic.coordinator import TrafficControl

    machines = [{"name": name, "nic": "200Mbps", "resources": {"cpu": 8}} for name in HOSTS]
    cluster = Cluster.model_validate({"version": 1, "machines": machines})
    job = Job(trainers=2, samplers_per_trainer=1, batch_size=8, model_bytes=4e6)
    made = plan(cluster, job, method="colocate", policy=policy)
    placement = PlacementFile(samplers=("m0", "m1"), trainers=("m0", "m1"))
    said: list[str] = []
    control = TrafficControl(made.model_copy(update={"placement": placement}), said.append)
    port = control.begin(HOSTS["m0"])
    for machine, tasks in (("m0", ("store0", "trainer0")), ("m1", ("sampler1.0", "trainer1"))):
        folders = dict.fromkeys(tasks, str(folder))
        order = control.order(machine, "eth0", folders, HOSTS["m0"], port)
        (folder / f"{machine}.json").write_text(json.dumps(order))
    log("ready")
    for _ in sys.stdin:
        control.poll()
        log(json.dumps({**control.figures(), "said": said}))
    control.close()
    log(json.dumps({**control.figures(), "said": said}))


def send(port: int) -> None:
    """Send until the input closes."""
    sock = socket.create_connection((HOSTS["m1"], port), 20.0)
    log("ready")

    def sending() -> None:
        with suppress(OSError):
            while True:
                sock.sendall(bytes(1 << 16))

    threading.Thread(target=sending, daemon=True).start()
    sys.stdin.read()


def take(port: int) -> None:
    """Take what comes; answers every line with how much came until when."""
    listener = socket.create_server((HOSTS["m1"], port))
    log("ready")
    taken = [0]

    def taking() -> None:
        sock, _ = listener.accept()
        memory = bytearray(1 << 20)
        while num := sock.recv_into(memory):
            taken[0] += num

    threading.Thread(target=taking, daemon=True).start()
    for _ in sys.stdin:
        log(json.dumps([time.monotonic(), taken[0]]))


if __name__ == "__main__":
    role, *words = sys.argv[1:]
    if role == "drive":
        drive(Path(words[0]), words[1])
    else:
        {"send": send, "take": take}[role](int(words[0]))
