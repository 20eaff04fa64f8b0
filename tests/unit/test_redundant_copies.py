"""The question on redundant copies, on planted runs: each finding in both directions, and not measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.cli import Answer
from analysis.finding import Finding
from analysis.redundant_copies import RedundantCopies
from analysis.redundant_show import stretches
from tests.unit.planted import Plan
from tests.unit.stored import Stored, ask, on

FOUR = Plan(nodes=2, ranks_per_node=2, writers=(0, 1, 2, 3), strategy="replicated", file_bytes=4_000_000)
WHOLE = on(range(4), Stored())
PARTS = [Stored(rank=rank, tensor=f"w{rank}", digest=f"w{rank}") for rank in range(4)]
MULTI = replace(FOUR, framework="chainer_chainermn", strategy="chainermn_multi_node")
DCP = replace(FOUR, framework="pytorch_ddp", strategy="torch_dcp")


def by_code(answer: Answer) -> dict[str, Finding]:
    return {finding.code: finding for finding in answer.findings}


def whole(answer: Answer) -> dict:
    return next(row for row in answer.rows if row["about"] == "checkpoint")


def test_four_replicas_are_three_quarters_copies_on_two_nodes(tmp_path: Path) -> None:
    answer = ask(RedundantCopies(), tmp_path, (FOUR, WHOLE))
    found, row = by_code(answer), whole(answer)
    assert [found[code].verdict for code in ("RC01", "RC02", "RC03")] == ["supports"] * 3
    assert (found["RC01"].value, found["RC02"].value, found["RC03"].value) == (0.75, 0.75, 1.0)
    assert found["RC02"].recommendation
    assert found["RC02"].for_developers
    assert (row["once_disk_bytes"], row["sharded_rank_bytes"]) == (4_000_000, 1_000_000)
    assert row["fullest_rank_bytes"] == 4_000_000
    assert row["writer_nodes"] == 2


def test_parts_are_no_copies(tmp_path: Path) -> None:
    found = by_code(ask(RedundantCopies(), tmp_path, (FOUR, PARTS)))
    assert [found[code].verdict for code in ("RC01", "RC02", "RC03")] == ["contradicts"] * 3
    assert [found[code].level for code in ("RC01", "RC02", "RC03")] == ["ok"] * 3


def test_equal_names_with_other_contents_are_replicas_only(tmp_path: Path) -> None:
    pieces = [Stored(rank=rank, digest=f"w{rank}") for rank in range(4)]
    found = by_code(ask(RedundantCopies(), tmp_path, (FOUR, pieces)))
    assert (found["RC01"].verdict, found["RC02"].verdict) == ("supports", "contradicts")


def test_copies_within_a_node_lie_on_no_other(tmp_path: Path) -> None:
    pieces = on((0, 1), Stored()) + on((2, 3), Stored(digest="v"))
    found = by_code(ask(RedundantCopies(), tmp_path, (FOUR, pieces)))
    assert (found["RC02"].verdict, found["RC02"].value) == ("supports", 0.5)
    assert (found["RC03"].verdict, found["RC03"].value) == ("contradicts", 0.0)


def test_without_digests_copies_by_content_are_not_measured_and_replicas_are(tmp_path: Path) -> None:
    answer = ask(RedundantCopies(), tmp_path, (FOUR, on(range(4), Stored(digest=None))))
    found = by_code(answer)
    assert found["RC01"].verdict == "supports"
    for code in ("RC02", "RC03"):
        assert found[code].verdict == "not_measured"
        assert "no digests" in (found[code].reason or "")
    assert any("not measured: no digests" in line for view in RedundantCopies().views(answer) for line in view.below)


def test_generations_left_on_disk(tmp_path: Path) -> None:
    many = by_code(ask(RedundantCopies(), tmp_path / "a", (FOUR, WHOLE)))["RC04"]
    one = by_code(ask(RedundantCopies(), tmp_path / "b", (replace(FOUR, generations=1), WHOLE)))["RC04"]
    unknown = by_code(ask(RedundantCopies(), tmp_path / "c", (replace(FOUR, strategy="gone"), WHOLE)))["RC04"]
    assert (many.verdict, many.value) == ("supports", 3)
    assert (one.verdict, one.value) == ("contradicts", 1)
    assert unknown.verdict == "not_measured"
    assert "48 MB" in many.sentence


@pytest.mark.parametrize(
    ("other", "verdict"),
    [((replace(DCP, strategy="single_writer", writers=(0,)), [Stored()]), "supports"), ((DCP, PARTS), "contradicts")],
)
def test_the_paper_s_finding_on_who_writes_from_many_nodes(tmp_path: Path, other: tuple, verdict: str) -> None:
    found = by_code(ask(RedundantCopies(), tmp_path, (MULTI, WHOLE), other))["RC05"]
    assert found.verdict == verdict
    assert "chainer_chainermn chainermn_multi_node (2 of 2 nodes, 75.0 % copies)" in found.sentence


def test_the_paper_s_finding_needs_chainer_and_another(tmp_path: Path) -> None:
    alone = by_code(ask(RedundantCopies(), tmp_path, (MULTI, WHOLE)))["RC05"]
    without = by_code(ask(RedundantCopies(), tmp_path / "b", (DCP, PARTS)))["RC05"]
    assert (alone.verdict, without.verdict) == ("not_measured", "not_measured")
    assert "other framework" in (alone.reason or "")
    assert "Chainer" in (without.reason or "")


def test_who_holds_what_is_a_row_and_a_drawing(tmp_path: Path) -> None:
    answer = ask(RedundantCopies(), tmp_path, (FOUR, WHOLE + [replace(p, kind="rng", size=8) for p in PARTS]))
    held = {row["holders"]: row for row in answer.rows if row["about"] == "holders"}
    assert set(held) == {"0,1,2,3", "held once"}
    assert held["0,1,2,3"]["ranks_holding"] == held["held once"]["ranks_holding"] == [0, 1, 2, 3]
    assert held["0,1,2,3"]["copies_bytes"] == 12_000_000
    assert [drawing.name for drawing in RedundantCopies().drawings(answer)] == ["bytes", "holders"]


def test_every_cell_without_a_number_has_its_reason(tmp_path: Path) -> None:
    answer = ask(RedundantCopies(), tmp_path, (FOUR, on(range(4), Stored(file_bytes=None, digest=None))))
    for view in RedundantCopies().views(answer):
        marks = {cell for cells in view.columns.values() for cell in cells if cell.startswith("n.m.")}
        assert all(any(line.startswith(mark.removeprefix("n.m. ")) for line in view.below) for mark in marks)


def test_stretches() -> None:
    assert stretches([0, 1, 2, 3, 8]) == "0-3, 8"
    assert stretches([5]) == "5"


def test_bytes_are_true_without_a_device_behind_fsync(tmp_path: Path) -> None:
    found = by_code(ask(RedundantCopies(), tmp_path, (replace(FOUR, durable=True, probe_reason="tmpfs"), WHOLE)))
    assert [found[code].verdict for code in ("RC01", "RC02", "RC04")] == ["supports"] * 3


def test_an_unknown_size_leaves_the_copies_known_but_not_their_share_of_the_disk(tmp_path: Path) -> None:
    answer = ask(RedundantCopies(), tmp_path, (FOUR, on(range(4), Stored(file_bytes=None))))
    row = whole(answer)
    assert (row["content_redundant_share"], row["content_redundant_disk_bytes"]) == (0.75, None)
    assert row["content_redundant_disk_reason"].startswith("the inventory has no size of file")
    assert "sizes on disk not known" in by_code(answer)["RC02"].sentence
