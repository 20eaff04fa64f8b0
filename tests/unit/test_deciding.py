"""When runs decide a difference of times: few and scattered runs do not, in either direction."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from analysis.cli import questions
from analysis.collect import collect
from analysis.deciding import FAR, FEW, grows, placed
from analysis.finding import Finding, Level, Verdict
from analysis.stats import fit_line
from tests.unit.planted import Plan, plant_all, read_trace


@pytest.mark.parametrize(
    ("low", "high", "n", "side"),
    [
        (1.0, 1.1, 2, None),  # two runs, however far away
        (1.0, 1.1, 3, "above"),
        (0.4, 0.6, 3, None),  # beyond the bound, but not by three times the range
        (0.4, 0.6, 5, "above"),
        (-1.1, -1.0, 3, "below"),
        (-0.6, -0.4, 5, "below"),
        (-0.01, 0.01, 3, "within"),
        (-0.05, 0.05, 3, None),
        (-0.05, 0.05, 5, "within"),
        (0.05, 0.15, 5, None),
    ],
)
def test_where_runs_lie(low: float, high: float, n: int, side: str | None) -> None:
    found = placed(low, high, n, -0.1, 0.1)
    assert (found.side, found.reason is None) == (side, side is not None)


def test_three_runs_of_noise_hardly_ever_decide() -> None:
    """What the rule promises: fewer than one verdict in a hundred from noise around the bound."""
    chance, count = random.Random(1), 20_000
    draws = ([chance.gauss(0, 1) for _ in range(FEW)] for _ in range(count))
    decided = sum(placed(min(d), max(d), FEW, 0.0, 0.0).side is not None for d in draws)
    assert decided < 0.01 * count


def test_few_runs_say_by_which_rule() -> None:
    assert f"{FAR:g} times their range" in placed(1.0, 1.1, 4, top=0.1).note
    assert placed(1.0, 1.1, 5, top=0.1).note == ""
    assert "2 pairs: fewer than 3" in (placed(0, 1, 2, what="pair").reason or "")


def test_a_line_rises_stays_or_cannot_be_told() -> None:
    x = [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert grows(fit_line(x, [1.0, 1.01, 2.0, 2.01, 4.0, 4.01]), 0.1, "s", "node").side == "above"
    assert grows(fit_line(x, [1.0, 1.01] * 3), 0.1, "s", "node").side == "within"
    assert grows(fit_line(x, [4.0, 4.01, 2.0, 2.01, 1.0, 1.01]), 0.1, "s", "node").side == "below"
    assert "too large to tell" in (grows(fit_line(x, [1.0, 3.0, 2.0, 0.5, 1.0, 3.0]), 0.1, "s", "node").reason or "")
    assert "fewer than 5" in (grows(fit_line([1.0, 2.0, 4.0], [1.0, 2.0, 4.0]), 0.1, "s", "node").reason or "")
    assert "node counts: a line needs" in (grows(fit_line([1.0], [1.0]), 0.1, "s", "node").reason or "")


def claimed(verdict: Verdict, level: Level) -> Finding:
    return Finding(
        code="XX01", claim="c", group="g", sentence="s", recommendation="r", for_developers="d", verdict=verdict,
        level=level,
    )  # fmt: skip


def test_what_is_fine_asks_for_nothing() -> None:
    fine = claimed("contradicts", "ok")
    assert (fine.recommendation, fine.for_developers) == (None, None)
    assert msgspec.json.decode(msgspec.json.encode(fine), type=Finding) == fine
    assert claimed("supports", "info").recommendation == "r"


def test_no_question_asks_for_anything_where_all_is_fine(tmp_path: Path) -> None:
    plans = [Plan(nodes=n, repeat=repeat) for n in (1, 2, 4) for repeat in (1, 2)]
    shared = [replace(plan, strategy="sharded", writers=(0, 1), copies=False) for plan in plans if plan.nodes > 1]
    tables = collect([plant_all(tmp_path, [*plans, *shared])], read_trace)
    asked = [question().answer(tables, False) for question in questions().values() if question.in_report]
    found = [finding for answer in asked for finding in answer.findings]
    assert {finding.level for finding in found} >= {"ok", "info", "warning"}
    for finding in found:
        assert finding.level != "ok" or not (finding.recommendation or finding.for_developers), finding.code
        assert finding.verdict != "not_measured" or not finding.recommendation, finding.code
