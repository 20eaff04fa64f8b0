"""The question on memory, on planted runs: each finding in both directions, and not measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.cli import Answer
from analysis.collect import collect
from analysis.finding import Finding
from analysis.memory import Memory
from analysis.memory_claims import findings
from tests.unit.planted import Plan, plant, read_trace

ONE = Plan(nodes=2, ranks_per_node=2, writers=(0,), file_bytes=10_000_000, rss_extra={1: 0, 2: 0, 3: 0, 0: 10_000_000})


def asked(tmp_path: Path, plan: Plan) -> Answer:
    return Memory().answer(collect([plant(tmp_path, plan)], read_trace), False)


def found(tmp_path: Path, plan: Plan) -> dict[str, Finding]:
    return {finding.code: finding for finding in asked(tmp_path, plan).findings}


def grown(row: dict[str, Any], by: float) -> Finding:
    return next(finding for finding in findings(row | {"growth_bytes": by}) if finding.code == "MM04")


def test_one_copy_on_the_writer_and_none_elsewhere(tmp_path: Path) -> None:
    answer = asked(tmp_path, ONE)
    codes, row = {finding.code: finding for finding in answer.findings}, answer.rows[0]
    assert (codes["MM01"].verdict, codes["MM01"].value) == ("supports", 1.0)
    assert (codes["MM02"].verdict, codes["MM02"].value) == ("contradicts", 0)
    assert (codes["MM03"].verdict, codes["MM03"].value) == ("supports", 4.0)
    assert "rank 0 in 1 of 1 run" in codes["MM03"].sentence
    assert (row["extra_bytes"], row["extra_total_bytes"], row["extra_over_state"]) == (10**7, 10**7, 1.0)
    assert codes["MM01"].for_developers
    said = "rank 0, the main writer in 1 of 1 run, grows by 10 MB, 1.00 times the 10 MB that it was given"
    assert said in codes["MM01"].sentence


def test_a_writer_that_streams_needs_no_copy(tmp_path: Path) -> None:
    codes = found(tmp_path, replace(ONE, rss_extra=dict.fromkeys(range(4), 100000)))
    assert (codes["MM01"].verdict, codes["MM01"].value) == ("contradicts", 0.01)
    assert (codes["MM03"].verdict, codes["MM03"].value) == ("contradicts", 1.0)


def test_a_buffer_on_a_rank_that_writes_next_to_nothing_is_no_copy(tmp_path: Path) -> None:
    plan = replace(ONE, writers=(0, 1), bytes_of={1: 1000}, rss_extra={0: 100_000, 1: 100_000, 2: 0, 3: 0})
    assert found(tmp_path, plan)["MM01"].value == 0.01


def test_a_rank_that_needs_little_needs_not_much_more_than_the_others(tmp_path: Path) -> None:
    found_ = found(tmp_path, replace(ONE, rss_extra={0: 100_000, 1: 0, 2: 0, 3: 0}))["MM03"]
    assert (found_.verdict, found_.value) == ("contradicts", 4.0)
    assert "which is little" in found_.sentence


def test_others_that_copy_too(tmp_path: Path) -> None:
    codes = found(tmp_path, replace(ONE, rss_extra=dict.fromkeys(range(4), 10000000)))
    assert (codes["MM02"].verdict, codes["MM02"].value) == ("supports", 10_000_000)


def test_where_every_rank_writes_there_are_no_others(tmp_path: Path) -> None:
    codes = found(tmp_path, replace(ONE, writers=(0, 1, 2, 3)))
    assert (codes["MM02"].verdict, codes["MM02"].reason) == ("not_measured", "every rank writes")
    alone = found(tmp_path, replace(ONE, nodes=1, ranks_per_node=1))
    assert (alone["MM03"].verdict, alone["MM03"].reason) == ("not_measured", "one rank has no others")


def test_memory_that_stays_and_memory_that_is_given_back(tmp_path: Path) -> None:
    answer = asked(tmp_path, ONE)
    row = answer.rows[0]
    assert (row["growth_bytes"], next(f for f in answer.findings if f.code == "MM04").verdict) == (0, "contradicts")
    assert grown(row, 0.2 * row["state_bytes"]).verdict == "supports"
    short = found(tmp_path, replace(ONE, generations=2, repeat=2))["MM04"]
    assert (short.verdict, short.reason) == ("not_measured", "no run has 3 checkpoints")


def test_without_the_kernel_s_numbers_nothing_is_measured(tmp_path: Path) -> None:
    answer = asked(tmp_path, replace(ONE, rss_before=None))
    assert {finding.verdict for finding in answer.findings} == {"not_measured"}
    assert {finding.reason for finding in answer.findings} == {"planted"}
    view = Memory().views(answer)[0]
    assert "(1) not measured: planted" in view.below
    assert view.columns["extra\nMB"] == ["n.m. (1)"]
    assert Memory().drawings(answer) == []


def test_it_is_drawn(tmp_path: Path) -> None:
    assert [drawing.name for drawing in Memory().drawings(asked(tmp_path, ONE))] == ["copies", "points"]
