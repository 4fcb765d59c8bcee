"""IMDB and LastFM as Parquet tables of the `graphdatascience` package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.schema import Column, EdgeTable, EdgeType, GraphSource, NodeTable
from headrace.graph.sources.arrays import both_ways, random_splits, split_note
from headrace.graph.sources.arrow_files import TableFiles
from headrace.graph.sources.keys import Keys

SHARES = (0.6, 0.2, 0.2)


def is_gds(folder: Path) -> bool:
    """Whether a folder holds these tables."""
    return (folder / "imdb_actors.parquet.gzip").exists()


def from_gds(folder: Path, name: str, seed: int) -> GraphSource:
    """Read the graph `imdb` or `lastfm`; the seed determines the splits."""
    if name not in GRAPHS:
        raise SpecError(f"{folder} has no graph {name}", f"choose one of {', '.join(GRAPHS)}")
    return GRAPHS[name](folder, seed)


def imdb(folder: Path, seed: int) -> GraphSource:
    """Movies, actors and directors with keywords; the label of a movie is its genre, or -1."""
    labelled = _table(folder, "imdb_movies_with_genre")
    movies = _table(folder, "imdb_movies_with_genre", "imdb_movies_without_genre")
    genres = labelled.column("y", ["genre"]).read(0, labelled.num_rows)
    y = np.full(movies.num_rows, -1, np.int64)
    y[: len(genres)] = genres
    tables = {
        "movie": movies,
        "actor": _table(folder, "imdb_actors"),
        "director": _table(folder, "imdb_directors"),
    }
    nodes = []
    for kind, table in tables.items():
        x = table.column("x", ["plot_keywords"], narrow=True)
        is_movie = kind == "movie"
        splits = random_splits(np.arange(len(genres)), SHARES, seed) if is_movie else {}
        columns = (x, Column.of("y", y)) if is_movie else (x,)
        nodes.append(NodeTable(kind, table.num_rows, columns, splits))
    keys = {kind: Keys(table, "nodeId") for kind, table in tables.items()}
    edges = (
        _edges(_table(folder, "imdb_acted_in"), ("actor", "acted_in", "movie"), keys),
        _edges(_table(folder, "imdb_directed_in"), ("director", "directed_in", "movie"), keys),
    )
    return GraphSource("imdb", tuple(nodes), both_ways(edges), note=split_note(SHARES, seed))


def lastfm(folder: Path, seed: int) -> GraphSource:
    """Users, the artists they listened to and tagged, and friends; no features or labels."""
    del seed
    tables = {"user": _table(folder, "user_nodes"), "artist": _table(folder, "artist_nodes")}
    keys = {kind: Keys(table, "nodeId") for kind, table in tables.items()}
    friends = _table(folder, "user_friend_df_directed")
    listened = _table(folder, "user_listen_artist_rels")
    tagged = _table(folder, "user_tag_artist_rels")
    weight = listened.column("edge_weight", ["weight"])
    tag = (tagged.column("tag", ["tagID"]), tagged.column("time", ["timestamp"]))
    edges = (
        _edges(friends, ("user", "friend", "user"), keys),
        _edges(listened, ("user", "listened_to", "artist"), keys, (weight,)),
        _edges(tagged, ("user", "tagged", "artist"), keys, tag),
    )
    nodes = tuple(NodeTable(kind, table.num_rows) for kind, table in tables.items())
    return GraphSource("lastfm", nodes, both_ways(edges))


GRAPHS: dict[str, Callable[[Path, int], GraphSource]] = {"imdb": imdb, "lastfm": lastfm}


def _table(folder: Path, *names: str) -> TableFiles:
    return TableFiles([folder / f"{name}.parquet.gzip" for name in names], f"table {names[0]}")


def _edges(
    table: TableFiles, edge_type: EdgeType, keys: dict[str, Keys], columns: tuple[Column, ...] = ()
) -> EdgeTable:
    def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for row, batch in table.batches(["sourceNodeId", "targetNodeId"]):
            src = keys[edge_type[0]].rows(batch.column(0), table, "sourceNodeId", row)
            dst = keys[edge_type[2]].rows(batch.column(1), table, "targetNodeId", row)
            yield src, dst

    return EdgeTable(edge_type, table.num_rows, chunks, columns)
