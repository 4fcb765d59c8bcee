"""The page is read back: whole, self-contained, and nothing that users wrote breaks out."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from headrace.core.job import Role, Sync
from headrace.core.report import (
    Advice,
    Assumption,
    Change,
    Curve,
    Earlier,
    MachinePlan,
    MachineUse,
    Moment,
    Pace,
    Phase,
    PlanFacts,
    Report,
    Split,
    TaskUse,
    TrainerTime,
)
from headrace.observability.report import draw_page, headline, verdict
from headrace.observability.report.charts import ticks
from headrace.observability.report.markup import Html, coded, el, join
from headrace.observability.report.pairing import Seen, stretches_of
from headrace.observability.report.steady import steady_iterations
from headrace.observability.report.words import difference, percent, unbroken
from tests.unit.observability.report.small import marked, steady_trace
from tests.unit.observability.traces import random_trace

EVIL = "<script>alert('x')</script>\"'&"
VOID = {"meta", "br"}
MOST_BYTES = 1_000_000


class Reader(HTMLParser):
    """Elements as a browser opens and closes them, and what stands in them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.seen if name == tag]


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open
    return reader


def whole_report(name: str = "m0") -> Report:
    split = Split(compute_s=0.05, peers_s=0.01, exchange_s=0.01, wait_s=0.03, other_s=0.001)
    return Report(
        run_id=f"20261115-0830-{name}",
        job=name,
        state="failed",
        problem=f"{name} is gone",
        remedy=f"start {name}",
        began_s=1_794_700_800.0,
        elapsed_s=79.5,
        attempts=2,
        restarts=1,
        samples_per_s=1816.0,
        pace=Pace(
            predicted_s=0.0412,
            profile="measured",
            profile_note=name,
            rehearsed_s=0.0431,
            measured_s=0.044,
            num_iterations=168,
            num_skipped=10,
            num_steady=143,
            num_pauses=3,
            pauses_s=10.2,
        ),
        phases=(
            Phase(name="starting", start_s=0, end_s=17),
            Phase(name=name, start_s=17, end_s=79),
        ),
        trainers=(TrainerTime(name=name, machine=name, predicted=split, measured=split),),
        machines=(
            MachineUse(name=name, predicted_in=0.3, predicted_out=0.9, measured_in=0.2),
            MachineUse(name="m1", measured_in=0.2, measured_out=0.95),
        ),
        tasks=(TaskUse(name=name, role=Role.TRAINER, machine=name, measured=0.4),),
        assumptions=(Assumption(what=name, unit="s", assumed=0.01, measured=0.02),),
        curves=(
            Curve(name=name, axis=name, at=(1, 2, 3), values=(2.0, 1.0, 0.5)),
            Curve(name="once", axis="report", at=(1,), values=(0.5,)),
        ),
        decisions=(Moment(at_s=30.0, text=f"{name} was started again"),),
        earlier=(Earlier(attempt=1, num_machines=4, num_iterations=90, measured_s=0.21),),
        advice=Advice(
            time_s=0.0431,
            profile="run",
            tried=(
                Change(
                    change=f"doubling the NIC of {name}", saving=0.19, time_s=0.035, remark=name
                ),
                Change(change="a wider window", saving=0.001, time_s=0.043),
            ),
        ),
        plan=PlanFacts(
            method="anneal",
            policy="maxmin",
            seed_mix="uniform",
            sync="ring",
            window="4",
            batch_size=128,
            trainers=2,
            samplers_per_trainer=1,
            limit=name,
            time_s=0.04,
            bound_s=0.038,
            gap=0.05,
            proven=False,
            network_bytes=4e6,
            uniform_network_bytes=5e6,
            fingerprints={"cluster": name},
            machines=(
                MachinePlan(
                    name=name,
                    kind=name,
                    resources={name: 4, "memory": 4e9},
                    nic_in_bytes_per_s=5e7,
                    nic_out_bytes_per_s=1e7,
                    tasks=(name,),
                ),
            ),
        ),
        command=f"headrace run {name}",
        versions={name: name},
        made_by="0.1.0",
        missing=(f"{name} is missing",),
    )


def whole_page(name: str = "m0") -> str:
    trace = marked(steady_trace(), 1.0, name)
    seen = Seen(trace, steady_iterations(trace, skip=5))
    return draw_page(whole_report(name), trace, stretches_of(seen, seen, 6))


def test_a_page_says_everything() -> None:
    page = read(whole_page())
    for words in (
        "Predicted 41.2 ms per iteration, measured 44 ms (+6.8 %)",
        "The network is the bottleneck: m1 out at 95 % of its bandwidth.",
        "Predicted and measured",
        "Measured: 6 iterations in 600 ms",
        "143 of 168 iterations",
        "Doubling the NIC of m0",
        "None of the 1 other changes saves 1 %.",
        "5 % above its bound",
        "m0 was started again",
        "Attempts under other plans",
        "210 ms",
        "m0 is missing",
        "headrace run m0",
    ):
        assert words in page.text.replace("\N{NO-BREAK SPACE}", " "), words
    anchors = [attributes["id"] for attributes in page.named("section")]
    assert len(anchors) == len(set(anchors)) == 9


