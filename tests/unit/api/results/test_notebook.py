"""Plans, traces, rehearsals and reports show themselves in notebooks and in shells."""

from __future__ import annotations

import subprocess
import sys
import types
import webbrowser
from html.parser import HTMLParser
from pathlib import Path

import pytest

import headrace
from headrace.api.results import notebook
from headrace.core.errors import SpecError
from headrace.core.plan import Plan
from headrace.core.trace import Trace

VOID = ("meta", "br", "rect", "line", "path", "polyline")


class Checker(HTMLParser):
    """Whether every element is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.said: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        assert not {"src", "href", "onload"} & {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data)


def said_in(markup: str) -> str:
    checker = Checker()
    checker.feed(markup)
    assert not checker.open
    return " ".join(checker.said)


@pytest.fixture(scope="module")
def plan() -> Plan:
    machines = (
        headrace.Machine(name="big", nic_in=1.25e9, nic_out=1.25e9, resources={"cpu": 8}),
        headrace.Machine(name="<b>", nic_in=1.25e8, nic_out=2.5e8, resources={"cpu": 8}),
        headrace.Machine(name="m2", nic_in=1.25e8, nic_out=1.25e8, resources={"cpu": 8}),
    )
    job = headrace.Job(trainers=2, samplers_per_trainer=2, batch_size=100, iterations=20)
    cluster = headrace.Cluster(machines=machines)
    return headrace.plan(cluster, job, method="colocate", policy="maxmin")


@pytest.fixture(scope="module")
def simulation(plan: Plan) -> headrace.Simulation:
    return headrace.simulate(plan.cluster, plan.job, placement=plan)


@pytest.fixture(scope="module")
def trace(simulation: headrace.Simulation) -> Trace:
    return simulation.trace()


def test_a_plan_shows_who_runs_where_and_why_it_takes_so_long(plan: Plan) -> None:
    markup = plan._repr_html_()
    said = said_in(markup)
    assert "per iteration" in said
    assert "The bottleneck is" in said
    assert "1 Gbps in, 2 Gbps out" in said
    assert "<b>" in said
    assert "<b></th>" not in markup
    assert len(markup) < 10_000
    assert repr(plan) == str(plan)
    assert repr(plan).startswith("<Plan by colocate, maxmin: 2 trainers on 3 machines, ")


def test_a_plan_explains_itself(plan: Plan) -> None:
    steps: list[str] = []
    found = plan.explain(steps.append)
    assert found == headrace.explain(plan)
    assert steps
    said = said_in(found._repr_html_())
    text = repr(found)
    assert all(each.change in said for each in found.remedies)
    assert all(each.sentence() in text for each in found.remedies)
    assert f"The bottleneck is {found.bottleneck}." in text
    assert "Plan(" not in text


def test_a_trace_draws_itself(trace: Trace) -> None:
    said = said_in(trace._repr_html_())
    assert said_in(trace.gantt()._repr_html_()) == said
    assert "trainer0, iteration" in said
    assert repr(trace).startswith("<Trace of 20 iterations on 3 machines: ")


def test_a_chart_can_be_asked_for_and_kept(trace: Trace, tmp_path: Path) -> None:
    chart = trace.gantt(2, 3)
    assert repr(chart).startswith("Iterations 2 to 3 in ")
    page = chart.save(tmp_path / "two.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "Iterations 2 to 3" in said_in(page.removeprefix("<!doctype html>"))
    assert chart.save(tmp_path / "two.txt").read_text() == f"{chart!r}\n"
    with pytest.raises(SpecError, match=r"use gantt\.html"):
        chart.save(tmp_path / "two.gif")
    with pytest.raises(SpecError, match="cannot be written"):
        chart.save(tmp_path / "no" / "two.html")


def test_a_chart_as_png(trace: Trace, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert trace.gantt(2, 3).save(tmp_path / "two.png").read_bytes().startswith(b"\x89PNG")


def test_rehearsals_show_themselves(plan: Plan, simulation: headrace.Simulation) -> None:
    said = said_in(simulation._repr_html_())
    assert simulation.nics.sentence() in said
    assert repr(simulation).endswith(simulation.nics.sentence())
    assert repr(simulation.gantt()) == repr(simulation.trace().gantt())
    both = headrace.compare(
        plan.cluster, plan.job, policies=["fifo", "maxmin"], iterations=5, placement=plan
    )
    assert {"fifo", "maxmin", "best"} <= set(said_in(both._repr_html_()).split())
    assert [line.split()[0] for line in repr(both).splitlines()] == ["fifo", "maxmin"]


def test_what_nobody_can_draw() -> None:
    with pytest.raises(TypeError, match="a str has no HTML representation"):
        notebook.html("word")


def test_a_shell_opens_a_browser_and_says_which_file(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    path = trace.gantt().show()
    assert path is not None
    assert opened == [path.as_uri()]
    path.unlink()


@pytest.mark.parametrize("has_kernel", [True, False])
def test_a_notebook_shows_it_below_the_cell(
    trace: Trace, monkeypatch: pytest.MonkeyPatch, has_kernel: bool
) -> None:
    shown: list[object] = []
    opened: list[str] = []
    ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    shell = types.SimpleNamespace(kernel=object()) if has_kernel else types.SimpleNamespace()
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    display.display = shown.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(webbrowser, "open", opened.append)
    chart = trace.gantt()
    path = chart.show()
    assert shown == ([chart] if has_kernel else [])
    assert len(opened) == (0 if has_kernel else 1)
    if path is not None:
        path.unlink()


def test_showing_needs_nothing_but_the_value(plan: Plan, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    headrace.save_plan(plan, file)
    code = (
        "import sys\n"
        "from headrace.core.plan import Plan\n"
        "plan = Plan.model_validate_json(open(sys.argv[1]).read())\n"
        "assert 'numba' not in sys.modules\n"
        "assert 'The bottleneck' in plan._repr_html_()\n"
        "assert not {'torch', 'ray', 'matplotlib'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(file)], check=True, timeout=300)
