"""Server of a graph store."""

from __future__ import annotations

from collections.abc import Callable

from headrace.graph.store.embedding_service import Embeddings
from headrace.graph.store.page_cache import PageCacheWarmer
from headrace.graph.store.service import StoreService
from headrace.graph.store.shard import Shard
from headrace.rpc.config import RpcLimits
from headrace.rpc.credentials import Credentials
from headrace.rpc.server import RpcServer


class StoreServer(RpcServer):
    """Serves one graph partition until closed; see `StoreConfig` for the options."""

    def __init__(
        self,
        shard: Shard,
        credentials: Credentials,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: RpcLimits | None = None,
        warm: bool = True,
        clock: Callable[[], float] | None = None,
        embeddings: Embeddings | None = None,
    ) -> None:
        limits = limits or RpcLimits()
        files = [file for rows in shard.rows.values() for file in rows.files]
        self._warmer = PageCacheWarmer(files if warm else [])
        operations = StoreService(shard, limits, self._warmer, clock, embeddings)
        operations.prepare()
        super().__init__(operations, credentials, host, port, limits)
        self._warmer.start()

    def close(self) -> None:
        """Stop serving; open streams end with an error."""
        self._warmer.close()
        super().close()
