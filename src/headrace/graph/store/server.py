"""The server of a graph store."""

from __future__ import annotations

from collections.abc import Callable

from headrace.graph.store.embedding_service import Embeddings
from headrace.graph.store.page_cache import PageCacheWarmer
from headrace.graph.store.service import StoreService
from headrace.graph.store.shard import Shard
from headrace.rpc.credentials import Credentials
from headrace.rpc.limits import RpcLimits
from headrace.rpc.server import RpcServer


class StoreServer(RpcServer):
    """Serves one part of a graph until it is closed.

    Args:
        shard: The part.
        credentials: Who may ask; see `RpcServer`.
        host: Address to listen on.
        port: 0 for any that is free; see `port`.
        limits: What clients may ask for.
        warm: Whether to read the part's files into memory, in the background.
        clock: Seconds, for answers that say how long they took.
        sockets: Whether to offer a bare socket beside Flight.
        embeddings: Learnable rows of the part; none to have no such rows.
    """

    def __init__(
        self,
        shard: Shard,
        credentials: Credentials,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: RpcLimits | None = None,
        warm: bool = True,
        clock: Callable[[], float] | None = None,
        sockets: bool = False,
        embeddings: Embeddings | None = None,
    ) -> None:
        limits = limits or RpcLimits()
        files = [rows.file for rows in shard.rows.values() if rows.file is not None]
        self._warmer = PageCacheWarmer(files if warm else [])
        operations = StoreService(shard, limits, self._warmer, clock, embeddings)
        operations.prepare()
        super().__init__(operations, credentials, host, port, limits, sockets)
        self._warmer.start()

    def close(self) -> None:
        """Stop serving; streams that are open end with an error."""
        self._warmer.close()
        super().close()
