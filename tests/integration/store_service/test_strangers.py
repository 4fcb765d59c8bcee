"""Nobody gets in without the token, and the run's certificate where there is TLS."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import SpecError
from headrace.graph.store.client import StoreClient
from headrace.rpc.client import RpcChannel
from headrace.rpc.connection import LENGTH, WRONG_TOKEN
from headrace.rpc.credentials import Authority, Credentials, Identity, Secret
from headrace.rpc.errors import StoreError
from headrace.rpc.framing import encode_request
from tests.integration.store_service.store_process import (
    MEBIBYTE,
    Peak,
    RawStream,
    SamplerProcess,
    ServingProcess,
    StoreProcess,
    every_endpoint,
    is_cut,
    running,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

PING = encode_request(1, {"op": "ping"}, [])
every_endpoint_with_tls = pytest.mark.parametrize(
    "serving", [("store", "tls"), ("sampler", "tls"), ("ps", "tls")], ids="-".join, indirect=True
)


@every_endpoint
@pytest.mark.parametrize("how", ["wrong", "short", "long"])
def test_another_token_is_refused(serving: ServingProcess, how: str) -> None:
    right = serving.token.reveal()
    token = {"wrong": Secret.random().reveal(), "short": right[:-1], "long": right + b"A"}[how]
    stranger = RawStream(serving, token)
    assert stranger.verdict == WRONG_TOKEN
    stranger.send(PING)
    assert stranger.is_cut()
    stranger.close()
    assert right.decode() not in serving.log


@every_endpoint
@pytest.mark.parametrize(
    "greeting",
    [
        LENGTH.pack(0),
        LENGTH.pack(2**32 - 1) + bytes(1000),
        LENGTH.pack(257) + bytes(257),
        b"GET / HTTP/1.1\r\nHost: store\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64),
        LENGTH.pack(len(PING)) + PING,
    ],
    ids=["empty", "giant", "too long", "http/1", "http/2", "request"],
)
def test_without_a_token_nothing_is_answered(serving: ServingProcess, greeting: bytes) -> None:
    with serving.connect_socket() as sock:
        said = b""
        with suppress(ConnectionError, ssl.SSLError):
            sock.sendall(greeting)
            while more := sock.recv(1 << 16):
                said += more
        assert said in (b"", WRONG_TOKEN)
    serving.ping()


@every_endpoint_with_tls
@pytest.mark.parametrize("how", ["plain text", "no certificate", "another run's certificate"])
def test_without_a_certificate_of_the_run_nobody_gets_in(serving: ServingProcess, how: str) -> None:
    trusted = serving.authority.issue("anyone").authority
    said = b""
    with ExitStack() as stack:
        sock = socket.create_connection(("127.0.0.1", serving.port), timeout=60)
        stack.enter_context(sock)
        if how != "plain text":
            context = ssl.create_default_context(cadata=trusted.decode())
            if how != "no certificate":
                own = _stranger().issue("sampler 0")
                context = Identity(own.certificate, own.key, trusted).client_context
            with suppress(ConnectionError, ssl.SSLError):
                sock = context.wrap_socket(sock, server_hostname="127.0.0.1")
                stack.enter_context(sock)
        with suppress(ConnectionError, ssl.SSLError):
            token = serving.token.reveal()
            sock.sendall(LENGTH.pack(len(token)) + token)
            # In plain text, an alert of TLS is all that is said.
            said = sock.recv(1 << 16)
            said += sock.recv(1 << 16)
    assert b"HRW" not in said
    serving.ping()


@every_endpoint_with_tls
def test_older_versions_of_tls_which_renegotiate_are_refused(serving: ServingProcess) -> None:
    context = serving.authority.issue("sampler 0").client_context
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", serving.port), timeout=60) as sock,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(sock, server_hostname="127.0.0.1")
    serving.ping()


@every_endpoint_with_tls
def test_a_slow_tls_handshake_is_cut(serving: ServingProcess) -> None:
    context = serving.authority.issue("sampler 0").client_context
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    half = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        half.do_handshake()
    hello = outgoing.read()
    with socket.create_connection(("127.0.0.1", serving.port), timeout=60) as sock:
        cut = False
        for byte in hello[:-1]:
            try:
                sock.sendall(bytes([byte]))
                sock.settimeout(0.1)
                cut = not sock.recv(1)
            except TimeoutError:
                continue
            except ConnectionError:
                cut = True
            if cut:
                break
        assert cut
    serving.ping()


def _stranger() -> Authority:
    return Authority()


@pytest.mark.parametrize("which", [0, 1], ids=["tls", "plain"])
def test_a_crowd_of_strangers_does_not_keep_others_out(
    stores: list[StoreProcess], which: int
) -> None:
    store = stores[which]
    before, peak = store.memory_bytes, Peak(store)
    crowd: list[socket.socket] = []
    with peak:
        for number in range(5000):
            crowd.append(socket.create_connection(("127.0.0.1", store.port), timeout=60))
            if number % 500 == 0:
                store.ping()
            # This side may have fewer files than the other.
            if len(crowd) == 500:
                crowd.pop(0).close()
        store.ping()
    for sock in crowd:
        assert is_cut(sock)
        sock.close()
    assert eventually(lambda: store.num_files < 100)
    assert peak.bytes - before < 64 * MEBIBYTE
    store.ping()


def test_a_crowd_leaves_most_descriptors_to_clients(folder: Path, tmp_path: Path) -> None:
    crowd: list[socket.socket] = []
    with running(tmp_path / "own", folder, max_files=256) as store:
        idle = store.num_files
        for _ in range(400):
            crowd.append(socket.create_connection(("127.0.0.1", store.port), timeout=60))
            assert store.num_files <= idle + 100
        store.ping()
        for sock in crowd:
            sock.close()
        assert "Too many open files" not in store.log


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
        RpcChannel(samplers[0].address, stranger)


@every_endpoint
def test_the_token_is_nowhere_to_be_read(serving: ServingProcess) -> None:
    channel = RpcChannel(serving.address, serving.client_credentials)
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
