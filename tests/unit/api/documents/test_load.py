"""Files that are right: the pages of the documentation, the examples, and YAML's conveniences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headrace
from headrace.api.documents.load import load_cluster, load_job, load_placement, load_profile
from headrace.core.errors import SpecError
from headrace.core.job import UNLIMITED_WINDOW, Role

ROOT = Path(__file__).parents[4]
BLOCKS = re.findall(
    r'^```yaml title="(\w+)\.yaml"\n(.*?)^```',
    (ROOT / "docs/reference/files.md").read_text(),
    re.M | re.S,
)
EXAMPLES = sorted(path.parent for path in ROOT.glob("examples/*/cluster.yaml"))


@pytest.fixture
def documented(tmp_path: Path) -> Path:
    """A folder with the files that the documentation shows, the first of every kind."""
    for name, text in reversed(BLOCKS):
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def test_documented_files_mean_what_the_comments_say(documented: Path) -> None:
    cluster = load_cluster(documented / "cluster.yaml")
    assert [machine.name for machine in cluster.hosts] == ["big-0", "big-1", "small"]
    assert cluster.hosts[0].nic_in == cluster.hosts[0].nic_out == 100e9 / 8
    assert cluster.hosts[2].nic_out == 5e9 / 8
    assert cluster.hosts[0].resources["memory"] == 256e9

    job = load_job(documented / "job.yaml")
    assert (job.num_samplers, job.num_servers, job.model_bytes) == (8, 1, 800e3)

    profile = load_profile(documented / "profile.yaml")
    assert profile.task_time(Role.TRAINER, "v100").mean == pytest.approx(0.03)
    assert profile.task_time(Role.TRAINER, "gtx1080ti").mean == pytest.approx(0.04)
    assert profile.task_time(Role.SAMPLER, "any").variation.peak_to_mean == 1.5

    placement = load_placement(documented / "placement.yaml", cluster, job)
    assert placement.trainers == (0, 0, 1, 2)
    assert placement.servers == (1,)


def test_every_documented_profile_loads(tmp_path: Path) -> None:
    profiles = [text for name, text in BLOCKS if name == "profile"]
    assert len(profiles) == 3
    path, loaded = tmp_path / "profile.yaml", []
    for text in profiles:
        path.write_text(text)
        loaded.append(load_profile(path))
    assert loaded[1].store_traffic.bytes_per_seed_matrix(3)[0, 1] == 20e3
    assert loaded[2].growth is not None
    assert loaded[2].growth.trainer_time == (0.008, 0.012, 0.02)


def test_documented_defaults_are_the_defaults(documented: Path) -> None:
    path = documented / "least.yaml"
    path.write_text("trainers: 1\nbatch_size: 1\n")
    job = load_job(path)
    assert (job.name, job.samplers_per_trainer, job.sync, job.iterations) == ("job", 1, "ring", 200)
    assert (job.model_bytes, job.window, job.demands) == (0, 2, {})


@pytest.mark.parametrize("folder", EXAMPLES, ids=[folder.name for folder in EXAMPLES])
def test_examples_load(folder: Path) -> None:
    load_cluster(folder / "cluster.yaml")
    load_job(folder / "job.yaml")
    load_profile(folder / "profile.yaml")


def test_default_profile_is_that_of_the_testbed() -> None:
    testbed = load_profile(ROOT / "examples/testbed/profile.yaml")
    default = headrace.default_profile()
    assert default.model_copy(update={"note": testbed.note}) == testbed
    for figure in ("93.5 KB", "1.16", "28 ms", "29 ms", "37 ms", "2 ms"):
        assert figure in default.note


def test_unlimited_window(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("trainers: 1\nbatch_size: 1\nwindow: unlimited\n")
    assert load_job(path).window == UNLIMITED_WINDOW


def test_anchors_and_merge_keys(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "machines:\n"
        "  - &base {name: a, nic: 1Gbps, resources: {cpu: 8}}\n"
        "  - <<: *base\n"
        "    name: b\n"
    )
    assert [machine.name for machine in load_cluster(path).hosts] == ["a", "b"]
    path.write_text(path.read_text().replace("name: b", "name: 7"))
    with pytest.raises(SpecError, match=r"line 4: machines\[1\].name: 7 is not text"):
        load_cluster(path)


def test_json_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text('{\n\t"trainers": 3,\n\t"batch_size": 1e1, "window": "unlimited"\n}')
    assert load_job(path).batch_size == 10


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbftrainers: 3\r\nbatch_size: 10\r\n")
    assert load_job(path).trainers == 3
    path.write_bytes(b"\xef\xbb\xbftrainers: 3\r\nbatch_size: 0\r\n")
    with pytest.raises(SpecError, match="line 2"):
        load_job(path)


def test_a_thousand_machines_are_a_short_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("machines: [{name: m, count: 1024, nic: 10Gbps}]\n")
    cluster = load_cluster(path)
    assert cluster.num_machines == 1024
    assert cluster.hosts[-1].name == "m-1023"
