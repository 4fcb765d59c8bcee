"""What trainers of a full-graph job exchange and compute in an epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from headrace.core.column_slices import column_values
from headrace.core.errors import SpecError
from headrace.core.units import Bytes, Count, Number, Seconds
from headrace.core.values import Spec

_BYTES_PER_VALUE = 4
"""Rows are sent as 32-bit numbers, unless they are rounded."""

Slices = Literal["", "columns", "rows"]
"""What is cut in slices: see `RowSwap.slices`."""


_BINNED_TIME = 1.39
"""Time of an epoch with bins over that without: GAT on Amazon-Computers with 32 bins."""


def _allow_width(schema: dict[str, Any]) -> None:
    whole = dict(schema)
    schema.clear()
    width = {"type": "integer", "minimum": 0, "description": "Values of a row."}
    schema |= {"title": whole["title"], "anyOf": [whole, width]}


class RowSwap(Spec):
    """Rows that all trainers of a full-graph job send each other before a layer goes on.

    A plain number is the number of values of a row, of 4 bytes each.

    Attributes:
        row_bytes: Bytes of a row.
        is_sum: Whether the layer adds up rows, so that sums for destinations may replace rows.
        is_back: Whether these are gradients, which those who received rows send back.
        edges: Edge type that the rows are for, as `movie/to/actor`; empty for all edges.
        slices: Empty for rows between parts. `columns` if each trainer gets some columns of all
            rows, `rows` if it gets the sums of its nodes from trainers that have some columns.
    """

    model_config = ConfigDict(json_schema_extra=_allow_width)

    row_bytes: Bytes
    is_sum: bool = True
    is_back: bool = False
    edges: str = ""
    slices: Slices = ""

    @model_validator(mode="before")
    @classmethod
    def _of_width(cls, data: object) -> object:
        if isinstance(data, int) and not isinstance(data, bool):
            return {"row_bytes": _BYTES_PER_VALUE * data}
        return data

    @model_serializer(mode="wrap")
    def _omit_unset_fields(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return omit_unset(write(self), ("edges", "slices"))


def width_of(swap: RowSwap) -> int:
    """Values of a row."""
    return max(1, round(swap.row_bytes / _BYTES_PER_VALUE))


def by_features(swaps: Sequence[RowSwap]) -> list[tuple[str, float]]:
    """Edge type and bytes of the rows that trainers divide by features."""
    found = [(swap.edges, swap.row_bytes) for swap in swaps if swap.slices == "columns"]
    return list(dict.fromkeys(found))


def with_way_back(swaps: object) -> object:
    """Plain widths are those of a forward pass: the gradients' swaps follow in reverse."""
    if not isinstance(swaps, Sequence) or isinstance(swaps, str):
        return swaps
    if not swaps or not all(isinstance(each, int) and not isinstance(each, bool) for each in swaps):
        return swaps
    back = [{"row_bytes": _BYTES_PER_VALUE * each, "is_back": True} for each in reversed(swaps)]
    return [*swaps, *back]


Counts = tuple[Annotated[Count, Field(ge=0)], ...]
Rows = tuple[Counts, ...]


