"""No endpoint fails on a wrong request or changes by one: a sample of `benchmarks/fuzz.py`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

from benchmarks.fuzz import batches, summary
from tests.support.fuzz_endpoints import FINE
from tests.support.fuzz_run_endpoints import ENDPOINTS
from tests.unit.graph import small_graphs

NUM_REQUESTS = 60


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzz")
    small_graphs.write(small_graphs.homogeneous(200, 2000), path / "graph", num_parts=2)
    return path


@pytest.mark.parametrize("name", ENDPOINTS)
def test_wrong_requests_leave_no_trace(
    name: str, scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kind, _ = ENDPOINTS[name]
    draw = np.random.default_rng([7, *name.encode()])
    with ExitStack() as stack:
        endpoint = kind(scratch / "graph", scratch, stack)
        outcomes = {endpoint.try_one(draw) for _ in range(NUM_REQUESTS)}
    assert outcomes <= FINE
    assert [each for each in caplog.records if each.exc_info] == []


def test_all_requests_are_dealt_to_batches_with_seeds() -> None:
    made = batches(50_000, 3)
    assert sum(count for _, _, count in made) == 50_000
    assert len({each[:2] for each in made}) == len(made)
    assert {name for name, _, _ in made} == ENDPOINTS.keys()


def test_what_is_wrong_is_counted_by_kind() -> None:
    wrong = [{"request": 1, "kind": "silent", "what": "x"}]
    done = [{"endpoint": "store", "batch": 3, "outcomes": {"refused": 4}, "wrong": wrong}]
    found = summary(done)
    assert found["endpoints"]["store"]["requests"] == found["endpoints"]["store"]["refused"] == 4
    assert (found["silent"], found["crash"], found["traceback"]) == (1, 0, 0)
    assert found["wrong"][0]["batch"] == 3
