"""The question on model size, on planted runs: each finding in both directions, and not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.cli import Answer
from analysis.collect import collect
from analysis.finding import Finding
from analysis.model_size import ModelSize
from tests.unit.planted import Plan, plant, read_trace

SIZES = (("small", 1_000_000), ("middle", 2_000_000), ("large", 4_000_000), ("vast", 8_000_000))


def plans(stalls: Sequence[float], bytes_: Sequence[int], extras: Sequence[int] | None = None) -> list[Plan]:
    """Two runs per model, a millisecond apart."""
    extras = extras or [size * 8 for _, size in SIZES]
    found = []
    for (model, size), stall, count, extra in zip(SIZES, stalls, bytes_, extras, strict=False):
        for repeat in (1, 2):
            plan = Plan(nodes=1, model=model, parameters=size, repeat=repeat, file_bytes=count, rss_extra={0: extra})
            found.append(replace(plan, write_s=stall + repeat / 1000))
    return found


def asked(tmp_path: Path, found: Sequence[Plan]) -> Answer:
    return ModelSize().answer(collect([plant(tmp_path, plan) for plan in found], read_trace), False)


def codes(answer: Answer) -> dict[str, Finding]:
    return {finding.code: finding for finding in answer.findings}


PROPORTIONAL = [size * 8 for _, size in SIZES]


def test_a_stall_that_grows_with_the_parameters_has_its_slope(tmp_path: Path) -> None:
    found = codes(asked(tmp_path, plans([0.1, 0.2, 0.4, 0.8], PROPORTIONAL)))
    assert found["MS01"].verdict == "supports"
    assert found["MS01"].value == pytest.approx(100, rel=0.01)  # ms per million
    assert found["MS02"].verdict == "supports"
    assert found["MS03"].verdict == "supports"
    assert found["MS03"].value == pytest.approx(8)
    assert (found["MS04"].verdict, "R2 1.000" in found["MS01"].sentence) == ("supports", True)


def test_a_stall_that_shrinks_contradicts_and_one_that_wanders_is_undecided(tmp_path: Path) -> None:
    shrinks = codes(asked(tmp_path / "a", plans([0.8, 0.7, 0.5, 0.1], PROPORTIONAL)))
    wanders = codes(asked(tmp_path / "b", plans([0.1, 0.9, 0.1, 0.4], PROPORTIONAL)))
    assert shrinks["MS01"].verdict == "contradicts"
    assert (wanders["MS01"].verdict, wanders["MS04"].verdict) == ("not_measured", "contradicts")
    assert "the interval holds 0" in (wanders["MS01"].reason or "")


def test_noise_between_repeats_is_not_the_architecture_s(tmp_path: Path) -> None:
    """Repeats of the large models 0.4 s apart around a line: R2 is low, and says nothing of the models."""
    noisy = [
        replace(plan, write_s=plan.write_s + (0.25 if plan.repeat == 2 else -0.25) * plan.parameters / 8e6)
        for plan in plans([0.3, 0.35, 0.45, 0.65], PROPORTIONAL)
    ]
    found = codes(asked(tmp_path / "a", noisy))["MS04"]
    assert found.verdict == "not_measured"
    assert "by no more than repeats of one model scatter (F test, p 1)" in (found.reason or "")
    assert "of the rest 100 % lies between repeats" in (found.reason or "")
    wanders = plans([0.1, 0.9, 0.1, 0.4], PROPORTIONAL)
    assert "F test, p" in codes(asked(tmp_path / "b", wanders))["MS04"].sentence
    once = codes(asked(tmp_path / "c", [plan for plan in wanders if plan.repeat == 1]))["MS04"]
    assert "no repeats tell the scatter" in (once.reason or "")


def test_bytes_that_depend_on_the_architecture(tmp_path: Path) -> None:
    answer = asked(tmp_path, plans([0.1, 0.2, 0.4, 0.8], [8_000_000, 16_000_000, 32_000_000, 32_000_000]))
    found = codes(answer)["MS02"]
    assert (found.verdict, found.value) == ("contradicts", 1.0)
    assert "vast 4" in found.sentence


def test_memory_that_stays_the_same(tmp_path: Path) -> None:
    shrinking = [8_000_000, 6_000_000, 3_000_000, 1_000_000]
    found = codes(asked(tmp_path, plans([0.1, 0.2, 0.4, 0.8], PROPORTIONAL, shrinking)))["MS03"]
    assert found.verdict == "contradicts"


def test_no_line_through_two_sizes_and_no_comparison_of_one(tmp_path: Path) -> None:
    two = codes(asked(tmp_path / "a", plans([0.1, 0.2], PROPORTIONAL)))
    one = codes(asked(tmp_path / "b", plans([0.1], PROPORTIONAL)))
    assert two["MS01"].reason == "a line needs at least 3 different values, these runs have 2"
    assert two["MS02"].verdict == "supports"
    assert {finding.verdict for finding in one.values()} == {"not_measured"}
    assert "two models" in (one["MS02"].reason or "")


def test_memory_that_nobody_measured_has_its_reason(tmp_path: Path) -> None:
    answer = asked(tmp_path, [replace(p, rss_before=None) for p in plans([0.1, 0.2, 0.4, 0.8], PROPORTIONAL)])
    assert (codes(answer)["MS03"].verdict, codes(answer)["MS03"].reason) == ("not_measured", "planted")
    models, fits = ModelSize().views(answer)
    assert models.columns["extra\nmemory MB"] == ["n.m. (1)"] * 4
    assert "(1) not measured: planted" in models.below
    assert any("planted" in line for line in fits.below)


def test_it_is_drawn_with_its_lines(tmp_path: Path) -> None:
    answer = asked(tmp_path, plans([0.1, 0.2, 0.4, 0.8], PROPORTIONAL))
    figure = ModelSize().drawings(answer)[0].figure
    assert [axes.get_ylabel() for axes in figure.axes] == ["stall, s", "checkpoint, MB", "extra memory, MB"]
    assert [len(axes.lines) for axes in figure.axes] == [2, 2, 2]


def test_times_without_a_device_behind_fsync_are_not_measured_and_bytes_are(tmp_path: Path) -> None:
    nothing = plans([0.1, 0.2, 0.4, 0.8], PROPORTIONAL)
    found = codes(asked(tmp_path, [replace(plan, durable=True, probe_reason="tmpfs") for plan in nothing]))
    assert (found["MS01"].verdict, found["MS01"].reason) == ("not_measured", "no device behind fsync (tmpfs)")
    assert (found["MS02"].verdict, found["MS03"].verdict) == ("supports", "supports")
