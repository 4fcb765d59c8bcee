"""Which messages may end a run, and which faults explain them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

_MACHINE = frozenset({"kill machine", "power loss"})
_UNREACHABLE = _MACHINE | {"cut", "freeze machine"}
_SLOW = _UNREACHABLE | {"delay", "reorder", "freeze actor", "freeze driver"}
_ACTOR = _MACHINE | {"kill actor"}
_DISK = frozenset({"full disk", "full driver disk"})
_FLIPS = frozenset({"flip resume"})
_KILLS = frozenset({"kill task", "kill repeatedly"})
_SILENT = frozenset({"kill machine", "cut", "freeze machine"})
_LASTING = _SLOW - _MACHINE
_HANGS = _SLOW - {"delay", "reorder"} | {"hang trainer", "stop task"}
_TASK = r"^[\w.]+ on \w+ "
_FAILED = _TASK + r"exited with code \d+; last output: error: "
_FULL = r"[Nn]o space left on (the disk|device)"


_START_S = 15.0
"""Tasks that are started again take at least so long to fail by the same fault."""


class Names(Enum):
    """Whom a fault has to hit to explain a message."""

    FIRST = "the task or machine that the message names first"
    ENDS = "one of the two tasks that the message names, or what is between their machines"
    ANY = "any"


@dataclass(frozen=True)
class Message:
    """A message that may end a run.

    Attributes:
        pattern: What it looks like.
        kinds: Kinds of faults that explain it.
        names: Whom the faults have to hit.
    """

    pattern: str
    kinds: frozenset[str]
    names: Names = Names.FIRST


def _named(pattern: str, *kinds: str) -> Message:
    return Message(pattern, frozenset(kinds))


def _indirect(pattern: str, *kinds: str) -> Message:
    return Message(pattern, frozenset(kinds), Names.ANY)


def _between(pattern: str, *kinds: str) -> Message:
    return Message(pattern, frozenset(kinds), Names.ENDS)


MESSAGES: tuple[Message, ...] = (
    _named(_TASK + r"was ended by SIGKILL, possibly out of memory$", *_KILLS),
    _named(_TASK + r"made no progress for \d+ s, because it is stopped, and was", "stop task"),
    _indirect(_TASK + r"made no progress for \d+ s, and no task computes, and was", *_HANGS),
    # Until Ray takes a dead machine for dead, only its actors are.
    _named(
        _TASK + r"is lost: its Ray actor has died, possibly out of memory$",
        "kill actor",
        "kill machine",
    ),
    _named(_TASK + r"is lost: its Ray actor does not reply$", *_ACTOR, *_UNREACHABLE),
    _named(r"^m\d is lost with .*: its Ray node is gone$", *_MACHINE),
    _named(r"^m\d is lost.*: none of its Ray actors replies$", *_ACTOR, *_UNREACHABLE, *_SLOW),
    _named(r"is lost.*: it has not answered for \d+ s$", *_SLOW),
    _indirect(r"^m\d is lost with .*: the network is partitioned: ", *_UNREACHABLE),
    _indirect(_TASK + r"waits for .* after \d+ s", *_SLOW, "stop task", "hang trainer"),
    _indirect(r"the head of the Ray cluster does not answer$", "lose head"),
    _named(_TASK.rstrip() + r": \w+ of [\w.]+ has failed$", "fail call"),
    _named(_TASK.rstrip() + r": part-0 of store\d is damaged$", "damaged graph"),
    _named(_TASK.rstrip() + rf": \[Errno 28\] {_FULL}: ", *_DISK),
    _indirect(rf"^the run has ended, but .* cannot be stored: {_FULL}$", *_DISK),
    _indirect(
        r"^the run has ended, but the checkpoint of iteration \d+ was not fetched: ",
        *_SLOW,
        *_ACTOR,
        "flip bit",
        "flip piece",
    ),
    _named(r"^the plan needs m\d.*, which the Ray cluster does not have; its nodes: ", *_MACHINE),
    _indirect(r"^no machine of the plan is left$", *_MACHINE),
    # Resumed for a better plan, or with more machines, which another fault has prevented.
    _indirect(r": \d+ tasks? moves?, saving \d+% of an iteration$", "lose head", *_MACHINE),
    _indirect(r"^m\d(, m\d)* ha(s|ve) joined$", "lose head", *_MACHINE),
    _indirect(_FAILED + r".* a sampler: ", *_SLOW, *_ACTOR, *_KILLS, "fail call", "stop task"),
    _indirect(_FAILED + r"other trainers exited while the rows ", *_KILLS, *_SLOW, *_ACTOR),
    _named(r"^m\d has headrace 0\.0\.1, the driver ", "other version"),
    _named(r"cannot be set up: pip could not reach the package index$", "broken install"),
    _named(r"^headrace cannot be imported on m\d: ", "broken install"),
    _indirect(
        _FAILED + r"the \w+ of iteration \d+ does not match this script's: size mismatch for ",
        "change script",
    ),
    _named(_FAILED + r"ValueError: the batch is empty$", "script error"),
    _indirect(_FAILED + r"\S+ is damaged: its size or checksum is wrong$", *_FLIPS),
    _indirect(_FAILED + r"\S+ has no valid sidecar \S+$", *_FLIPS),
    _indirect(_FAILED + r".* refused to \w+: " + _FULL, *_DISK),
    _named(_FAILED + rf"\[Errno 28\] {_FULL}: ", *_DISK),
    _between(_FAILED + r"store\d on m\d did not answer \w+$", *_SILENT, "stop task"),
    _between(_FAILED + r"store\d on m\d did not accept the connection$", *_SILENT),
    _indirect(_FAILED + r"store\d on m\d is gone \(Connection reset by peer\)$", "reset"),
)
"""All of them; a message that looks like none is a problem."""

UNEXPECTED = (("and no task computes", _HANGS), ("refused to push", _DISK))
"""What a run says only because of some faults, also if it recovers from them."""

BECAUSE = (
    (r"there were \d+ (restarts of [\w.]+|resumes) since the last checkpoint", 2),
    (r"no machine is left", 1),
    (r"there is no checkpoint to resume from", 1),
    (r"it would fail again", 1),
    (r"it failed again without a new checkpoint", 1),
)
"""Why a run is not recovered, and how many faults that takes at least."""


@dataclass(frozen=True)
class Injected:
    """A fault that found a victim.

    Attributes:
        names: Tasks and machines that it hit; empty if it may hit any.
        length_s: How long it lasts, if it ends.
    """

    kind: str
    names: frozenset[str]
    length_s: float = 0.0

    @property
    def num_hits(self) -> int:
        """How many starts of all tasks it may end: one that lasts also ends the next."""
        return 1 + (int(self.length_s / _START_S) if self.kind in _LASTING else 0)


def names_in(text: str) -> list[str]:
    """Tasks and machines that a message names."""
    return re.findall(r"\b(?:m\d|driver|store\d|sampler\d\.0|trainer\d|ps\d)\b", text)


def unexpected(lines: Iterable[str], kinds: Iterable[str]) -> str:
    """A line that no kind of the injected faults explains; empty if there is none."""
    wrong = [text for text, causes in UNEXPECTED if causes.isdisjoint(kinds)]
    return next((line for line in lines if any(text in line for text in wrong)), "")


def unexplained(problem: str, faults: Iterable[Injected]) -> str:
    """Part of a message that no fault explains; empty if there is none."""
    injected = list(faults)
    cause, _, again = problem.partition(", and the run cannot be resumed: ")
    for part in (cause, again):
        cause, because = _split(part)
        if part and not any(_explains(fault, cause) for fault in injected):
            return cause
        if because and not any(
            re.fullmatch(pattern, because) and sum(each.num_hits for each in injected) >= num
            for pattern, num in BECAUSE
        ):
            return because
    return ""


def _split(problem: str) -> tuple[str, str]:
    """The cause of a failure, and why the run was not recovered."""
    found = re.fullmatch(r"(.*) \(((?:there|no|it) [^()]*)\)", problem)
    return (problem, "") if found is None else (found[1], found[2])


def _explains(fault: Injected, cause: str) -> bool:
    return any(
        fault.kind in each.kinds and _hits(fault, names_in(cause), each.names)
        for each in MESSAGES
        if re.search(each.pattern, cause)
    )


def _hits(fault: Injected, named: list[str], names: Names) -> bool:
    if names is Names.ANY or not fault.names:
        return True
    if names is Names.FIRST:
        return bool(fault.names.intersection(named[:1]))
    machines = _machines(named)
    # Nothing is between tasks of one machine.
    is_between = fault.kind != "cut" or len(machines) > 1
    return is_between and _machines(fault.names) <= machines and bool(fault.names & {*named})


def _machines(names: Iterable[str]) -> set[str]:
    return {name for name in names if re.fullmatch(r"m\d|driver", name)}