def test_cards_that_carry_more_than_they_can_are_no_bottleneck() -> None:
    report = whole_report("m0")
    fast = MachineUse(name="m1", measured_in=0.2, measured_out=1.83)
    first = verdict(report.model_copy(update={"machines": (fast,)}))[0]
    assert "m1 out carried 183 % of its bandwidth in the plan's cluster file" in first.replace(
        "\N{NO-BREAK SPACE}", " "
    )
    assert "is the bottleneck" not in first


def test_pictures_have_words_and_boxes_can_be_reached() -> None:
    page = read(whole_page())
    pictures = [each for each in page.named("svg") if each.get("role") == "img"]
    assert len(pictures) >= 4
    assert all(each.get("aria-label") for each in pictures)
    for attributes in page.named("div"):
        if "scroll" in (attributes.get("class") or "").split():
            assert attributes.get("tabindex") == "0"
    assert page.named("html")[0]["lang"] == "en"
    assert len(page.named("h1")) == 1


def test_nothing_comes_from_elsewhere() -> None:
    text = whole_page()
    page = read(text)
    for _, attributes in page.seen:
        assert not {"src", "href"} & attributes.keys()
    assert "http" not in text.replace("http-equiv", "")
    assert "url(" not in text
    assert "@import" not in text


def test_what_users_wrote_stays_text() -> None:
    page = read(whole_page(EVIL))
    assert len(page.named("script")) == 1
    assert page.text.count(EVIL) > 20
    assert all(not key.startswith("on") for _, attributes in page.seen for key in attributes)


@pytest.mark.parametrize("state", ["starting", "failed"])
def test_a_report_of_nothing_is_a_page(state: str) -> None:
    empty = Report(run_id="r", state=state, began_s=0.0, elapsed_s=0.0, missing=("All of it.",))
    page = read(draw_page(empty))
    assert "Too few iterations to measure" in page.text
    assert "All of it." in page.text
    assert verdict(empty) == []


def test_many_machines_stay_small() -> None:
    trace = random_trace(40, 40, Sync.PS, iterations=9)
    seen = Seen(trace, steady_iterations(trace, skip=1))
    text = draw_page(whole_report(), trace, stretches_of(seen, seen, 6))
    read(text)
    assert len(text.encode()) < MOST_BYTES
    assert "8 machines" in text


@pytest.mark.parametrize(
    ("pace", "words"),
    [
        (Pace(measured_s=0.044), "Measured 44 ms per iteration, without a prediction"),
        (Pace(predicted_s=1.5), "Predicted 1.5 s per iteration, too few iterations to measure"),
        (
            Pace(predicted_s=0.1, measured_s=0.09),
            "Predicted 100 ms per iteration, measured 90 ms (\N{MINUS SIGN}10 %)",
        ),
    ],
)
def test_headlines(pace: Pace, words: str) -> None:
    assert headline(pace) == words


def test_a_synthetic_profile_is_said_to_be_one() -> None:
    report = whole_report()
    pace = report.pace.model_copy(update={"profile": "synthetic", "rehearsed_s": None})
    said = " ".join(verdict(report.model_copy(update={"pace": pace})))
    assert "synthetic profile" in said


def test_text_is_escaped_and_html_is_not() -> None:
    assert el("p", "<b>", Html("<b></b>"), None, 3, class_='a"b') == (
        '<p class="a&quot;b">&lt;b&gt;<b></b>3</p>'
    )
    assert join("a", Html("<br>")) == "a<br>"
    assert el("rect", x=1, data_i=None) == '<rect x="1"/>'


def test_code_stands_between_backticks() -> None:
    assert coded("see `a <b>` & c") == "see <code>a &lt;b&gt;</code> &amp; c"
    assert coded("one ` alone <") == "one ` alone &lt;"


def test_far_figures_are_told_in_times() -> None:
    assert difference(0.028, 0.41) == "14.6 times"
    assert difference(2.0, 1.0) == "\N{MINUS SIGN}50 %"
    assert difference(0.0, 1.0) == ""


def test_figures_and_units_stay_together() -> None:
    assert unbroken("takes 143 ms, 1.4 % more") == "takes 143\xa0ms, 1.4\xa0% more"
    assert unbroken("3 machines") == "3 machines"
    assert percent(0.0678) == "6.8 %"
    assert percent(0.5, signed=True) == "+50 %"
    assert percent(0.00001, signed=True) == "0 %"


def test_ticks_are_round() -> None:
    assert ticks(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(0.13, 0.37, 4) == [0.2, 0.3]
    assert ticks(2, 2) == [2]
