"""Charts that several questions draw: the same bytes each time, text that stays text, and nothing left out silently."""

from __future__ import annotations

from pathlib import Path

from analysis import charts
from analysis.figures import save_svg
from analysis.stats import Interval


def panels() -> list[charts.Panel]:
    items = [Interval(value=1.5, low=1.2, high=1.9, n=5), Interval(value=None, reason="planted")]
    line = charts.Series(label="one more copy", x=[], y=[], line=[(0, 0), (2, 2)])
    dots = charts.Series(label="torch", x=[1, 2], y=[2, 3], line=[(1, 2), (2, 3)])
    return [
        charts.bars(["first row", "second row"], {"parameter": [1, 2], "rng": [0, 0]}, "MB", "bars"),
        charts.intervals(["known", "unknown"], items, "ratio", "intervals", 1.1),
        charts.points([dots, line], "x", "y", "points"),
        charts.holders(["all", "some"], [{0, 1, 2, 3}, {1}], 4, ["#000000", "#111111"], "holders"),
    ]


def test_equal_data_give_equal_files_whose_text_is_text(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save_svg(charts.sheet("A title", "and words under it", panels(), [2.0] * 4), tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    for words in ("A title", "first row", "one more copy", "torch", "holders", "parameter"):
        assert f">{words}<" in text, words


def test_a_part_that_is_nowhere_has_no_place_in_the_legend(tmp_path: Path) -> None:
    save_svg(charts.sheet("t", "", panels()[:1], [2.0]), tmp_path / "a.svg")
    assert ">rng<" not in (tmp_path / "a.svg").read_text()


def test_every_rank_that_holds_something_is_filled() -> None:
    figure = charts.sheet("t", "", [panels()[3]], [2.0])
    shapes = [len(shape.get_paths()) for shape in figure.axes[0].collections]
    assert shapes == [4, 1]


def test_a_thousand_ranks_side_by_side_are_one_stretch() -> None:
    held = [set(range(1024)), {*range(10), 500}]
    figure = charts.sheet("t", "", [charts.holders(["all", "some"], held, 1024, ["#000", "#111"], "")], [2.0])
    shapes = [shape.get_paths() for shape in figure.axes[0].collections]
    assert [len(paths) for paths in shapes] == [1, 2]
    assert shapes[0][0].get_extents().width == 1024
