"""Figures from a script to a display, and alone."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.runtime.protocol.run_context import CONTEXT_VARIABLE, RunContext
from headrace.runtime.protocol.trainer_messages import (
    BatchProgress,
    BatchRequested,
    CheckpointWrite,
    Inbox,
    Message,
    NonFinite,
    Note,
    NumEpochs,
    Report,
    Waiting,
    decode,
    encode,
    line_of,
    send,
)
from headrace.runtime.trainer.report import report


@pytest.fixture
def folder() -> Iterator[Path]:
    # Paths of sockets are short, those of pytest's folders may not be.
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_alone_a_report_is_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CONTEXT_VARIABLE, raising=False)
    report(epoch=3, loss=np.float32(0.5), accuracy=0.791234, note="fine")
    assert capsys.readouterr().out == "epoch 3  loss 0.5  accuracy 0.7912  note fine\n"


def test_in_a_run_a_report_is_a_message(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox(folder / "messages")
    context = RunContext(machine="m1", messages=folder / "messages")
    (folder / "context.json").write_text(context.model_dump_json())
    monkeypatch.setenv(CONTEXT_VARIABLE, str(folder / "context.json"))
    report(epoch=1, auc=float("nan"))
    report(epoch=2, loss=1)
    first, second = inbox.receive(1)
    assert first == Report({"epoch": 1, "auc": "nan"})
    assert second == Report({"epoch": 2, "loss": 1})
    assert list(inbox.receive(0)) == []
    inbox.close()


def test_nobody_listens_and_nothing_happens(folder: Path) -> None:
    send(folder / "nobody", Note("no listener"))


def test_whoever_reports_often_does_not_wait_for_whoever_asks(folder: Path) -> None:
    inbox = Inbox(folder / "messages")
    # With a queue of ten and nobody who takes, each further one would be lost after a second.
    for number in range(200):
        send(folder / "messages", NumEpochs(number))
    assert list(inbox.receive(1)) == [NumEpochs(number) for number in range(200)]
    inbox.close()


def test_what_is_no_message_is_left_out(folder: Path) -> None:
    inbox = Inbox(folder / "messages")
    send(folder / "messages", Note("first"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.sendto(b"{", os.fspath(folder / "messages"))
        other.sendto(b"[1]", os.fspath(folder / "messages"))
        other.sendto(b"[" * 5000, os.fspath(folder / "messages"))
        for text in ('{"text": "x"}', '{"kind": "later"}', '{"kind": "note"}', '{"kind": []}'):
            other.sendto(text.encode(), os.fspath(folder / "messages"))
    send(folder / "messages", Note("last"))
    assert list(inbox.receive(1)) == [Note("first"), Note("last")]
    inbox.close()


@pytest.mark.parametrize(
    ("message", "data"),
    [
        (BatchRequested(), {"kind": "asked"}),
        (NumEpochs(None), {"kind": "epochs", "num": None}),
        (
            Waiting("store0 on m0", True),
            {"kind": "waits", "task": "store0 on m0", "is_waiting": True},
        ),
        (
            NonFinite("the reported loss", None, True),
            {"kind": "not finite", "what": "the reported loss", "step": None, "is_own": True},
        ),
        (
            BatchProgress(False, 1, 2, 3, 4.0, 0.5, {"here_s": 0.5}),
            {"kind": "batches", "trains": False, "batch": 1, "num_batches": 2, "num_samples": 3}
            | {"elapsed_s": 4.0, "waited_s": 0.5, "stages": {"here_s": 0.5}},
        ),
        (
            CheckpointWrite(7, problem="is incomplete"),
            {"kind": "checkpoint", "iteration": 7, "problem": "is incomplete", "stall_s": 0.0}
            | {"agree_s": 0.0, "write_s": 0.0, "write_cpu_s": 0.0},
        ),
    ],
)
def test_messages_are_json_objects_with_a_kind(message: Message, data: dict[str, Any]) -> None:
    assert encode(message) == data
    assert decode(data) == message


def test_only_numbers_and_texts_are_reported() -> None:
    with pytest.raises(SpecError, match="loss was reported as list"):
        report(loss=[1.0])  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="ndarray"):
        report(loss=np.zeros(3))


def test_too_much_is_said(folder: Path) -> None:
    with pytest.raises(SpecError, match="bytes were reported"):
        send(folder / "messages", Note("x" * 70_000))


def test_a_line_keeps_whole_numbers_whole() -> None:
    assert line_of({"epoch": 123456, "loss": 123456.0}) == "epoch 123456  loss 1.235e+05"
