"""Nobody gets in without the token, and the run's certificate where there is TLS."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from headrace.core.errors import SpecError
from headrace.graph.service.client import StoreClient
from headrace.graph.service.errors import StoreError
from headrace.graph.service.messages import encode_request
from headrace.graph.service.security import Authority, Credentials, Secret
from tests.integration.store_service.store_process import (
    MEBIBYTE,
    Peak,
    StoreProcess,
    running,
)

pytestmark = pytest.mark.integration

DESCRIPTOR = flight.FlightDescriptor.for_path("x")


def _do_put(client: Any, options: Any) -> None:
    writer, _ = client.do_put(DESCRIPTOR, pa.schema([("a", pa.int8())]), options)
    writer.write_batch(pa.record_batch({"a": pa.array([1], pa.int8())}))
    writer.close()


def _do_exchange(client: Any, options: Any) -> None:
    writer, reader = client.do_exchange(DESCRIPTOR, options)
    writer.begin(pa.schema([]))
    writer.write_metadata(encode_request(1, {"op": "ping"}, []))
    reader.read_chunk()


class _Handshake(flight.ClientAuthHandler):  # type: ignore[misc]
    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        outgoing.write(b"let me in")
        incoming.read()

    def get_token(self) -> bytes:
        return b""


ENDPOINTS: dict[str, Callable[[Any, Any], object]] = {
    "Handshake": lambda client, options: client.authenticate(_Handshake(), options),
    "ListFlights": lambda client, options: list(client.list_flights(b"", options)),
    "GetFlightInfo": lambda client, options: client.get_flight_info(DESCRIPTOR, options),
    "GetSchema": lambda client, options: client.get_schema(DESCRIPTOR, options),
    "DoGet": lambda client, options: client.do_get(flight.Ticket(b"x"), options).read_all(),
    "DoPut": _do_put,
    "DoAction": lambda client, options: list(client.do_action(("x", b""), options)),
    "ListActions": lambda client, options: client.list_actions(options),
    "DoExchange": _do_exchange,
}
REFUSALS = (flight.FlightError, pa.ArrowException, OSError, NotImplementedError)


@pytest.mark.parametrize("which", [0, 1], ids=["tls", "plain"])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("tokens", ["none", "wrong", "short", "empty", "two"])
def test_without_the_token_every_endpoint_refuses(
    stores: list[StoreProcess], which: int, endpoint: str, tokens: str
) -> None:
    store = stores[which]
    right = store.token.reveal()
    given = {
        "none": (),
        "wrong": (Secret.random().reveal(),),
        "short": (right[:-1],),
        "empty": (b"",),
        "two": (right, Secret.random().reveal()),
    }[tokens]
    client = store.flight_client()
    with pytest.raises(REFUSALS, match="needs the token") as caught:
        ENDPOINTS[endpoint](client, store.call_options(*given))
    assert right.decode() not in str(caught.value)
    client.close()


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("how", ["plain text", "no certificate", "stranger's certificate"])
def test_without_tls_every_endpoint_refuses(
    stores: list[StoreProcess], endpoint: str, how: str
) -> None:
    store = stores[0]
    if how == "plain text":
        client = store.flight_client(None, "grpc+tcp")
    elif how == "no certificate":
        client = store.flight_client(None)
    else:
        client = store.flight_client(_stranger().issue("sampler 0"))
    with pytest.raises(REFUSALS, match="failed to connect"):
        ENDPOINTS[endpoint](client, store.call_options(store.token.reveal()))
    client.close()


def _stranger() -> Authority:
    return Authority(datetime.now(UTC), timedelta(hours=1))


@pytest.mark.parametrize("which", [0, 1], ids=["tls", "plain"])
@pytest.mark.parametrize("endpoint", sorted(ENDPOINTS.keys() - {"DoExchange"}))
def test_with_the_token_other_endpoints_refuse_too(
    stores: list[StoreProcess], clients: list[StoreClient], which: int, endpoint: str
) -> None:
    client = stores[which].flight_client()
    for _ in range(50):
        with pytest.raises(REFUSALS):
            ENDPOINTS[endpoint](client, stores[which].call_options(stores[which].token.reveal()))
    clients[which].status()
    client.close()


def test_a_large_message_of_a_stranger_is_not_kept(stores: list[StoreProcess]) -> None:
    store = stores[1]
    client = store.flight_client()
    before, peak = store.memory_bytes, Peak(store)
    with peak, pytest.raises(REFUSALS):
        list(client.do_action(("x", bytes(200 * MEBIBYTE)), store.call_options()))
    assert peak.bytes - before < 300 * MEBIBYTE
    client.close()


def test_clients_learn_why_they_are_refused(stores: list[StoreProcess]) -> None:
    store = stores[0]
    own = store.client_credentials
    with pytest.raises(StoreError, match="store 0 on m7 refuses us: it needs the token"):
        StoreClient.connect(store.address, Credentials(Secret.random(), own.identity))
    for credentials in (Credentials(own.token), Credentials(own.token, _stranger().issue("x"))):
        with pytest.raises(StoreError, match="store 0 on m7 is gone") as caught:
            StoreClient.connect(store.address, credentials)
        assert own.token.reveal().decode() not in str(caught.value)


def test_nobody_can_pretend_to_be_a_store(folder: Path, tmp_path: Path) -> None:
    with running(tmp_path / "other", folder) as impostor:
        stranger = Credentials(Secret.random(), _stranger().issue("sampler 0"))
        with pytest.raises(StoreError, match="is gone"):
            StoreClient.connect(impostor.address, stranger)


def test_the_token_is_nowhere_to_be_read(
    stores: list[StoreProcess], clients: list[StoreClient]
) -> None:
    for store, client in zip(stores, clients, strict=True):
        client.status()
        token = store.token.reveal()
        process = Path(f"/proc/{store.process.pid}")
        for name in ("cmdline", "environ"):
            assert token not in (process / name).read_bytes()
        assert token.decode() not in store.log
        assert token.decode() not in f"{client!r}{vars(client)}{vars(client._channel)}"


def test_a_store_without_a_certificate_does_not_start(folder: Path, tmp_path: Path) -> None:
    Credentials(Secret.random()).save(tmp_path / "keys")
    config = {
        "graph": str(folder),
        "part": 0,
        "credentials": str(tmp_path / "keys"),
        "ready": str(tmp_path / "ready"),
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "headrace.graph.service", "--config", tmp_path / "config.json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == SpecError.exit_code
    assert "TLS is on" in done.stderr
    assert "Traceback" not in done.stderr
