"""The question on model parallelism, on planted runs: each finding in both directions, and not measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from analysis.cli import Answer
from analysis.collect import collect
from analysis.finding import Finding
from analysis.model_parallel import ModelParallel
from analysis.model_parallel_claims import findings, paper
from tests.unit.planted import Plan, plant, read_trace

PARTS = Plan(nodes=4, framework="pytorch_fsdp", strategy="torch_dcp", writers=(0, 1, 2, 3))


def asked(tmp_path: Path, *plans: Plan, skipped: Sequence[dict] = ()) -> Answer:
    paths = [plant(tmp_path, plan) for plan in plans]
    ledger = {"runs": [], "skipped": list(skipped)}
    (paths[0].parent / "campaign.json").write_text(json.dumps(ledger))
    return ModelParallel().answer(collect(paths, read_trace), False)


def codes(answer: Answer) -> dict[str, Finding]:
    return {finding.code: finding for finding in answer.findings}


def test_ranks_that_write_their_parts(tmp_path: Path) -> None:
    found = codes(asked(tmp_path, PARTS))
    assert found["MP01"].verdict == "supports"
    assert "4 of 4 ranks wrote" in found["MP01"].sentence
    assert (found["MP02"].verdict, found["MP02"].value) == ("contradicts", 1.0)
    assert (found["MP03"].verdict, found["MP03"].value) == ("contradicts", 0.25)
    assert found["MP05"].verdict == "contradicts"
    assert "pytorch_fsdp with torch_dcp" in found["MP05"].sentence


def test_one_rank_that_gathers_all(tmp_path: Path) -> None:
    found = codes(asked(tmp_path, replace(PARTS, strategy="single_writer", writers=(0,))))
    assert (found["MP02"].verdict, found["MP02"].value) == ("supports", 4.0)
    assert (found["MP03"].verdict, found["MP03"].value) == ("supports", 1.0)
    assert found["MP03"].for_developers


def test_a_model_that_is_cut_unevenly_is_not_gathered(tmp_path: Path) -> None:
    found = codes(asked(tmp_path, replace(PARTS, bytes_of={1: 1000, 2: 1000, 3: 1000})))
    assert (found["MP02"].verdict, found["MP03"].verdict) == ("supports", "contradicts")
    assert (found["MP03"].value or 0) > 0.99
    assert "each its own part" in found["MP03"].sentence
    assert (found["MP02"].recommendation or "").startswith("Cut the model by bytes")


def test_what_differs_when_read_back_was_not_saved(tmp_path: Path) -> None:
    row = asked(tmp_path, PARTS).rows[0] | {"read_back": False, "read_back_reason": "generation 0: w differs"}
    found = {finding.code: finding for finding in findings(row)}
    assert (found["MP01"].verdict, found["MP01"].level) == ("contradicts", "critical")
    assert paper([row], []).verdict == "supports"


def test_what_was_not_read_back_is_not_measured(tmp_path: Path) -> None:
    found = codes(asked(tmp_path, replace(PARTS, verified=None)))
    assert (found["MP01"].verdict, found["MP05"].verdict) == ("not_measured", "not_measured")
    assert "not verified: planted" in (found["MP01"].reason or "")


def test_other_sizes_are_never_measured_and_say_what_is_declared(tmp_path: Path) -> None:
    fsdp = codes(asked(tmp_path / "a", PARTS))["MP04"]
    layers = replace(PARTS, framework="chainer_model_parallel", strategy="sharded")
    chainer = codes(asked(tmp_path / "b", layers))["MP04"]
    assert fsdp.verdict == chainer.verdict == "not_measured"
    assert "declare that it can" in (fsdp.reason or "")
    assert "declares that it cannot" in (chainer.reason or "")


def test_frameworks_whose_ranks_hold_everything_are_not_spoken_of(tmp_path: Path) -> None:
    answer = asked(tmp_path, replace(PARTS, framework="pytorch_ddp"))
    assert answer.rows == []
    assert [(f.code, f.verdict) for f in answer.findings] == [("MP05", "not_measured")]
    assert "No run is of a framework" in answer.notes[0]
    assert ModelParallel().drawings(answer) == []


def test_the_impossible_is_listed_with_its_reason(tmp_path: Path) -> None:
    reason = "no rank holds the whole"
    entry = {"framework": "pytorch_fsdp", "strategy": "replicated", "format": "dcp", "reason": reason}
    other = entry | {"framework": "pytorch_ddp"}
    answer = asked(tmp_path, replace(PARTS, framework="pytorch_ddp"), skipped=[entry, other])
    assert [row["reason"] for row in answer.rows] == ["no rank holds the whole"]
    assert ModelParallel().views(answer)[-1].below == ["pytorch_fsdp replicated dcp: no rank holds the whole"]
    assert codes(answer)["MP05"].verdict == "supports"
    assert "without any way: pytorch_fsdp" in codes(answer)["MP05"].sentence


def test_it_is_shown_and_drawn(tmp_path: Path) -> None:
    answer = asked(tmp_path, PARTS)
    view = ModelParallel().views(answer)[0]
    assert view.columns["writers\nseen/plan"] == ["4/4"]
    assert view.columns["read back"] == ["equal"]
    assert [drawing.name for drawing in ModelParallel().drawings(answer)] == ["ranks"]
