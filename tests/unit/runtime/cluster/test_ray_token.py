"""A cluster that asks for a token is told from one that is not there."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.core.errors import SpecError
from headrace.runtime.cluster import ray_token

TOKEN = "0123456789abcdef"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes | None]:
    """A cluster that takes one token, and all tokens that it was shown."""
    shown: list[bytes | None] = []

    def is_refused(host: str, port: int, token: bytes | None) -> bool:
        shown.append(token)
        return token != TOKEN.encode()

    monkeypatch.setattr(ray_token, "_is_refused", is_refused)
    return shown


def problem(environment: dict[str, str]) -> str:
    with pytest.raises(SpecError) as caught:
        ray_token.check_token("m0", 6379, environment)
    assert "RAY_AUTH_TOKEN_PATH" in caught.value.remedy
    return caught.value.problem


def test_a_cluster_without_tokens_is_shown_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_token, "_is_refused", lambda host, port, token: token is not None)
    ray_token.check_token("m0", 6379, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN})


def test_the_token_of_the_file_is_taken(sent: list[bytes | None], tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)}
    ray_token.check_token("m0", 6379, environment)
    assert sent == [None, TOKEN.encode()]
    file.write_text("another")
    assert f"rejects the token in {file}" in problem(environment | {"RAY_AUTH_TOKEN": " "})


def test_a_token_is_not_shown_to_a_cluster_unless_ray_would(sent: list[bytes | None]) -> None:
    said = problem({"RAY_AUTH_TOKEN": TOKEN})
    assert said == "the Ray cluster at m0:6379 requires a token, and RAY_AUTH_MODE is not set"
    assert "RAY_AUTH_MODE is 'disabled'" in problem({"RAY_AUTH_MODE": "disabled"})
    assert sent == [None, None]


def test_a_missing_token_is_told(sent: list[bytes | None], tmp_path: Path) -> None:
    named = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")}
    assert f"there is none in {tmp_path / 'none'} (No such file" in problem(named)


def test_a_missing_token_in_the_home_is_told(
    sent: list[bytes | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    said = problem({"RAY_AUTH_MODE": "token"})
    assert str(tmp_path / ".ray" / "auth_token") in said


def test_a_wrong_token_is_told_and_not_shown(sent: list[bytes | None]) -> None:
    said = problem({"RAY_AUTH_MODE": "TOKEN", "RAY_AUTH_TOKEN": "abc123"})
    assert said == "the Ray cluster at m0:6379 rejects the token in RAY_AUTH_TOKEN"
    assert "abc123" not in said


@pytest.mark.parametrize(
    ("length", "head"), [(126, "7e"), (127, "7f00"), (254, "7f7f"), (255, "7f8001")]
)
def test_lengths_are_written_as_http2_wants_them(length: int, head: str) -> None:
    # RFC 7541, section 5.1, with a prefix of seven bits.
    assert ray_token._text(b"x" * length) == bytes.fromhex(head) + b"x" * length


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        (b"\0\0\x20\1\5\0\0\0\1@\x0bgrpc-status\x0216", True),
        (b"\0\0\x20\1\5\0\0\0\1@\x0bgrpc-status\x010", False),
        (b"\x15\3\1\0\2\2\x16", False),
        (b"", False),
        (bytes(1 << 20), False),
    ],
    ids=["refused", "welcome", "tls", "closed", "endless"],
)
def test_only_a_refusal_counts_as_one(
    said: bytes, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr("socket.create_connection", lambda place, timeout_s: ours)

    def answer() -> None:
        with theirs, suppress(OSError):
            asked = b""
            while b"GetClusterId" not in asked:
                asked += theirs.recv(1 << 16)
            theirs.sendall(said)

    server = threading.Thread(target=answer)
    server.start()
    assert ray_token._is_refused("m0", 6379, b"x" * 300) is refused
    server.join()
