from __future__ import annotations

import pickle

import pytest
from pydantic import ValidationError

from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import HeadraceError, InfeasibleError, MissingExtraError, SpecError


def machine(name: str, **fields: object) -> Machine:
    return Machine.model_validate({"name": name, "nic": "1Gbps"} | fields)


def test_values_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        machine("a").name = "b"  # type: ignore[misc]


def test_equal_values_have_equal_fingerprints() -> None:
    one = machine("a", resources={"cpu": 1, "gpu": 2})
    other = machine("a", resources={"gpu": 2, "cpu": 1})
    assert one == other
    assert one.fingerprint() == other.fingerprint()
    assert len(one.fingerprint()) == 16


def test_different_values_have_different_fingerprints() -> None:
    prints = {
        each.fingerprint()
        for each in (
            machine("a"),
            machine("b"),
            machine("a", count=2),
            machine("a", resources={"cpu": 1}),
            machine("a", nic="2Gbps"),
        )
    }
    assert len(prints) == 5


def test_a_changed_copy_forgets_what_was_derived() -> None:
    cluster = Cluster(machines=(machine("a"), machine("b")))
    assert cluster.num_machines == 2
    larger = cluster.model_copy(update={"machines": (*cluster.machines, machine("c", count=3))})
    assert larger.num_machines == 5
    assert cluster.num_machines == 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), True])
def test_numbers_are_finite_and_no_bools(bad: object) -> None:
    with pytest.raises(ValidationError):
        machine("a", price_per_hour=bad)
    with pytest.raises(ValidationError):
        machine("a", nic=bad)


@pytest.mark.parametrize("kind", [HeadraceError, SpecError, InfeasibleError, MissingExtraError])
def test_errors_say_problem_and_remedy_and_survive_pickling(kind: type[HeadraceError]) -> None:
    error = kind("the plan needs 9 GPUs, the cluster has 8", "add a machine")
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert str(each) == "the plan needs 9 GPUs, the cluster has 8: add a machine"
        assert each.remedy == "add a machine"


def test_exit_codes_differ() -> None:
    kinds = (HeadraceError, SpecError, InfeasibleError, MissingExtraError)
    assert [kind.exit_code for kind in kinds] == [1, 2, 3, 4]


def test_a_spec_error_knows_its_place() -> None:
    error = SpecError("a", "b", at=("machines", 0))
    assert pickle.loads(pickle.dumps(error)).at == ("machines", 0)
    assert isinstance(error, ValueError)
