"""The section of estimated memory on the performance page."""

from __future__ import annotations

from benchmarks.performance_format import Result, Table, by_name, figures, table


def memory(result: Result) -> Table:
    """Ratios of estimated to measured memory, and errors of step times."""
    rows = (result.get("trace") or {}).get("rows", ())
    traced = [
        (row["model"], str(row["relations"]), f"{row['operations']:,.0f}", f"{row['cpu_s']:.2f}")
        for row in rows
    ]
    transfer = result.get("transfer") or {}
    kinds = {name: row for name, row in transfer.items() if "worst_error" in _mapping(row)}
    return [
        *figures(
            result,
            (
                "GCN, SAGE, GAT, GIN, RGCN: peaks of tensor memory compared",
                "allocator/exact/num",
                "",
            ),
            ("least estimated over measured", "allocator/exact/least_of_all", ""),
            ("most", "allocator/exact/most_of_all", ""),
            ("PNA, GATv2, Transformer, a model over edges: compared", "allocator/others/num", ""),
            ("least", "allocator/others/least_of_all", ""),
            ("most", "allocator/others/most_of_all", ""),
            ("trainer processes: least estimated over measured", "resident/least", ""),
            ("most", "resident/most", ""),
            ("upper shape of 20 batches over the largest of 300, least", "shapes/least", ""),
            ("most", "shapes/most", ""),
            ("step times inside the stated 90 % interval", "transfer/coverage", "%"),
            ("mean error of a fit to ten steps", "transfer/few_samples/mean_error", "%"),
            ("pairs of runs that the estimate admits, of 1,000", "packing/num_admitted", ""),
            ("runs of such pairs under the tightest memory limit", "packing/num_run", ""),
            ("pairs that exceeded it", "packing/num_exceeded", ""),
            ("largest share of the limit that a pair used", "packing/most_used", "%"),
            ("start to first batch, this machine", "stores/local/plain_s", "s"),
            ("with running stores", "stores/local/attached_s", "s"),
            ("start to first batch, testbed", "stores/testbed/plain_s", "s"),
            ("with running stores", "stores/testbed/attached_s", "s"),
            ("sweep of 12 trials against 12 runs", "sweeps/times_faster", "x"),
            ("results are equal to the last bit", "sweeps/are_equal", ""),
            ("kills of sweeps", "sweep_kills/counts/sweep", ""),
            ("kills of trials", "sweep_kills/counts/trial", ""),
            ("kills of stores of sweeps", "sweep_kills/counts/store", ""),
            ("kills of samplers and trainers of sweeps", "sweep_kills/counts/task", ""),
            ("trials lost, repeated or wrong", "sweep_kills/wrong", ""),
        ),
        *table(("traced step", "relations", "operations", "CPU seconds"), traced),
        *by_name(
            {"transfer": kinds},
            "transfer",
            "step times, left out",
            ("mean error", "mean_error", "%"),
            ("worst error", "worst_error", "%"),
            ("inside the interval", "coverage", "%"),
            ("cases", "num_cases", ""),
        ),
        *by_name(
            result.get("orders") or {},
            "orders",
            "order of 20 jobs, simulated",
            ("makespan", "makespan_s", "s"),
            ("mean completion", "mean_completion_s", "s"),
            ("mean queueing", "mean_queueing_s", "s"),
        ),
    ]


def _mapping(value: object) -> Result:
    return value if isinstance(value, dict) else {}
