"""Figures: the same bytes for the same data, one colour per phase, titles that say what is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from analysis.collect import collect
from analysis.figures import COLOURS, MECHANISM, PANELS, Bars, save_svg, stacked
from analysis.scaling import Scaling
from analysis.stats import Interval
from analysis.tables import PHASE_COLUMNS
from hpcckpt.records import PHASES
from tests.unit.planted import Plan, plant_all, read_trace


def bars(**changes: Any) -> Bars:
    fields: dict[str, Any] = {
        "title": "toy",
        "labels": ["1 x 1", "2 x 1"],
        "phases": {"write": [1.0, 1.2], "sync": [0.5, 0.0]},
        "waiting": [None, 1.1],
        "stall": [Interval(value=1.5, low=1.4, high=1.7, n=5), Interval(value=None)],
        "ideal": [1.5, 0.75],
    }
    return Bars(**{**fields, **changes})


def heights(figure: Any, label: str) -> list[float]:
    return [
        patch.get_height()
        for place in figure.axes
        for container in place.containers
        if container.get_label() == label
        for patch in container.patches
    ]


def test_every_phase_has_one_colour_of_its_own() -> None:
    assert set(COLOURS) == set(PHASES)
    assert len(set(COLOURS.values())) == len(COLOURS)
    assert set(PHASE_COLUMNS) <= set(COLOURS)


def test_svg_is_the_same_byte_for_byte_and_has_no_date(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save_svg(stacked([bars()], "title", "subtitle", "x"), tmp_path / name)
    data = (tmp_path / "a.svg").read_bytes()
    assert data == (tmp_path / "b.svg").read_bytes()
    assert b"<dc:date>" not in data
    assert len(data) < 60_000
    text = " ".join(ElementTree.fromstring(data).itertext())
    for part in ("title", "subtitle", "toy", "write", "the others wait", "ideal"):
        assert part in text


def test_heights_are_the_rows_numbers(tmp_path: Path) -> None:
    figure = stacked([bars()], "t", "s", "x")
    assert heights(figure, "write") == [1.0, 1.2]
    assert heights(figure, "sync") == [0.5, 0.0]
    assert heights(figure, "gather") == []
    assert heights(figure, "the others wait (mean)") == [1.1]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_any_number_of_panels(tmp_path: Path, count: int) -> None:
    figure = stacked([bars(title=f"panel {i}") for i in range(count)], "t", "s", "x")
    assert sum(place.get_visible() for place in figure.axes) == count
    save_svg(figure, tmp_path / "deep" / "x.svg")


def test_scaling_figure_from_planted_runs(tmp_path: Path) -> None:
    plans = [Plan(nodes=n, repeat=i, write_s=0.1 * n, virtual_nodes=False) for n in (1, 2, 4) for i in (1, 2)]
    question = Scaling()
    answer = question.answer(collect([plant_all(tmp_path, plans)], read_trace))
    figure = question.drawings(answer)[0].figure
    assert heights(figure, "write") == pytest.approx([0.1, 0.2, 0.4])
    total = [sum(row[column] or 0 for column in PHASE_COLUMNS.values()) for row in answer.rows]
    assert total == pytest.approx([row["stall_s"] for row in answer.rows])
    ideal = [line for place in figure.axes for line in place.lines if "ideal" in str(line.get_label())]
    smallest = answer.rows[0]["stall_s"]
    assert np.asarray(ideal[0].get_ydata()).tolist() == pytest.approx([smallest, smallest / 2, smallest / 4])
    save_svg(figure, tmp_path / "f.svg")
    assert "phases of the slowest rank" in (tmp_path / "f.svg").read_text()


def test_virtual_nodes_have_no_ideal_and_are_called_one_machine(tmp_path: Path) -> None:
    question = Scaling()
    plans = [Plan(nodes=n, write_s=0.1 * n) for n in (1, 2, 4)]
    (drawn,) = question.drawings(question.answer(collect([plant_all(tmp_path, plans)], read_trace)))
    assert not [line for place in drawn.figure.axes for line in place.lines if "ideal" in str(line.get_label())]
    save_svg(drawn.figure, tmp_path / "f.svg")
    assert MECHANISM in (tmp_path / "f.svg").read_text()


def test_many_groups_make_figures_of_a_screen_each_and_single_points_one_of_bars(tmp_path: Path) -> None:
    """A panel per group would be a figure that nobody scrolls; one bar in a panel of its own says nothing."""
    grown = [Plan(nodes=n, model=f"grown{i}") for n in (1, 2) for i in range(PANELS + 1)]
    alone = [Plan(model=f"alone{i}", write_s=0.1 * i) for i in range(5)]
    question = Scaling()
    answer = question.answer(collect([plant_all(tmp_path, [*grown, *alone])], read_trace))
    drawn = question.drawings(answer)
    assert [each.name for each in drawn] == ["stall", "stall-2", "points-1"]
    assert max(each.figure.get_size_inches()[1] for each in drawn) < 16
    assert "5 groups with one point only" in svg_of(drawn[0].figure, tmp_path)
    labels = [label.get_text() for label in drawn[2].figure.axes[0].get_yticklabels()]
    assert ["alone4" in label for label in labels] == [True, False, False, False, False]  # the largest stall on top
    assert len(labels) == 5


def svg_of(figure: Any, folder: Path) -> str:
    save_svg(figure, folder / "of.svg")
    return (folder / "of.svg").read_text()


def test_nothing_measured_is_no_figure(tmp_path: Path) -> None:
    plans = [Plan(durable=True, probe_reason="tmpfs")]
    question = Scaling()
    answer = question.answer(collect([plant_all(tmp_path, plans)], read_trace))
    assert question.drawings(answer) == []


def test_real_nodes_are_not_called_one_machine(tmp_path: Path) -> None:
    question = Scaling()
    answer = question.answer(collect([plant_all(tmp_path, [Plan(virtual_nodes=False)])], read_trace))
    figure = question.drawings(answer)[0].figure
    save_svg(figure, tmp_path / "f.svg")
    assert MECHANISM not in (tmp_path / "f.svg").read_text()
