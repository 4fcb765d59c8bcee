"""Who wants to know how far a long piece of work is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from headrace.graph.source import Column, EdgeTable, GraphSource


class Watcher(Protocol):
    """Is told when a stage begins and how much of it is done."""

    def begin(self, stage: str, total: int | None = None) -> None:
        """A stage begins; `total` is what `advance` will add up to, if that is known."""
        ...

    def advance(self, amount: int) -> None:
        """Some more of the stage is done."""
        ...


class Nobody:
    """Does not want to know."""

    def begin(self, stage: str, total: int | None = None) -> None:
        """Ignore it."""

    def advance(self, amount: int) -> None:
        """Ignore it."""


def watched(source: GraphSource, watcher: Watcher) -> GraphSource:
    """The same source, telling the watcher of every row of edges and nodes that is read."""
    return replace(
        source,
        nodes=tuple(
            replace(table, columns=tuple(_column(column, watcher) for column in table.columns))
            for table in source.nodes
        ),
        edges=tuple(_edges(table, watcher) for table in source.edges),
    )


def _edges(table: EdgeTable, watcher: Watcher) -> EdgeTable:
    def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for src, dst in table.chunks():
            yield src, dst
            watcher.advance(len(src))

    return replace(table, chunks=chunks)


def _column(column: Column, watcher: Watcher) -> Column:
    def read(start: int, stop: int) -> np.ndarray:
        rows = column.read(start, stop)
        watcher.advance(len(rows))
        return rows

    return replace(column, read=read)
