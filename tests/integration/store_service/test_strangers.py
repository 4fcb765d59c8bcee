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
from headrace.graph.store.client import StoreClient
from headrace.rpc.channel import FlightChannel
from headrace.rpc.credentials import Authority, Credentials, Secret
from headrace.rpc.errors import StoreError
from headrace.rpc.framing import encode_request
from tests.integration.store_service.raw_calls import call, tls_context
from tests.integration.store_service.store_process import (
    GIANT_BYTES,
    MOST_GIANT_BYTES,
    Peak,
    SamplerProcess,
    ServingProcess,
    StoreProcess,
    every_endpoint,
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


TOKENS = ("none", "wrong", "short", "empty", "two")


def _given(right: bytes, tokens: str) -> tuple[bytes, ...]:
    return {
        "none": (),
        "wrong": (Secret.random().reveal(),),
        "short": (right[:-1],),
        "empty": (b"",),
        "two": (right, Secret.random().reveal()),
    }[tokens]


@every_endpoint
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("tokens", TOKENS)
def test_without_the_token_every_call_is_refused(
    serving: ServingProcess, endpoint: str, tokens: str
) -> None:
    right = serving.token.reveal()
    client = serving.flight_client()
    with pytest.raises(REFUSALS, match="requires the token") as caught:
        ENDPOINTS[endpoint](client, serving.call_options(*_given(right, tokens)))
    assert right.decode() not in str(caught.value)
    client.close()


@pytest.mark.parametrize(
    "serving", [("store", "tls"), ("sampler", "tls"), ("ps", "tls")], indirect=True
)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("how", ["plain text", "no certificate", "stranger's certificate"])
def test_without_tls_every_call_is_refused(
    serving: ServingProcess, endpoint: str, how: str
) -> None:
    if how == "plain text":
        client = serving.flight_client(None, "grpc+tcp")
    elif how == "no certificate":
        client = serving.flight_client(None)
    else:
        client = serving.flight_client(_stranger().issue("sampler 0"))
    with pytest.raises(REFUSALS, match="failed to connect"):
        ENDPOINTS[endpoint](client, serving.call_options(serving.token.reveal()))
    client.close()


def _stranger() -> Authority:
    return Authority(datetime.now(UTC), timedelta(hours=1))


@every_endpoint
@pytest.mark.parametrize("endpoint", sorted(ENDPOINTS.keys() - {"DoExchange"}))
def test_with_the_token_other_calls_are_refused_too(serving: ServingProcess, endpoint: str) -> None:
    client = serving.flight_client()
    for _ in range(50):
        with pytest.raises(REFUSALS):
            ENDPOINTS[endpoint](client, serving.call_options(serving.token.reveal()))
    serving.ping()
    client.close()


@every_endpoint
@pytest.mark.parametrize("name", ["PollFlightInfo", "Invented"])
def test_calls_that_python_cannot_make_are_refused(
    serving: ServingProcess, tmp_path: Path, name: str
) -> None:
    right = serving.token.reveal()
    own = serving.authority.issue("sampler 0")
    context = tls_context(serving, own, tmp_path) if serving.tls else None
    for tokens in TOKENS:
        said = call(serving, name, _given(right, tokens), context)
        # gRPC does not even look at the headers of a call that nobody serves.
        assert (b"requires the token" if name == "PollFlightInfo" else b"grpc-status") in said
        assert right not in said
    assert b"grpc-status\x0212" in call(serving, name, (right,), context), "it is implemented"
    if serving.tls:
        for stranger in (None, tls_context(serving, None, tmp_path)):
            assert b"grpc-status" not in call(serving, name, (right,), stranger)
    serving.ping()


@pytest.mark.parametrize("serving", [("store", "plain"), ("sampler", "plain")], indirect=True)
def test_a_large_message_of_a_stranger_is_not_kept(serving: ServingProcess) -> None:
    client = serving.flight_client()
    before, peak = serving.memory_bytes, Peak(serving)
    with peak, pytest.raises(REFUSALS):
        list(client.do_action(("x", bytes(GIANT_BYTES)), serving.call_options()))
    assert peak.bytes - before < MOST_GIANT_BYTES
    client.close()


def test_clients_learn_why_they_are_refused(stores: list[StoreProcess]) -> None:
    store = stores[0]
    own = store.client_credentials
    with pytest.raises(StoreError, match="store 0 on m7 rejected this client: the token"):
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


def test_nobody_can_pretend_to_be_a_sampler(samplers: list[SamplerProcess]) -> None:
    stranger = Credentials(Secret.random(), _stranger().issue("trainer 0"))
    with pytest.raises(StoreError, match="is gone"):
        FlightChannel(samplers[0].address, stranger)


@every_endpoint
def test_the_token_is_nowhere_to_be_read(serving: ServingProcess) -> None:
    channel = FlightChannel(serving.address, serving.client_credentials)
    token = serving.token.reveal()
    process = Path(f"/proc/{serving.process.pid}")
    for name in ("cmdline", "environ"):
        assert token not in (process / name).read_bytes()
    assert token.decode() not in serving.log
    assert token.decode() not in f"{channel!r}{vars(channel)}{vars(StoreClient(channel))}"
    channel.close()


@pytest.mark.parametrize(
    "module", ["graph.store", "graph.sampler_worker", "training.parameter_server"]
)
def test_nothing_listens_without_a_certificate(folder: Path, tmp_path: Path, module: str) -> None:
    Credentials(Secret.random()).save(tmp_path / "keys")
    ready = str(tmp_path / "ready")
    config: dict[str, Any] = {"graph": str(folder), "credentials": str(tmp_path / "keys")}
    if module == "graph.store":
        config |= {"part": 0, "ready": ready}
    elif module == "training.parameter_server":
        config = {"credentials": config["credentials"], "num_trainers": 1, "ready": ready}
    else:
        sizes = {"seeds_per_iteration": 1, "batches_per_epoch": 1, "fanouts": []}
        config |= {"node_type": "node", "seeds": "none", "listen": {"ready": ready}, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", f"headrace.{module}", "--config"]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [*command, tmp_path / "config.json"], stdin=subprocess.PIPE, stderr=log
        ) as process,
    ):
        assert process.wait(120) == SpecError.exit_code
    said = (tmp_path / "log").read_text()
    assert "TLS is on" in said
    assert "Traceback" not in said
