"""What the paper's figures show: settings, schemes, savings, tables and pictures.

Everything here works on times that `paper_figures.py` has measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import mean
from typing import Any


@dataclass(frozen=True)
class Setting:
    """One panel of each figure.

    Attributes:
        title: The dataset.
        training_nodes: Seeds of one epoch (OGB).
        epochs: As the paper simulates.
        seeds_per_sampler: Of the profile; Fig. 11 is drawn at this size.
        profiled_pmr: What the paper measured.
        rehearsed: Iterations rehearsed; the same for every scheme.
        unit: Of the vertical axis.
        unit_s: Seconds in it.
    """

    title: str
    training_nodes: int
    epochs: int
    seeds_per_sampler: int
    profiled_pmr: float
    rehearsed: int
    unit: str
    unit_s: float


SETTINGS = {
    "sim1": Setting("ogbn-products", 196_615, 5, 1000, 1.16, 100, "minutes", 60.0),
    "sim2": Setting("ogbn-papers100M", 1_207_179, 25, 500, 1.08, 20, "hours", 3600.0),
}


@dataclass(frozen=True)
class Scheme:
    """A placement with a flow policy, and how it is drawn (colours of Okabe and Ito)."""

    label: str
    placement: str
    policy: str
    colour: str
    hatch: str = ""


AUTO = "auto"
SCHEMES = {
    "ours": Scheme("headrace (anneal, best policy)", "anneal", AUTO, "#009E73"),
    "dgtp": Scheme("DGTP (etp + oes)", "etp", "oes", "#0072B2"),
    "distdgl": Scheme("DistDGL (colocate + oes)", "colocate", "oes", "#E69F00"),
    "omcoflow": Scheme("OMCoflow (etp + omcoflow)", "etp", "omcoflow", "#56B4E9", "///"),
    "mrtf": Scheme("MRTF, greedy (etp + mrtf)", "etp", "mrtf", "#CC79A7", "\\\\\\"),
    "mrtf-exclusive": Scheme(
        "MRTF, one flow per port (etp + mrtf-exclusive)", "etp", "mrtf-exclusive", "#D55E00", "..."
    ),
    "fifo": Scheme("FIFO (colocate + fifo)", "colocate", "fifo", "#999999", "xxx"),
}
BOUND = "bound"
"""No placement and no schedule takes less."""

Times = dict[str, list[float]]
"""Seconds by scheme, one figure per cluster."""


def num_iterations(setting: Setting, seeds_per_sampler: int) -> int:
    """Iterations of all epochs; in each every sampler sees all training nodes (section VI-B)."""
    return ceil(setting.epochs * setting.training_nodes / seeds_per_sampler)


def mean_times(times: Times) -> dict[str, float]:
    """Means over clusters."""
    return {scheme: mean(values) for scheme, values in times.items()}


def savings(points: dict[str, Times], mine: str, theirs: str) -> dict[str, float]:
    """(theirs - mine) / theirs of the means over clusters: over all points of a figure."""
    found = []
    for times in points.values():
        seconds = mean_times(times)
        found.append(1 - seconds[mine] / seconds[theirs])
    return {
        "mean": round(mean(found), 4),
        "largest": round(max(found), 4),
        "smallest": round(min(found), 4),
    }


def gain_table(
    settings: dict[str, dict[str, dict[str, Times]]],
) -> dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]]:
    """Savings of ours and of DGTP by setting, figure and baseline."""
    return {
        name: {
            figure: {
                mine: {
                    theirs: savings(points, mine, theirs)
                    for theirs in SCHEMES
                    if theirs not in ("ours", mine)
                }
                for mine in ("ours", "dgtp")
            }
            for figure, points in figures.items()
        }
        for name, figures in settings.items()
    }


def markdown(gains: dict[str, Any], figure: str) -> str:
    """The savings of one figure as a table: mean over its points (smallest to largest)."""

    def cell(row: dict[str, float] | None) -> str:
        if row is None:
            return ""
        shown = [f"{100 * row[key] + 0.0:.0f}" for key in ("mean", "smallest", "largest")]
        average, least, most = ("0" if figure == "-0" else figure for figure in shown)
        return f"{average} % ({least} to {most})"

    names = list(gains)
    columns = [
        f"{'headrace' if mine == 'ours' else 'DGTP'}, {SETTINGS[name].title}"
        for mine in ("ours", "dgtp")
        for name in names
    ]
    lines = [f"| less time than | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns)]
    for theirs, scheme in SCHEMES.items():
        if theirs == "ours":
            continue
        cells = [
            cell(gains[name][figure][mine].get(theirs))
            for mine in ("ours", "dgtp")
            for name in names
        ]
        lines.append(f"| {scheme.label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(document: dict[str, Any], figure: str, xlabel: str, path: Path) -> None:
    """Draw one figure, a panel per setting."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"font.size": 10, "hatch.linewidth": 0.6, "hatch.color": "white"}):
        fig, axes = plt.subplots(2, 1, figsize=(9, 7.2), layout="constrained")
        for axis, (name, figures) in zip(axes, document["settings"].items(), strict=True):
            setting, points = SETTINGS[name], figures[figure]
            is_pmr = figure == "pmr"
            profiled = setting.profiled_pmr if is_pmr else setting.seeds_per_sampler
            _bars(axis, points, setting.unit_s, str(profiled))
            axis.set_title(f"{setting.title}, {setting.epochs} epochs", loc="left", fontsize=11)
            axis.set_ylabel(f"training time ({setting.unit})")
        axes[-1].set_xlabel(xlabel)
        handles, labels = axes[0].get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(path, dpi=110)
        plt.close(fig)


def _bars(axis: Any, points: dict[str, Times], unit_s: float, profiled: str) -> None:
    width = 0.84 / len(SCHEMES)
    means = [mean_times(times) for times in points.values()]
    for number, (key, scheme) in enumerate(SCHEMES.items()):
        axis.bar(
            [x + (number - (len(SCHEMES) - 1) / 2) * width for x in range(len(means))],
            [seconds[key] / unit_s for seconds in means],
            width * 0.92,
            label=scheme.label,
            color=scheme.colour,
            hatch=scheme.hatch,
        )
    for x, seconds in enumerate(means):
        axis.hlines(
            seconds[BOUND] / unit_s,
            x - 0.45,
            x + 0.45,
            colors="black",
            linestyles="--",
            linewidth=1.0,
            label="lower bound over all placements and schedules" if x == 0 else None,
        )
    axis.set_xticks(
        range(len(means)),
        [f"{point}, profiled" if point == profiled else point for point in points],
    )
    axis.set_xlim(-0.55, len(means) - 0.45)
    axis.spines[["top", "right"]].set_visible(False)
    axis.yaxis.grid(visible=True, color="#dddddd", linewidth=0.7)
    axis.set_axisbelow(True)


def draw_all(document: dict[str, Any], folder: Path) -> None:
    """Draw both figures into a folder."""
    draw(document, "batch_size", "seeds per sampler and iteration", folder / "paper-batch-size.png")
    draw(
        document,
        "pmr",
        "peak-to-mean ratio of the data from a store to a sampler",
        folder / "paper-pmr.png",
    )
