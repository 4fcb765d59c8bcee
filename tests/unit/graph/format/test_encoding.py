"""Encodings of rows: what comes back, how large they are, and what damaged rows do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headrace.core.errors import DamagedGraphError, SpecError
from headrace.graph.build.encoding_choice import choose_form
from headrace.graph.format.encoding import Encoding
from headrace.graph.format.manifest import ColumnInfo, load_manifest
from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.format.row_codec import RowCodec, SparseRows
from headrace.graph.format.verify import verify
from headrace.graph.schema import Column
from tests.unit.graph.small_graphs import homogeneous, with_features, write

RNG = np.random.default_rng(0)
TWO = RNG.choice([0.0, 1.0], (40, 37)).astype(np.float32)
SPARSE = np.where(RNG.random((40, 37)) < 0.1, RNG.normal(size=(40, 37)), 0).astype(np.float32)
DENSE = RNG.normal(size=(40, 37)).astype(np.float32)

Words = arrays(np.uint32, st.tuples(st.integers(1, 6), st.integers(1, 20)))


def form_of(values: np.ndarray, features: str = "auto") -> ColumnInfo:
    return choose_form(Column.of("x", values), features, len(values))


def decoded(info: ColumnInfo, stored: np.ndarray, num_rows: int) -> np.ndarray:
    out = np.full((num_rows, *info.shape), 7, info.dtype)
    assert info.codec is not None
    rows = np.arange(num_rows)
    info.codec.decode(stored, rows[::-1].copy(), rows[::-1].copy(), out)
    return out


def test_auto_takes_the_smallest_form_that_loses_nothing() -> None:
    kinds = {}
    for name, values in (
        ("two values", TWO),
        ("few of one value", (SPARSE != 0).astype(np.float32)),
        ("few of many values", SPARSE),
        ("whole numbers", np.round(DENSE * 9).astype(np.float32)),
        ("any", DENSE),
        ("constant", np.full((5, 9), 3, np.int64)),
        ("no rows", DENSE[:0]),
    ):
        info = form_of(values)
        kinds[name] = info.dtype if info.encoding is None else info.encoding.kind
        assert info.row_bytes <= values.itemsize * values.shape[1]
    assert kinds == {
        "two values": "bits",
        "few of one value": "bits",
        "few of many values": "sparse",
        "whole numbers": "float16",
        "any": "float32",
        "constant": "bits",
        "no rows": "float32",
    }


def test_only_features_are_encoded() -> None:
    labels = Column.of("y", TWO)
    assert choose_form(labels, "auto", 40).encoding is None
    assert choose_form(labels, "int8", 40).encoding is None
    whole = choose_form(Column.of("x", np.arange(8).reshape(4, 2)), "int8", 4)
    assert whole.encoding is None, "whole numbers may be ids"


@given(words=Words)
def test_sparse_rows_come_back_bit_by_bit(words: np.ndarray) -> None:
    values = np.where(words % 3 == 0, words, 0).astype(np.uint32).view(np.float32)
    codec = RowCodec(Encoding(kind="sparse", row_bytes=0), "float32", values.shape[1])
    info = ColumnInfo(
        name="x",
        dtype="float32",
        shape=values.shape[1:],
        encoding=Encoding(kind="sparse", row_bytes=0),
    )
    units = codec.encode(values)
    assert len(units) == codec.lengths(values).sum()
    back = decoded(info, units, len(values))
    assert np.array_equal(back.view(np.uint32), values.view(np.uint32))


@given(words=Words, pair=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)))
def test_two_values_come_back_bit_by_bit(words: np.ndarray, pair: tuple[int, int]) -> None:
    # Words may be NaN of any kind, or a negative zero.
    values = np.array(pair, np.uint32)[words % 2].view(np.float32)
    info = form_of(values)
    if info.encoding is not None:
        assert info.codec is not None
        back = decoded(info, info.codec.encode(values), len(values))
        assert np.array_equal(back.view(np.uint32), values.view(np.uint32))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float16", "float64", "int64"])
def test_every_width_of_word_comes_back(dtype: str) -> None:
    for values in (TWO.astype(dtype), np.where(SPARSE != 0, SPARSE * 50, 0).astype(dtype)):
        info = form_of(values)
        if info.codec is not None:
            assert np.array_equal(decoded(info, info.codec.encode(values), len(values)), values)


def test_rows_of_more_than_65535_values_come_back() -> None:
    values = np.zeros((3, 70_001), np.float32)
    values[0, [0, 65_535, 65_536, 70_000]] = [1, 2, 3, 4]
    values[2, 69_999] = 5
    info = form_of(values)
    assert info.encoding is not None
    assert info.encoding.kind == "sparse"
    assert info.codec is not None
    assert np.array_equal(decoded(info, info.codec.encode(values), 3), values)


@given(
    values=arrays(
        np.float32,
        st.tuples(st.integers(1, 5), st.integers(1, 9)),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    )
)
@pytest.mark.parametrize(("kind", "levels"), [("int8", 255), ("int4", 15)])
def test_the_error_of_a_quantised_row_is_half_a_step(
    kind: str, levels: int, values: np.ndarray
) -> None:
    info = form_of(values, kind)
    assert info.codec is not None
    ranges = values.astype(np.float64).max(1) - values.astype(np.float64).min(1)
    if ranges.max() > np.finfo(np.float32).max:
        with pytest.raises(SpecError, match="a range that is not finite"):
            info.codec.encode(values)
        return
    back = decoded(info, info.codec.encode(values), len(values)).astype(np.float64)
    exact = values.astype(np.float64)
    steps = (exact.max(1, keepdims=True) - exact.min(1, keepdims=True)) / levels
    rounding = np.abs(exact).max(1, keepdims=True) * 3e-7 + 1e-43
    assert np.isfinite(back).all()
    assert (np.abs(back - exact) <= 0.5 * steps + levels * rounding).all()


def test_a_row_whose_range_is_no_float32_is_refused() -> None:
    codec = form_of(np.array([[-3e38, 0, 3e38]], np.float32), "int8").codec
    assert codec is not None
    with pytest.raises(SpecError, match="row 0 of 'x'"):
        codec.encode(np.array([[-3e38, 0, 3e38]], np.float32))


def test_values_that_changed_after_the_choice_are_noticed() -> None:
    for values in (TWO, SPARSE != 0, np.round(DENSE * 9)):
        rows = values.astype(np.float32)
        codec = form_of(rows).codec
        assert codec is not None
        rows[3, 4] = 1 / 3
        with pytest.raises(SpecError, match="row 3 of 'x' changed while it was read"):
            codec.encode(rows)


def test_an_encoding_must_fit_its_column() -> None:
    for dtype, encoding in (
        ("uint8", {"kind": "sparse"}),
        ("float64", {"kind": "int8"}),
        ("float32", {"kind": "bits"}),
        ("float32", {"kind": "bits", "words": (0, 2**40)}),
        ("float64", {"kind": "float16"}),
        ("float32", {"kind": "sparse", "words": (1, 2)}),
    ):
        with pytest.raises((SpecError, ValueError), match="cannot be encoded"):
            ColumnInfo(name="x", dtype=dtype, shape=(4,), encoding={"row_bytes": 1, **encoding})


def test_rows_of_several_dimensions_in_any_memory_order_come_back(tmp_path: Path) -> None:
    values = np.where(RNG.random((40, 7, 5)) < 0.1, RNG.normal(size=(40, 7, 5)), 0)
    values = values.astype(np.float32).transpose(0, 2, 1)
    write(with_features(homogeneous(40, 90), values), tmp_path / "g", features="auto")
    part = open_graph(tmp_path / "g").part(1)
    assert np.array_equal(part.column("node", "x"), values[part.original_ids("node")])
    assert np.array_equal(part.rows("node", "x", 2, 5), part.column("node", "x")[2:5])


def test_zeros_of_rows_without_negative_values_stay_zero() -> None:
    values = np.maximum(SPARSE, 0)
    info = form_of(values, "int8")
    assert info.codec is not None
    assert (decoded(info, info.codec.encode(values), 40)[values == 0] == 0).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_cannot_be_quantised(value: float) -> None:
    values = DENSE.copy()
    values[11, 5] = value
    codec = form_of(values, "int8").codec
    assert codec is not None
    with pytest.raises(SpecError, match="row 111 of 'x' has a value or a range"):
        codec.encode(values, first=100)


def test_hostile_scales_give_values_and_no_crash() -> None:
    info = form_of(DENSE, "int8")
    assert info.codec is not None
    stored = info.codec.encode(DENSE)
    stored.view(np.float32)[:, :2] = [[np.nan, np.inf]] * 40
    assert not np.isfinite(decoded(info, stored, 40)).any()


def test_damaged_sparse_rows_are_refused() -> None:
    info = form_of(SPARSE)
    codec = info.codec
    assert codec is not None
    units = codec.encode(SPARSE)
    with pytest.raises(DamagedGraphError):
        decoded(info, units[:-1], 40)
    with pytest.raises(DamagedGraphError):
        decoded(info, units.astype(np.uint8), 40)
    starts = codec.split(units, 40).starts
    shorter = units.copy()
    shorter[starts[np.flatnonzero(np.diff(starts) > 4)[0]]] -= 1
    with pytest.raises(DamagedGraphError):
        codec.decode(SparseRows(shorter, starts), np.arange(40), np.arange(40), SPARSE.copy())
    with pytest.raises(DamagedGraphError):
        codec.split(units[:6].reshape(2, 3), 2)
    for wrong in (units | 0x8000, np.full_like(units, 37)):
        with pytest.raises(DamagedGraphError):
            codec.decode(SparseRows(wrong, starts), np.arange(40), np.arange(40), SPARSE.copy())
    for shift in (-5, len(units)):
        with pytest.raises(DamagedGraphError):
            SparseRows(units, starts + shift).take(np.arange(40))
    with pytest.raises(DamagedGraphError):
        decoded(form_of(TWO), np.zeros((40, 3), np.uint8), 40)


@pytest.mark.parametrize("features", ["auto", "int8", "int4"])
@pytest.mark.parametrize("values", [TWO, SPARSE, (SPARSE > 0).astype(np.float32)])
def test_a_written_column_comes_back(tmp_path: Path, features: str, values: np.ndarray) -> None:
    write(with_features(homogeneous(40, 90), values), tmp_path / "g", features=features)
    assert verify(tmp_path / "g") == []
    graph = open_graph(tmp_path / "g")
    assert load_manifest(tmp_path / "g").version == 2
    for number in range(graph.num_parts):
        part = graph.part(number)
        exact, back = values[part.original_ids("node")], part.column("node", "x")
        if features == "auto":
            assert np.array_equal(back, exact)
        else:
            assert np.abs(back - exact).max() < 0.2


def test_a_graph_without_encoded_columns_is_of_the_first_version(tmp_path: Path) -> None:
    write(with_features(homogeneous(40, 90), DENSE), tmp_path / "g", features="auto")
    assert load_manifest(tmp_path / "g").version == 1
