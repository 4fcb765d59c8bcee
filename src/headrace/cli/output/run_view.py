"""Output of `headrace top` and `headrace status`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.cli.output.run_rows import Row, doing, fitting_rows, tone
from headrace.core.units import format_bytes, format_bytes_per_s

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from headrace.api.run_status import RunView

_BAR = 10
_SHORT_BAR = 6
_WIDE_BAR = 14
_NARROW = 90
_MARKS = {"good": "●", "wait": "○", "calm": "·", "bad": "✕"}
_STYLES = {"good": "cyan", "wait": "yellow", "calm": "bright_black", "bad": "bold red"}
_STATE_STYLES = {
    "running": "bold cyan",
    "done": "bold green",
    "failed": "bold red",
    "driver died": "bold red",
}
_FULL_SHARE = 0.9
"""NICs with a larger utilisation are highlighted."""


def state_of(view: RunView) -> str:
    """State of a run, in words."""
    return "driver died" if view.driver == "died" else str(view.status.state)


def picture(
    view: RunView, size: tuple[int, int] | None = None, bars: bool = True
) -> RenderableType:
    """A run: its metrics, its tasks by machine, its network.

    Args:
        view: The run.
        size: Available columns and lines; None for no limit.
        bars: Whether to draw bars besides numbers.
    """
    from rich.console import Group
    from rich.text import Text

    head, machines = headline(view), view.status.machines
    room, has_network = None, bool(machines)
    if size is not None:
        num_columns, num_lines = size
        num_head = sum(-(-max(1, line.cell_len) // num_columns) for line in head)
        # Two headings, two empty lines, and a line for omitted machines.
        free = num_lines - num_head - 5
        has_network = has_network and len(machines) <= free // 2
        room = max(1, free - len(machines) if has_network else free)
    rows, num_hidden = fitting_rows(view.status, room)
    parts: list[RenderableType] = [*head, Text()]
    if rows:
        is_narrow = size is not None and size[0] < _NARROW
        parts.append(_tasks(rows, bars, _SHORT_BAR if is_narrow else _BAR))
    if num_hidden:
        parts.append(Text(f"and {num_hidden} more machines: headrace top --once", "bright_black"))
    if has_network:
        parts += [Text(), _network(view, bars)]
    return Group(*parts)


def headline(view: RunView) -> list[Text]:
    """A few lines: ID, state, speed, problems."""
    from rich.text import Text

    status, state = view.status, state_of(view)
    mark = _STATE_STYLES.get(state, "bold yellow")
    lines = [
        Text.assemble(
            (status.run_id, "bold"),
            "  ",
            (state, mark),
            f" {'after' if view.is_over else 'for'} {_clock(view.elapsed_s)}",
        )
    ]
    words = [] if "epoch" in status.figures else [f"epoch {status.epoch:,}"]
    words.append(f"iteration {status.iterations:,}")
    if status.samples_per_s is not None:
        words.append(f"{status.samples_per_s:,.0f} samples/s")
    if status.idle_share is not None:
        waits = f" for {status.waits_for}" if status.waits_for not in ("", "nothing") else ""
        words.append(f"trainers wait {status.idle_share:.0%}{waits}")
    lines.append(Text("  ·  ".join(words)))
    if status.epoch_bytes:
        lines.append(Text(f"{bytes_line(status.epoch_bytes)} between machines per epoch"))
    if status.figures:
        from headrace.api.run_status import line_of

        lines.append(Text(line_of(status.figures), "bold"))
    if status.last_decision:
        count = f"attempt {status.attempt}, {status.restarts} restarts"
        lines.append(Text(f"{count}  ·  {status.last_decision}", "yellow"))
    if view.trouble is not None:
        problem, remedy = view.trouble
        style = "yellow" if view.exit_code == 0 else "red"
        lines += [Text(problem, style), Text(f"  try: {remedy}")]
    return lines


def bytes_line(by_kind: Mapping[str, float]) -> str:
    """Bytes and their kinds: `3.1 MB (features 2.9 MB, structure 0.2 MB)`."""
    kinds = sorted(by_kind.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{kind} {format_bytes(num)}" for kind, num in kinds)
    return f"{format_bytes(sum(by_kind.values()))} ({parts})"


def counts_of(view: RunView) -> str:
    """Number of tasks per activity: `4 serving, 3 training`."""
    counts = Counter(doing(task) for task in view.status.tasks)
    return ", ".join(f"{count} {word}" for word, count in counts.most_common())


def _tasks(rows: list[Row], bars: bool, bar_width: int) -> Table:
    from rich.text import Text

    table = _plain_table("machine", "task", "")
    table.add_column("busy", justify="left" if bars else "right", no_wrap=True)
    table.add_column("iteration", justify="right", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("waits for", overflow="ellipsis", no_wrap=True)
    before = ""
    for row in rows:
        mood = tone(row.doing)
        style = _STYLES[mood]
        mark = f"{_MARKS[mood]} " if bars else ""
        machine = row.machine if row.machine != before or not bars else ""
        table.add_row(
            Text(machine, "bold"),
            Text(row.name, "bright_black" if mood == "calm" else ""),
            Text(f"{mark}{row.doing}", style),
            _share(row.busy_share, bar_width, bars),
            row.iteration,
            "" if row.rss_bytes is None else format_bytes(row.rss_bytes),
            Text(row.waits_for, "yellow" if row.waits_for else ""),
        )
        before = row.machine
    return table


def _network(view: RunView, bars: bool) -> Table:
    from rich.text import Text

    machines = view.status.machines
    seen = [
        rate
        for machine in machines
        for rate in (machine.nic_in_bytes_per_s, machine.nic_out_bytes_per_s)
        if rate is not None
    ]
    fastest = max(seen, default=0.0) or 1.0
    table = _plain_table("machine", "address")
    for heading in ("network in", "network out"):
        table.add_column(heading, justify="left" if bars else "right", no_wrap=True)
    for machine in machines:
        limits = view.limits.get(machine.name, (fastest, fastest))
        rates = (machine.nic_in_bytes_per_s, machine.nic_out_bytes_per_s)
        table.add_row(
            Text(machine.name, "bold"),
            Text(machine.address, "bright_black"),
            *(_rate(rate, limit, bars) for rate, limit in zip(rates, limits, strict=True)),
        )
    return table


def _plain_table(*headings: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bright_black")
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def _share(share: float | None, width: int, bars: bool) -> Text:
    from rich.text import Text

    if share is None:
        return Text()
    text = f"{share:4.0%}"
    return Text.assemble(_bar(share, width, "cyan"), f" {text}") if bars else Text(text.strip())


def _rate(rate: float | None, limit: float, bars: bool) -> Text:
    from rich.text import Text

    if rate is None:
        return Text("-", "bright_black")
    text = format_bytes_per_s(rate)
    if not bars:
        return Text(text)
    share = min(rate / limit, 1.0)
    bar = _bar(share, _WIDE_BAR, "yellow" if share >= _FULL_SHARE else "cyan")
    return Text.assemble(bar, f" {text:>10}")


def _clock(elapsed_s: float) -> str:
    minutes, seconds = divmod(round(elapsed_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _bar(share: float, width: int, style: str) -> Text:
    from rich.text import Text

    halves = round(share * width * 2)
    full = "━" * (halves // 2) + ("╾" if halves % 2 else "")
    return Text.assemble((full, style), ("─" * (width - len(full)), "bright_black"))