class TypeRows(Spec):
    """Rows between trainers for one edge type, by receiving and sending trainer.

    Attributes:
        halo: Rows of sources that trainers need.
        cover: The same, if sums for destinations replace rows where that is fewer.
        sources: Nodes of each trainer at which these edges may begin.
        destinations: Nodes of each trainer at which they may end.
    """

    halo: Rows
    cover: Rows
    sources: Counts = ()
    destinations: Counts = ()

    @model_serializer(mode="wrap")
    def _omit_unset_fields(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return omit_unset(write(self), ("sources", "destinations"))


class FullGraphFigures(Spec):
    """Parts of the trainers of a full-graph job, and what was measured of an epoch.

    Attributes:
        nodes: Nodes of each trainer.
        edges: Edges that end at the nodes of each trainer.
        halo: Rows of sources that trainers need, by receiving and sending trainer.
        cover: The same, if sums for destinations replace rows where that is fewer.
        by_type: Rows of each edge type, if there are several; `halo` and `cover` are their sums.
        swaps: Measured swaps of an epoch, in their order.
        work: Nodes and edges of a trainer for which its time holds; the mean if not measured.
        shares: Measured share of a trainer's time before the first swap, then during and after
            each.
        delays: Measured seconds that each swap takes beyond its transfer.
        epoch_bytes: Measured bytes of all swaps of an epoch.
        bins: Bins with which the time was measured; 1 if not given.
    """

    nodes: Counts = Field(min_length=1)
    edges: Counts
    halo: Rows
    cover: Rows
    by_type: Mapping[str, TypeRows] = Field(default_factory=dict)
    swaps: tuple[RowSwap, ...] = ()
    work: Annotated[Number, Field(gt=0)] | None = None
    shares: tuple[Annotated[Number, Field(ge=0)], ...] = ()
    delays: tuple[Seconds, ...] = ()
    epoch_bytes: Bytes | None = None
    bins: Annotated[Count, Field(ge=1)] | None = None

    @model_serializer(mode="wrap")
    def _omit_unset_fields(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return omit_unset(write(self), ("by_type", "bins"))

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        num = len(self.nodes)
        for where in ((), *(("by_type", name) for name in self.by_type)):
            given = self.by_type[where[1]] if where else self
            for name, rows in (("halo", given.halo), ("cover", given.cover)):
                if len(rows) != num or any(len(row) != num for row in rows):
                    raise SpecError(
                        f"{name} does not have a row and a column for each of {num} trainers",
                        "give the rows by receiving and sending trainer",
                        at=(*where, name),
                    )
        if len(self.edges) != num:
            raise SpecError(
                f"there are edges of {len(self.edges)} trainers, and nodes of {num}",
                "give both for every trainer",
                at=("edges",),
            )
        for name, wanted in (("shares", 1 + 2 * len(self.swaps)), ("delays", len(self.swaps))):
            found = len(getattr(self, name))
            if found not in (0, wanted):
                raise SpecError(
                    f"there are {found} {name} for {len(self.swaps)} swaps",
                    f"give {wanted}, or none",
                    at=(name,),
                )
        return self

    @property
    def num_trainers(self) -> int:
        """Number of trainers."""
        return len(self.nodes)

    def volumes(self, swap: RowSwap) -> np.ndarray:
        """Bytes of a swap, by sending and receiving trainer."""
        if swap.slices:
            return self._slice_volumes(swap)
        given = self.by_type[swap.edges] if swap.edges else self
        rows = np.array(given.cover if swap.is_sum else given.halo, dtype=np.float64)
        return swap.row_bytes * (rows if swap.is_back else rows.T)

    def ends(self, edges: str) -> tuple[Counts, Counts] | None:
        """Nodes of each trainer at which edges begin and end; None if they were not counted."""
        if not edges:
            return self.nodes, self.nodes
        given = self.by_type[edges]
        return (given.sources, given.destinations) if given.sources else None

    def _slice_volumes(self, swap: RowSwap) -> np.ndarray:
        ends = self.ends(swap.edges)
        if ends is None:
            raise SpecError(
                f"the profile does not have the nodes of edge type {swap.edges!r}",
                "plan with the partitioned graph (`--graph`), which has them",
            )
        width = width_of(swap)
        values = column_values(*ends, width)[swap.slices == "rows"]
        volumes: np.ndarray = values * (swap.row_bytes / width)
        return volumes.T if swap.is_back else volumes

    def work_factors(self) -> np.ndarray:
        """Factor of each trainer's time for the nodes and edges of its part."""
        work = np.array(self.nodes, dtype=np.float64) + np.array(self.edges)
        nominal = self.work or float(work.mean()) or 1.0
        factors: np.ndarray = work / nominal
        return factors

    def time_shares(self, num_swaps: int) -> np.ndarray:
        """Share of a trainer's time before the first swap, then during and after each.

        Without a measurement all times between swaps are equal.
        """
        if self.shares:
            return np.array(self.shares)
        shares = np.zeros(1 + 2 * num_swaps)
        shares[::2] = 1 / (1 + num_swaps)
        return shares

    def with_bins(self, bins: int) -> FullGraphFigures:
        """The same if a layer's messages are divided into bins, and computed twice if several."""
        before, after = (_BINNED_TIME if each > 1 else 1.0 for each in (self.bins or 1, bins))
        if before == after:
            return self
        work = np.array(self.nodes, dtype=np.float64) + np.array(self.edges)
        nominal = self.work or float(work.mean()) or 1.0
        return self.model_copy(update={"work": nominal * before / after, "bins": bins})

    def delays_s(self, num_swaps: int) -> np.ndarray:
        """Seconds that each swap takes beyond its transfer."""
        return np.array(self.delays) if self.delays else np.zeros(num_swaps)

    def ordered(self, parts: Sequence[int]) -> FullGraphFigures:
        """The same with other numbers of the trainers: `parts` are their numbers here."""

        def both(rows: Rows) -> Rows:
            return tuple(tuple(rows[a][b] for b in parts) for a in parts)

        return self.model_copy(
            update={
                "nodes": tuple(self.nodes[part] for part in parts),
                "edges": tuple(self.edges[part] for part in parts),
                "halo": both(self.halo),
                "cover": both(self.cover),
                "by_type": {
                    name: TypeRows(
                        halo=both(each.halo),
                        cover=both(each.cover),
                        sources=tuple(each.sources[part] for part in parts if each.sources),
                        destinations=tuple(
                            each.destinations[part] for part in parts if each.destinations
                        ),
                    )
                    for name, each in self.by_type.items()
                },
            }
        )


class FullGraphCandidate(Spec):
    """A number of trainers, a way to sum gradients, and bins that a plan was compared with.

    Attributes:
        trainers: Number of trainers.
        sync: `ring` or `ps`.
        bins: Bins of a layer's messages.
        time_s: Time of an epoch; none if it does not fit.
        trainer_bytes: Estimated memory of a trainer; none without a script.
        why_not: Why it does not fit; empty if it does.
    """

    trainers: Annotated[Count, Field(ge=1)]
    sync: Literal["ring", "ps"]
    bins: Annotated[Count, Field(ge=1)] = 1
    time_s: Seconds | None = None
    trainer_bytes: Bytes | None = None
    why_not: str = ""


def check_full_graph(
    swaps: Sequence[RowSwap], num_trainers: int, figures: FullGraphFigures | None
) -> FullGraphFigures:
    """The figures of a profile, if they are those of a full-graph job.

    Raises:
        SpecError: There are none, or they are of another number of trainers or of other swaps.
    """
    if figures is None:
        raise SpecError(
            "the profile does not have the rows that trainers of a full-graph job exchange",
            "plan with the partitioned graph (`--graph`), which has them",
        )
    if figures.num_trainers != num_trainers:
        raise SpecError(
            f"the job has {num_trainers} trainers, the profile parts of {figures.num_trainers}",
            "plan with the partitioned graph (`--graph`), or use as many trainers",
        )
    unknown = sorted({swap.edges for swap in swaps} - figures.by_type.keys() - {""})
    if unknown:
        raise SpecError(
            f"the graph has no edge type {unknown[0]!r} with rows between trainers",
            f"use one of {', '.join(figures.by_type)}"
            if figures.by_type
            else "omit `edges`, as the graph has one edge type",
        )
    if figures.shares and len(figures.shares) != 1 + 2 * len(swaps):
        raise SpecError(
            f"the job has {len(swaps)} swaps, the profile was measured with {len(figures.swaps)}",
            "omit the job's swaps to use those of the profile, or measure again",
        )
    return figures


def omit_unset(written: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Leave out fields that are not set, which keeps fingerprints of older files."""
    return {k: v for k, v in written.items() if k not in names or v not in (None, (), [], {}, "")}
