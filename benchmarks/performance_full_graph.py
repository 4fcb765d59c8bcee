"""What the performance page shows of full-graph training: part of `performance_page.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.performance_format import Result, Table, by_name, figures


def full_graph(result: Result) -> Table:
    """Gradients, bytes, time, memory and accuracy of full-graph training."""
    return [
        *figures(
            result,
            ("largest error of gradients on 2, 3 and 4 parts", "gradients/largest", ""),
            ("bytes per epoch equal those from the partition", "bytes/is_exact", ""),
        ),
        *by_name(
            result, "cover/graphs", "rows between 16 parts",
            ("with partial sums, of the halo's", "rows", ""),
            ("fullest part, halo", "halo/received", ""),
            ("with partial sums", "cover/received", ""),
            ("sent, over the mean", "cover/sent_balance", ""),
        ),
        *by_name(
            result, "features/graphs", "rows of the busiest of 16 parts, for a sum",
            ("halo", "16/halo", ""),
            ("with partial sums", "16/cover", ""),
            ("divided by features", "16/columns", ""),
            ("... at 4 parts, with partial sums", "4/cover", ""),
            ("... at 4 parts, divided by features", "4/columns", ""),
        ),
        *figures(
            result,
            ("largest error of gradients, divided by features", "features/largest", ""),
            ("bytes per epoch equal those computed", "features/is_exact", ""),
            ("an epoch of random parts, rows", "parallelism/ways/rows/epoch_s", "s"),
            ("... divided by features", "parallelism/ways/features/epoch_s", "s"),
        ),
        *by_name(
            result, "balance/graphs", "rows of the fullest of 16 parts",
            ("ranges of ids", "chunks/received", ""),
            ("METIS", "metis/received", ""),
            ("METIS and G3's swaps", "swaps/received", ""),
            ("`headrace partition`", "headrace/received", ""),
            ("over the mean", "headrace/received_balance", ""),
            ("sent, over the mean", "headrace/sent_balance", ""),
        ),
        *by_name(
            result, "accuracy/graphs", "accuracy, 4 parts",
            ("parts", "parts", ""), ("PyG in one process", "alone", ""),
            ("points", "points", ""), ("standard error", "standard_error", ""),
        ),
        *(line for name in _inside(result, "speed") for line in _speed(result, name)),
        *(line for name in _inside(result, "approximate") for line in _approximate(result, name)),
        *figures(
            result,
            ("GAT on Amazon-Computers: peak without bins", "memory/peak_bytes", "bytes"),
            ("... estimated", "memory/estimated_bytes", "bytes"),
            ("with 32 bins", "memory/binned_peak_bytes", "bytes"),
            ("... estimated", "memory/binned_estimated_bytes", "bytes"),
            ("under a limit of", "memory/limit_bytes", "bytes"),
            ("... it is killed without bins", "memory/whole_is_killed", ""),
            ("... it trains with bins", "memory/binned_trains", ""),
            ("killed runs", "kills/num", ""),
            ("... with the same parameters to the last bit", "kills/num_same", ""),
        ),
        *by_name(
            result, "testbed/graphs", "4 shaped machines",
            ("cards, Mbit/s", "rate_mbit", ""),
            ("an epoch, no overlap", "epoch_s/none", "s"),
            ("sums of own rows meanwhile", "epoch_s/sums", "s"),
            ("row groups", "epoch_s/groups", "s"),
            ("bins", "epoch_s/bins", "s"),
            ("... times faster", "times_faster/bins", ""),
            ("bins in matchings", "epoch_s/bins-matchings", "s"),
            ("... times faster", "times_faster/bins-matchings", ""),
            ("predicted over measured", "prediction/bins-matchings/predicted_over_measured", ""),
            ("computing over exchange", "computing_over_exchange", ""),
            ("wire over payload", "wire_over_payload", ""),
            ("fullest card over iperf3", "busiest_over_iperf", ""),
        ),
        *figures(
            result,
            ("random exchanges on 4 shaped machines", "testbed/exchanges/num", ""),
            ("... at once, over the bound", "testbed/exchanges/over_bound/at_once/mean", ""),
            ("... in matchings", "testbed/exchanges/over_bound/matchings/mean", ""),
        ),
    ]  # fmt: skip


def _inside(result: Result, part: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (result.get(part) or {}).get("graphs", {})
    return found


def _speed(result: Result, name: str) -> Table:
    return by_name(
        result, f"speed/graphs/{name}", f"an epoch, {name}",
        ("PyG", "pyg_s", "s"), ("prepared, one process", "one_s", "s"),
        ("two trainers", "two_s", "s"),
    )  # fmt: skip


def _approximate(result: Result, name: str) -> Table:
    return by_name(
        result, f"approximate/graphs/{name}", f"approximations, {name}",
        ("bytes over exact", "bytes_over_exact", ""), ("an epoch", "epoch_s", "s"),
        ("points over exact", "gain", ""), ("standard error", "standard_error", ""),
    )  # fmt: skip
