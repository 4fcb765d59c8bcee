"""What `import headrace` shows."""

from __future__ import annotations

import pytest

import headrace


def test_every_public_name_is_there() -> None:
    pytest.importorskip("torch_geometric")  # the loaders are its subclasses
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    assert set(headrace.__all__) <= set(dir(headrace))


def test_the_table_of_homes_is_the_public_list() -> None:
    assert {*headrace._HOME_OF, "__version__"} == set(headrace.__all__)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'simulat'"):
        headrace.simulat  # type: ignore[attr-defined]  # noqa: B018
