"""Every way to get a file wrong: the message names the file, the line and a remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from headrace.api.documents.load import load_cluster, load_job, load_placement, load_profile
from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import InfeasibleError, SpecError
from headrace.core.job import Job
from tests.unit.api.broken_cases import CASES, Case

TWO_MACHINES = Cluster(
    machines=(
        Machine(name="m0", nic_in=1e9, nic_out=1e9, resources={"cpu": 4}),
        Machine(name="m1", nic_in=1e9, nic_out=1e9, resources={"cpu": 4}),
    )
)
ONE_TRAINER = Job(trainers=1, samplers_per_trainer=2, batch_size=10)


def load_two_machine_placement(path: Path) -> object:
    return load_placement(path, TWO_MACHINES, ONE_TRAINER)


@pytest.fixture(params=["CSafeLoader", "SafeLoader"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with libyaml and without it."""
    if not hasattr(yaml, request.param):
        pytest.skip("PyYAML was built without libyaml")
    monkeypatch.setattr("headrace.api.documents.yaml_source._Loader", getattr(yaml, request.param))


LOADERS: dict[str, Callable[[Path], object]] = {
    "cluster": load_cluster,
    "job": load_job,
    "profile": load_profile,
    "placement": load_two_machine_placement,
}


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_message_names_file_line_and_remedy(case: Case, tmp_path: Path) -> None:
    path = tmp_path / f"{case.kind}.yaml"
    path.write_text(case.text)
    with pytest.raises(SpecError) as raised:
        LOADERS[case.kind](path)
    error = raised.value
    assert f"{path}, line {case.line}: " in error.problem
    assert case.problem in error.problem
    assert case.remedy in error.remedy
    assert "\n" not in str(error)


def test_ids_are_distinct() -> None:
    assert len({case.id for case in CASES}) == len(CASES)


def test_other_wrong_lines_are_named_too(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("trainers: 0\nbatch_size: 0\nsync: x\n")
    with pytest.raises(SpecError, match=r"line 1: .*\(see also lines 2, 3\)"):
        load_job(path)


def test_what_is_misspelt_comes_before_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("batch_size: 8\ntrainer: 4\n")
    with pytest.raises(SpecError, match=r"line 2: trainer: unknown key"):
        load_job(path)


def test_a_placement_may_not_overload_a_machine(tmp_path: Path) -> None:
    path = tmp_path / "placement.yaml"
    path.write_text("trainers: [m0]\nsamplers: [m0, m0]\n")
    greedy = ONE_TRAINER.model_copy(update={"demands": {"sampler": {"cpu": 3}}})
    with pytest.raises(InfeasibleError, match="needs 6 cpu on m0, which has 4"):
        load_placement(path, TWO_MACHINES, greedy)


JSON_CASES = [
    ("bad syntax", '{"trainers": 4,\n "batch_size" 8}', 2, "not JSON", "commas"),
    ("wrong value", '{\n\t"trainers": 4,\n\t"batch_size": 0\n}', 3, "batch_size: 0", "equal to 1"),
    (
        "duplicate",
        '{"trainers": 4,\n\t"batch_size": 8,\n\t"trainers": 4}',
        3,
        "duplicate key",
        "remove one",
    ),
    ("list", "[1]", 1, "found a list", "headrace schema job"),
    ("not a number", '{"trainers": 4,\n "batch_size": NaN}', 2, "nan", "such as 4"),
]


@pytest.mark.parametrize(("name", "text", "line", "problem", "remedy"), JSON_CASES)
def test_json_too(
    name: str, text: str, line: int, problem: str, remedy: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.json"
    path.write_text(text)
    with pytest.raises(SpecError) as raised:
        load_job(path)
    assert f"{path}, line {line}: " in raised.value.problem
    assert problem in raised.value.problem
    assert remedy in raised.value.remedy


def check_unreadable(path: Path, problem: str, remedy: str) -> None:
    with pytest.raises(SpecError) as raised:
        load_cluster(path)
    assert str(path) in raised.value.problem
    assert problem in raised.value.problem
    assert remedy in raised.value.remedy


def test_missing_file(tmp_path: Path) -> None:
    check_unreadable(tmp_path / "cluster.yaml", "does not exist", "check the path")
    check_unreadable(tmp_path / "no" / "cluster.yaml", "does not exist", "check the path")
    (tmp_path / "clusters.yaml").touch()
    check_unreadable(tmp_path / "cluster.yaml", "does not exist", "clusters.yaml?")
    check_unreadable(tmp_path / "clusters.yaml" / "x", "does not exist", "check the path")


def test_directory(tmp_path: Path) -> None:
    check_unreadable(tmp_path, "is a directory", "name a file in it")
    (tmp_path / "cluster.yml").touch()
    check_unreadable(tmp_path, "is a directory", "cluster.yml?")


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing yet\n", "{}\n", "---\n"])
def test_empty_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    check_unreadable(path, "is empty", "`headrace schema cluster`")
    if text.strip() in ("", "{}"):
        (tmp_path / "cluster.json").write_text(text)
        check_unreadable(tmp_path / "cluster.json", "is empty", "`headrace schema cluster`")


def test_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(b"machines:\n\0\1\2")
    check_unreadable(path, "line 2: this is not a text file", "`headrace schema cluster`")
    path.write_bytes(b"machines:\n- name: caf\xe9\n")
    check_unreadable(path, "line 2: byte 0xe9 is not UTF-8", "save the file as UTF-8")
    path.write_bytes("machines: []".encode("utf-16"))
    check_unreadable(path, "UTF-16", "save the file as UTF-8")
    path.write_bytes(bytes(range(128, 256)))
    check_unreadable(path, "line 1: byte 0x80", "save the file as UTF-8")


def test_deeply_nested_file(tmp_path: Path) -> None:
    for name in ("cluster.yaml", "cluster.json"):
        (tmp_path / name).write_text("[" * 100_000)
        with pytest.raises(SpecError, match=str(tmp_path / name)):
            load_cluster(tmp_path / name)
