"""The head of the report: what checkpoints cost in numbers, what stands out first, and answers in one sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis import report, report_costs, report_runs
from analysis.cli import questions
from analysis.collect import collect
from analysis.finding import Finding, not_measured
from analysis.in_short import Measure, configuration, in_short, shown
from analysis.report_ask import digests
from analysis.report_impact import Stakes, worst_of, worst_per_code
from analysis.tables import Tables
from analysis.view import told_apart
from hpcckpt.experiment import Fault
from tests.unit.planted import Plan, plant_all, read_trace
from tests.unit.reporting import Page, fake, plain_finding, planted


def costly(root: Path) -> Tables:
    """Three models of two strategies: one strategy has three sizes of stall, the other holds copies."""
    writes = {"small": 0.05, "medium": 0.2, "large": 2.0}
    plans = [Plan(model=model, write_s=s, repeat=i, nodes=2) for model, s in writes.items() for i in (1, 2)]
    copies = Plan(model="small", strategy="replicated", writers=(0, 1), nodes=2, write_s=0.5)
    return collect([plant_all(root, [*plans, copies])], read_trace)


def test_typical_and_largest_are_configurations_of_their_own(tmp_path: Path) -> None:
    found = report_costs.costs(costly(tmp_path))
    assert len(found) == 4
    assert found[0].stall.value == pytest.approx(2.03, abs=0.01)
    single = [cost for cost in found if cost.strategy == "single_writer"]
    assert "medium" in report_costs.typical(single).place
    assert found[0].overhead.value == pytest.approx(found[0].stall.value, rel=0.1)
    assert found[0].idle.value == pytest.approx(found[0].stall.value, rel=0.1)  # one other rank waits
    assert found[0].bytes.value == 10_000_000


def test_sentences_say_stall_overhead_idle_bytes_and_copies(tmp_path: Path) -> None:
    found = report_costs.costs(costly(tmp_path))
    ((head, words),) = report_costs.sentences(found)
    assert head == "numpy_toy, buffered"
    assert "the middle of 4 configurations" in words and "at most for 2.03 s [2.03, 2.03]" in words
    assert "per checkpoint with one every 2 steps" in words
    assert "rank-seconds" in words and "10.0 MB are written" in words
    (only,) = report_costs.sentences([cost for cost in found if cost.strategy == "replicated"])
    assert "75 % of it copies" in only[1] and "typically" not in only[1]


def test_table_has_a_row_per_strategy_and_a_reason_for_what_is_missing(tmp_path: Path) -> None:
    found = report_costs.costs(collect([plant_all(tmp_path, [Plan(control=False, log="none")])], read_trace))
    view = report_costs.view(found)
    assert view.columns["overhead ms a checkpoint\n[low, high]"] == ["n.m. (1)"]
    assert view.below[0] == "(1) not measured: no control leg"
    assert "the overhead against the control was not measured" in report_costs.sentences(found)[0][1].lower()
    two = report_costs.view(report_costs.costs(costly(tmp_path / "two")))
    assert two.columns["strategy"] == ["single_writer", "replicated"]
    assert two.columns["configu-\nrations"] == ["3", "1"]
    assert "kind" not in two.columns and "all of these checkpoints are buffered" in two.below


def test_durable_is_never_mixed_with_buffered_and_planted_faults_are_no_cost(tmp_path: Path) -> None:
    faults = [Fault(rank=0, at="before_save", action="sleep", seconds=1.0)]
    plans = [Plan(), Plan(durable=True, sync_s=0.5), Plan(repeat=2, faults=faults, write_s=50.0)]
    found = report_costs.costs(collect([plant_all(tmp_path, plans)], read_trace))
    assert [head for head, _ in report_costs.sentences(found)] == ["numpy_toy, durable", "numpy_toy, buffered"]
    assert max(cost.stall.value or 0 for cost in found) < 1
    assert "in the middle of 2 configurations" in report_costs.lede(found)


def test_no_stall_is_said(tmp_path: Path) -> None:
    tables = planted(tmp_path / "runs", Plan(state="queued"))
    assert report_costs.costs(tables) == []
    assert report_costs.NOTHING in Page(written(tables, tmp_path)).text


def written(tables: Tables, root: Path) -> str:
    report.write(tables, root / "report.html")
    return (root / "report.html").read_text()


def test_the_page_opens_with_the_cost_and_answers_in_numbers(tmp_path: Path) -> None:
    page = Page(written(costly(tmp_path / "runs"), tmp_path))
    text = page.text
    head = text.index("at most for 2.03 s")
    assert head < text.index("What stands out") < text.rindex("The cost in numbers")
    assert "Over 4 configurations, the stall of a checkpoint is typically" in text
    assert "costs" in page.ids


def test_every_question_of_runs_has_an_answer_in_one_sentence(tmp_path: Path) -> None:
    tables = costly(tmp_path)
    for kind in questions().values():
        if kind.in_report:
            sentence = kind().in_short(kind().answer(tables, False))
            # One model-parallel framework is none of these, one strategy of remedies has no base, nothing restarts.
            assert sentence or kind.name in ("model_parallel", "restart_determinism"), kind.name
            assert sentence.count(". ") == 0 and "None" not in sentence, sentence


ROWS: list[dict[str, Any]] = [
    {"framework": "f", "strategy": "s", "format": "z", "model": m, "nodes": 2, "ranks_per_node": 1, "x_s": x}
    for m, x in (("a", 0.1), ("b", 2.0), ("c", 0.2), ("d", None))
]


def test_a_sentence_names_the_middle_the_ends_and_where_the_most_is() -> None:
    measure = Measure(column="x_s", words="the stall is", unit="s")
    words = "Over 3 configurations, the stall is typically 200 ms, from 100 ms to 2.00 s (f s z, b, 2 x 1)."
    assert in_short([measure], ROWS) == words
    assert in_short([measure], ROWS[:1]) == "The stall is 100 ms (f s z, a, 2 x 1)."
    assert in_short([measure], ROWS[3:]) == ""
    planted_fault = [{**ROWS[1], "faults": "rank 0 sleeps"}, ROWS[0]]
    assert "2.00 s" not in in_short([measure], planted_fault)
    assert configuration({"framework": "f", "model": "m"}) == "f m"


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [(0.00001, "share", "< 0.1 %"), (0.75, "share", "75 %"), (0.0, "share", "0 %"), (2e6, "bytes", "2.00 MB")],
)
def test_units_are_readable(value: float, unit: Any, words: str) -> None:
    assert shown(value, unit) == words


def test_the_worst_finding_of_a_code_stands_for_it(tmp_path: Path) -> None:
    """Not the first: 75 % of copies is worse than 50 %, though it stands later."""
    mine = [plain_finding(value=v, unit="fraction", group=f"g{v}", evidence=[]) for v in (0.5, 0.75, 0.1)]
    ok = plain_finding(value=9.0, level="ok", verdict="contradicts")
    assert worst_of([*mine, ok]).value == 0.75
    (digest,) = digests([*mine, ok])
    assert digest.worst.value == 0.75
    unknown = not_measured("XX01", "it is so", "g", "why", [])
    assert worst_of([unknown, ok]) is ok and worst_of([unknown]) is unknown
    assert worst_of([plain_finding(value=v, unit="ratio") for v in (1.5, 0.2, 3.0)]).value == 0.2


def test_what_stands_out_is_ordered_by_level_then_by_what_is_at_stake(tmp_path: Path) -> None:
    tables = costly(tmp_path)
    runs = {model: [run for run in tables.runs["run"].to_list() if model in run] for model in ("large", "medium")}
    found: dict[str, list[Finding]] = {
        code: [plain_finding(code=code, value=value, unit=unit, evidence=runs[model], **more)]
        for code, value, unit, model, more in (
            ("AA01", 0.5, "fraction", "medium", {}),
            ("AA02", 0.5, "fraction", "large", {}),
            ("AA03", 5e6, "bytes", "large", {}),
            ("AA04", 0.7, "s", "large", {}),
            ("AA05", 1.9, "rank-s", "large", {}),
            ("AA06", 0.01, "fraction", "medium", {"level": "critical"}),
        )
    }
    order = [finding.code for finding in worst_per_code(found, Stakes(tables))]
    assert order == ["AA06", "AA05", "AA04", "AA03", "AA02", "AA01"]


def test_odd_numbers_are_no_stake(tmp_path: Path) -> None:
    stakes = Stakes(costly(tmp_path))
    for value in (None, float("nan"), float("inf"), 0.0):
        assert stakes.seconds(plain_finding(value=value, unit="ratio", evidence=[])) == 0.0


def test_a_headline_is_its_codes_worst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several = tuple(plain_finding(value=v, unit="fraction", sentence=f"{v:.0%} are copies") for v in (0.5, 0.75))
    monkeypatch.setattr("analysis.report_ask.questions", lambda: {"fake": fake(findings=several)})
    page = Page(written(planted(tmp_path / "runs", Plan()), tmp_path))
    stands = page.text[page.text.index("What stands out") : page.text.rindex("The cost in numbers")]
    assert "75% are copies" in stands and "50%" not in stands and "and 1 more" in stands


def test_one_machine_is_worded_by_what_was_run(tmp_path: Path) -> None:
    def words(name: str, *plans: Plan) -> str:
        banners = report_runs.banners(planted(tmp_path / name, *plans))
        return next(banner.text for banner in banners if "mechanism" in banner.head)

    one = Plan(nodes=1)
    assert words("a", one).startswith("The run had one node, 1 rank;")
    mixed = words("b", one, replace(one, repeat=2), Plan(nodes=2), Plan(nodes=4))
    assert mixed.startswith("2 of 4 runs played 2 to 4 nodes on one machine; 2 of 4 runs had one node, 1 rank;")
    assert words("c", Plan(nodes=2), Plan(nodes=4)).startswith("All runs played 2 to 4 nodes on one machine;")


def test_rows_of_equal_names_get_the_column_in_which_they_differ() -> None:
    rows = [{"model": "a", "interval_steps": 2, "campaigns": c, "conditions": d} for c, d in (("x", "1"), ("y", "2"))]
    assert told_apart(["model"], rows) == {"model": ["a", "a"], "campaign": ["x", "y"]}
    assert told_apart(["model"], rows[:1]) == {"model": ["a"]}
    others = [{**rows[0], "model": "b"}, *rows]
    assert told_apart(["model"], others)["campaign"] == ["x", "x", "y"]
    several = [{**rows[0], "interval_steps": 4}, *rows]
    assert list(told_apart(["model"], several)) == ["model", "every\nsteps", "campaign"]


@pytest.mark.parametrize("name", ["file_sizes", "mechanisms", "redundant_copies", "memory", "model_size"])
def test_no_two_rows_of_a_table_are_named_alike(tmp_path: Path, name: str) -> None:
    plans = [Plan(campaign=c, nodes=1, interval_steps=n) for c, n in (("one", 2), ("two", 4))]
    tables = collect([plant_all(tmp_path, [plan]) for plan in plans], read_trace)
    kind = questions()[name]
    for view in kind().views(kind().answer(tables, False)):
        texts = [view.columns[heading] for heading in view.left if heading in view.columns]
        numbers = [view.columns[h] for h in view.columns if h == "every\nsteps"]
        rows = list(zip(*texts, *numbers, strict=True))
        assert len(rows) == len(set(rows)), (view.title, rows)
