from __future__ import annotations

import copy
from typing import Any

import pytest

from headrace.core.coflows import CoflowGraph
from headrace.core.errors import SpecError

GRAPH: dict[str, Any] = {
    "machines": [{"name": "m", "count": 2, "nic": "1Gbps"}],
    "types": ["expert", "data"],
    "tasks": [
        {"name": "a", "machine": "m-0", "time": "1ms"},
        {"name": "b", "machine": "m-1", "after": ["a"]},
        {"name": "c", "machine": "m-1"},
    ],
    "coflows": [
        {"name": "x", "type": "data", "flows": [{"src": "a", "dst": "b", "bytes": "1KB"}]},
        {"name": "y", "type": "expert", "flows": [{"src": "a", "dst": "c", "bytes": 0}]},
        {
            "name": "z",
            "type": "data",
            "bin": 1,
            "layer": 2,
            "flows": [{"src": "b", "dst": "c", "bytes": 5}],
        },
    ],
    "order": [["b", "c"]],
}


def changed(*path: Any, value: Any) -> dict[str, Any]:
    data = copy.deepcopy(GRAPH)
    at: Any = data
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return data


def test_ranks_and_waits() -> None:
    graph = CoflowGraph(**GRAPH)
    assert graph.ranks == (1, 0, 2)
    assert graph.waits == ((0, 1), (1, 2))
    assert graph.num_flows == 3
    assert graph.cluster.num_machines == 2


@pytest.mark.parametrize(
    ("path", "value", "problem", "at"),
    [
        (("machines", 0), {"name": "m", "nic": "1Gbps"}, "no machine 'm-0'", ("tasks", 0)),
        (("types",), ["data", "data"], "two types have the name 'data'", ("types", 1)),
        (("tasks", 1, "name"), "a", "two tasks have the name 'a'", ("tasks", 1, "name")),
        (("coflows", 1, "name"), "x", "two coflows have the name 'x'", ("coflows", 1, "name")),
        (("tasks", 1, "after"), ["d"], "no task 'd'", ("tasks", 1, "after", 0)),
        (("coflows", 0, "type"), "ep", "no type 'ep'", ("coflows", 0, "type")),
        (("coflows", 0, "flows", 0, "dst"), "d", "no task 'd'", ("coflows", 0, "flows", 0, "dst")),
        (("order",), [["d"]], "no task 'd'", ("order", 0, 0)),
        (("order",), [["b"], ["b"]], "in the order twice", ("order", 1, 0)),
        (("order",), [["a", "b"]], "'b' is on m-1, the first of its list on m-0", ("order", 0, 1)),
        (("order",), [["c", "b"]], "wait for each other: b -> c -> b", ("tasks", 1)),
        (("tasks", 0, "after"), ["a"], "wait for each other: a -> a", ("tasks", 0)),
    ],
)
def test_mistakes(path: tuple[Any, ...], value: Any, problem: str, at: tuple[Any, ...]) -> None:
    with pytest.raises(SpecError, match=problem) as caught:
        CoflowGraph(**changed(*path, value=value))
    assert caught.value.at[: len(at)] == at
    assert caught.value.remedy
