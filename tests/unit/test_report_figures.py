"""The figures of the questions on many runs: none is taller than a screen or two, no name covers another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis import charts, remedy_figure
from analysis.cli import questions
from analysis.collect import collect
from analysis.figures import save_svg
from analysis.overhead_show import drawings as overheads
from analysis.single_writer_show import _told
from analysis.view import Drawing
from tests.unit.planted import Plan, plant_all, read_trace

TALLEST_IN = 16.0
"""Of a figure, in inches: its axis and legend are found without much scrolling."""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Drawing]]:
    """Every question's figures of forty groups, each at two points and with two strategies."""
    one = Plan(log="none", nodes=1)
    plans = [
        replace(one, nodes=nodes, model=f"model{i}", strategy=strategy, write_s=0.05 * (i + 1))
        for i in range(20)
        for nodes in (1, 2)
        for strategy in ("single_writer", "node_writer")
    ]
    tables = collect([plant_all(tmp_path_factory.mktemp("many"), plans)], read_trace)
    kinds = [kind for kind in questions().values() if kind.in_report]
    return {kind.name: kind().drawings(kind().answer(tables, False)) for kind in kinds}


def test_no_figure_is_taller_than_a_screen_or_two(many: dict[str, list[Drawing]]) -> None:
    heights = {(name, each.name): each.figure.get_size_inches()[1] for name, mine in many.items() for each in mine}
    assert heights
    assert {what: height for what, height in heights.items() if height > TALLEST_IN} == {}


def test_names_of_figures_are_unique_and_their_captions_too(many: dict[str, list[Drawing]]) -> None:
    for name, mine in many.items():
        assert len({each.name for each in mine}) == len(mine), name
        assert len({each.caption for each in mine}) == len(mine), name


def test_every_row_of_the_overhead_is_in_one_of_its_figures(many: dict[str, list[Drawing]]) -> None:
    drawn = [place for each in many["overhead"] for place in each.figure.axes]
    assert sum(len(place.get_yticks()) for place in drawn) == 80
    assert max(len(place.get_yticks()) for place in drawn) <= charts.LARGEST
    assert overheads([]) == []


def remedy(**changes: Any) -> dict[str, Any]:
    row = {
        "strategy": "s", "format": "f", "stall_s": 0.5, "stall_low_s": 0.4, "stall_high_s": 0.6, "is_base": False,
        "checkpoint_bytes": 1e6, "ranks": 4, "nodes": 2, "ranks_per_node": 2, "asynchronous": False, "place": "2 x 2",
        "virtual_nodes": False,
    }  # fmt: skip
    return row | changes


def test_strategies_that_cost_the_same_keep_lines_of_their_own(tmp_path: Path) -> None:
    """In a plane of stall and bytes their names lay over each other."""
    rows = [remedy(strategy=f"strategy{i}", is_base=i == 3) for i in range(9)]
    (drawn,) = remedy_figure.drawings({"title": rows})
    left, right = drawn.figure.axes
    assert next(label.get_text() for label in left.get_yticklabels()) == "strategy3, f"
    assert len({label.get_position()[1] for label in left.get_yticklabels()}) == 9
    assert len(right.patches) == 9
    save_svg(drawn.figure, tmp_path / "x.svg")
    assert "compared with" in (tmp_path / "x.svg").read_text()


def test_strategies_are_drawn_at_one_point_only_and_only_beside_others() -> None:
    elsewhere = remedy(strategy="other", ranks=2, nodes=1)
    unknown = remedy(strategy="third", stall_s=None)
    assert remedy_figure.drawings({"title": [remedy(), elsewhere, unknown]}) == []
    many = {f"title {i}": [remedy(), remedy(strategy="other")] for i in range(remedy_figure.PANELS + 1)}
    assert [each.name for each in remedy_figure.drawings(many)] == ["strategies", "strategies-2"]


def test_timelines_begin_with_every_framework_and_strategy_at_most_ranks() -> None:
    def row(group: str, framework: str, ranks: int, stall_s: float) -> dict[str, Any]:
        return {"group": group, "framework": framework, "strategy": "s", "ranks": ranks, "stall_s": stall_s,
                "shown_path": "x"}  # fmt: skip

    rows = [row("a1", "a", 1, 9.0), row("a1", "a", 8, 1.0), row("a2", "a", 8, 2.0), row("a3", "a", 2, 5.0)]
    rows += [row("z1", "z", 4, 0.1), {**row("gone", "y", 99, 1.0), "shown_path": None}]
    assert [(each["group"], each["ranks"]) for each in _told(rows)] == [("a2", 8), ("z1", 4), ("a1", 8), ("a3", 2)]
