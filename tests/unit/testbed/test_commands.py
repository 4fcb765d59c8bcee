from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import MissingExtraError, RunError, SpecError
from headrace.testbed import Testbed, machines, network, nsenter, processes, ray_nodes
from headrace.testbed.layout import HostLayout, Process, lay_out


def cluster(**resources: float) -> Cluster:
    pair = [
        Machine(name=name, resources=resources, nic_in=1e9, nic_out=1e9) for name in ("m0", "m1")
    ]
    return Cluster(machines=tuple(pair))


def layout(with_ray: bool = True, **resources: float) -> HostLayout:
    return lay_out(cluster(**resources), "bed", "boot", with_ray, ())


def test_only_the_first_machine_has_rays_head() -> None:
    made = layout(cpu=8)
    head, other = (ray_nodes.node_command(made, host) for host in made.hosts)
    assert {"--head", "--port=6379", "--include-dashboard=false"} < set(head)
    assert f"--address={made.ray_address}" in other
    assert "--head" not in other
    assert "--labels=host=m1" in other
    assert f"--node-ip-address={made.hosts[1].address}" in other


def test_resources_are_told_to_ray() -> None:
    made = layout(cpu=8, gpu=2, memory=48e9, disk=1.5)
    command = ray_nodes.node_command(made, made.hosts[0])
    assert {"--num-cpus=8", "--num-gpus=2", "--memory=48000000000"} < set(command)
    told = [word.partition("=")[2] for word in command if word.startswith("--resources=")]
    assert [json.loads(each) for each in told] == [{"disk": 1.5}]


def test_what_a_machine_lacks_ray_does_not_guess() -> None:
    made = layout()
    assert {"--num-cpus=0", "--num-gpus=0"} < set(ray_nodes.node_command(made, made.hosts[0]))


def test_ray_has_whole_cpus() -> None:
    made = layout(cpu=1.5)
    with pytest.raises(SpecError, match=r"m0 has 1\.5 cpu"):
        ray_nodes.node_command(made, made.hosts[0])


def test_workers_find_modules_from_any_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"src{os.pathsep}/opt/x")
    made = layout()
    assert f"PYTHONPATH={os.getcwd()}/src:/opt/x" in ray_nodes.node_command(made, made.hosts[0])


def test_every_machine_is_plugged_into_the_switch() -> None:
    made = layout()
    lines = network.switch_commands(made)
    for host in made.hosts:
        assert f"link add {host.link} type veth peer name eth0 netns {host.namespace}" in lines
        assert f"link set {host.link} master br0 up" in lines
        assert f"addr add {host.address}/24 brd + dev eth0" in network.host_commands(host)


def test_variables_of_a_machine() -> None:
    made = layout()
    variables = machines.variables_of(made, made.hosts[1])
    assert variables["GLOO_SOCKET_IFNAME"] == "eth0"
    assert variables["RAY_ADDRESS"] == made.ray_address
    assert variables["TMPDIR"] == str(made.hosts[1].folder / "tmp")
    bare = layout(with_ray=False)
    assert not any(name.startswith("RAY_A") for name in machines.variables_of(bare, bare.hosts[0]))


def test_ray_asks_for_a_token_that_only_a_file_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.testbed.layout.FOLDER", tmp_path)
    made = layout()
    made.folder.mkdir()
    ray_nodes.write_token(made)
    token = made.ray_token.read_text()
    assert len(token) == 64
    assert made.ray_token.stat().st_mode & 0o777 == 0o600
    variables = machines.variables_of(made, made.hosts[1])
    assert variables["RAY_AUTH_MODE"] == "token"
    assert variables["RAY_AUTH_TOKEN_PATH"] == str(made.ray_token)
    # What the user has set is meant for another cluster.
    assert variables["RAY_AUTH_TOKEN"] is None
    assert token not in str([variables, ray_nodes.node_command(made, made.hosts[0])])
    with pytest.raises(FileExistsError):
        ray_nodes.write_token(made)


def test_a_dead_machine_cannot_be_entered() -> None:
    with pytest.raises(RunError, match="m1 of testbed 'bed' is not running"):
        machines.enter_command(layout(), "m1", ["true"])


def test_all_of_a_machine_is_in_its_control_group() -> None:
    host = layout().hosts[0]
    held = machines.hold_command(host, Path("/names"))
    limited = host.model_copy(update={"cgroup": Path("/groups/hr.bed.m0")})
    join = machines.hold_command(limited, Path("/names"))
    assert join[-len(held) :] == held
    assert "/groups/hr.bed.m0/cgroup.procs" in join[: -len(held)]


def test_joining_a_group_becomes_the_command(tmp_path: Path) -> None:
    host = layout().hosts[0].model_copy(update={"cgroup": tmp_path})
    words = [*machines.join_command(host), "sh", "-c", 'echo $$ "$1"', "sh", "two words"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        said, _ = child.communicate()
    assert said == f"{child.pid} two words\n"
    assert (tmp_path / "cgroup.procs").read_text() == f"{child.pid}\n"


def test_limits_without_pyroute2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"headrace\[shape\]"):
        Testbed.up(cluster(cpu=2), shaped=True)


def test_cores_are_of_a_shaped_testbed() -> None:
    with pytest.raises(SpecError, match="add --shaped"):
        Testbed.up(cluster(cpu=2), cores=1.0)


def test_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: f"/sbin/{program}")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SpecError, match="require root: run it with sudo"):
        Testbed.up(cluster())


def test_without_iproute2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: None)
    with pytest.raises(SpecError, match="install iproute2"):
        Testbed.up(cluster())


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="--without-ray"):
        ray_nodes.check_ray()


def test_a_process_is_not_taken_for_another() -> None:
    seen = processes.read_process(os.getpid())
    assert seen is not None
    assert processes.is_alive(seen.process)
    later = Process(pid=os.getpid(), start_ticks=seen.process.start_ticks + 1)
    assert not processes.is_alive(later)
    # Would end this test if it were killed.
    assert processes.end([later], deadline_s=0.0) == []


def test_ending_waits_for_the_end() -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        seen = processes.read_process(child.pid)
        assert seen is not None
        assert seen.parent == os.getpid()
        assert seen.command in ("sleep", "python", "pytest")  # not always executed yet
        assert processes.end([seen.process], deadline_s=60.0) == []
        assert not processes.is_alive(seen.process)
        child.returncode = -signal.SIGKILL  # the end was waited for already


def test_entering_another_process_than_meant_is_refused() -> None:
    words = [sys.executable, "-I", "-S", str(nsenter.__file__), str(os.getpid()), "1", "{}", "true"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 69
    assert "now belongs to another process" in done.stderr
