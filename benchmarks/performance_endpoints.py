"""What the performance page shows of crowds, wrong requests, indices and simulated runs."""

from __future__ import annotations

from benchmarks.performance_format import Result, Table, by_name, figures


def crowds(result: Result) -> Table:
    """Silent connections against every listener."""
    return [
        *figures(
            result,
            ("silent connections from two machines, to each listener", "connections", ""),
            ("requests of the run that were not answered", "unanswered", ""),
            ("largest error of a limit in seconds", "worst_limit_error", "%"),
        ),
        *by_name(
            result, "listeners", "request with a new connection",
            ("alone, median", "alone/p50_ms", "ms"),
            ("99 %", "alone/p99_ms", "ms"),
            ("beside the crowd, median", "beside/p50_ms", "ms"),
            ("99 %", "beside/p99_ms", "ms"),
            ("limit for silence", "limits/handshake/limit_s", "s"),
            ("the last was closed after", "limits/handshake/longest_s", "s"),
            ("closed for others", "evicted", ""),
        ),
    ]  # fmt: skip


def fuzz(result: Result) -> Table:
    """Wrong requests to every endpoint."""
    return [
        *figures(
            result,
            ("requests with random mistakes", "num_requests", ""),
            ("exceptions that nobody handled", "traceback", ""),
            ("processes that ended", "crash", ""),
            ("silent changes of state", "silent", ""),
        ),
        *by_name(
            result, "endpoints", "endpoint",
            ("requests", "requests", ""), ("refused", "refused", ""), ("answered", "answered", ""),
            ("ignored", "ignored", ""), ("closed", "cut", ""),
        ),
    ]  # fmt: skip


def bounds(result: Result) -> Table:
    """Kernels with their indices checked."""
    return figures(
        result,
        ("tests of packages with kernels", "tests", ""),
        ("requests with random mistakes", "requests", ""),
        ("indices outside of an array", "outside", ""),
    )


def simulation(result: Result) -> Table:
    """Disturbed runs in virtual time."""
    return [
        *figures(
            result,
            ("simulated runs", "seeds", ""),
            ("faults that found a victim", "faults", ""),
            ("simulated time", "virtual_hours", "hours"),
            ("runs that failed and are open", "open", ""),
            ("CPU time of a run", "seconds_per_seed", "s"),
            ("lines of the controller that ran", "coverage/percent/controller", "of 100"),
            ("lines of recovery", "coverage/percent/recovery", "of 100"),
            ("lines of checkpointing", "coverage/percent/checkpointing", "of 100"),
            ("lines of channels", "coverage/percent/channels", "of 100"),
        ),
    ]


def planted(result: Result) -> Table:
    """Mistakes that simulated runs find."""
    return figures(
        result,
        ("planted mistakes that were found", "caught", ""),
        ("not found", "missed", ""),
    )
