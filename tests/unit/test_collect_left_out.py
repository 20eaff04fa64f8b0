"""Damaged, unfinished and foreign run directories: named and left out, never a crash, never counted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from analysis.collect import collect
from analysis.tables import Tables
from hpcckpt import records
from hpcckpt.errors import SpecError
from hpcckpt.rundir import RunDir
from tests.unit.collecting import only, taken
from tests.unit.planted import Plan, plant, plant_all, read_trace

DATA = Path(__file__).parents[1] / "data" / "run-schema-1"


def test_last_line_cut_at_every_byte(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan(generations=1))
    file = RunDir(path).leg("train").rank_file(1)
    whole = file.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last, len(whole)):
        file.write_bytes(whole[:cut])
        left = only(path)
        assert left["code"] == ("no_closing_line" if cut == last else "half_line"), cut
        assert left["file"] == str(file)
        assert "rank 1" in left["reason"]
    file.write_bytes(whole)
    assert taken(path).runs.height == 1


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty_rank_file"),
        (b"\n", "bad_line"),
        (b"\x00\xff\xfe\n", "bad_line"),
        (b'{"type":"start","schema_version":2}\n', "other_schema"),
        (b'{"type":"unheard_of"}\n', "bad_line"),
        (b"[]\n", "bad_line"),
    ],
)
def test_rank_files_of_other_content(tmp_path: Path, content: bytes, code: str) -> None:
    path = plant(tmp_path, Plan())
    RunDir(path).leg("control").rank_file(0).write_bytes(content)
    assert only(path)["code"] == code


def test_rank_that_failed_and_rank_file_that_is_missing(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan())
    file = RunDir(path).leg("train").rank_file(0)
    lines = file.read_bytes().splitlines(keepends=True)
    end = b'{"type":"end","t_ns":1,"status":"failed","error":"OSError: no space","inside":["save","write"]}\n'
    file.write_bytes(b"".join([*lines[:-1], end]))
    left = only(path)
    assert left["code"] == "ended_badly"
    assert "save > write: OSError: no space" in left["reason"]
    file.unlink()
    assert only(path)["code"] == "no_rank_file"


def test_rank_file_of_another_run_is_not_taken(tmp_path: Path) -> None:
    path, other = plant(tmp_path, Plan()), plant(tmp_path, Plan(repeat=2))
    shutil.copy(RunDir(other).leg("train").rank_file(1), RunDir(path).leg("train").rank_file(1))
    assert only(path)["code"] == "wrong_rank"


def test_state_missing_unreadable_or_not_done(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan())
    state = RunDir(path).state
    state.unlink()
    left = only(path)
    assert left["code"] == "not_done"
    assert "no state file" in left["reason"]
    state.write_text("{")
    assert only(path)["code"] == "unreadable"
    failed = plant(tmp_path, Plan(repeat=2, state="failed"))
    assert only(failed)["code"] == "not_done"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "unreadable"),
        ('{"schema_version": 99}', "other_schema"),
        ("[]", "other_schema"),
        ("\udc80", "unreadable"),
    ],
)
def test_run_json_of_other_content(tmp_path: Path, text: str, code: str) -> None:
    path = plant(tmp_path, Plan())
    RunDir(path).run.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert only(path)["code"] == code


def test_a_file_in_place_of_a_run_and_a_planned_run_without_directory(tmp_path: Path) -> None:
    campaign = plant_all(tmp_path, [Plan(), Plan(repeat=2), Plan(repeat=3)])
    shutil.rmtree(campaign / Plan(repeat=2).run_id)
    shutil.rmtree(campaign / Plan(repeat=3).run_id)
    (campaign / Plan(repeat=3).run_id).write_text("I am a file")
    found = taken(campaign)
    assert found.runs.height == 1
    assert sorted(found.left_out["code"]) == ["missing", "not_a_run"]
    lone = tmp_path / "lone"
    lone.write_text("")
    assert only(lone)["code"] == "not_a_run"


def same(path: Path, *others: Path) -> Tables:
    """What is taken of one run that several paths name."""
    found = collect([path, *others], read_trace)
    assert (found.runs.height, found.saves.height) == (1, 3), found.runs["path"].to_list()
    return found


def test_a_run_of_several_names_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plant(tmp_path / "runs", Plan())
    link, campaign = tmp_path / "link", tmp_path / "campaign"
    link.symlink_to(path)
    campaign.symlink_to(path.parent)
    monkeypatch.chdir(tmp_path)
    found = same(path, path.relative_to(tmp_path), link, campaign, tmp_path / "runs")
    assert found.left_out.height == 0
    assert found.runs["path"].to_list() == [str(path)]


def test_a_copied_run_is_counted_once_and_its_copy_listed(tmp_path: Path) -> None:
    path = plant_all(tmp_path / "a", [Plan()]) / Plan().run_id
    beside = Path(shutil.copytree(path, path.with_name("copy")))
    elsewhere = Path(shutil.copytree(path.parent, tmp_path / "b" / "planted")) / path.name
    left = same(path, beside, elsewhere).left_out
    assert left["code"].to_list() == ["duplicate", "duplicate"]
    assert left["file"].to_list() == [str(beside), str(elsewhere)]
    assert all(str(path) in reason for reason in left["reason"])
    # The run was repeated under its old name: another execution.
    file = RunDir(beside).leg("train").rank_file(0)
    file.write_bytes(file.read_bytes().replace(b'"pid":1000', b'"pid":77'))
    assert collect([path, beside], read_trace).runs.height == 2


def edited(path: Path, changes: dict[str, pl.Expr]) -> None:
    inventory = RunDir(path).leg("train").inventory
    pl.read_parquet(inventory).with_columns(**changes).write_parquet(inventory)


def test_a_generation_that_the_inventory_lacks_is_not_empty(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan())
    inventory = RunDir(path).leg("train").inventory
    pl.read_parquet(inventory).filter(pl.col("generation") != 1).write_parquet(inventory)
    found = taken(path)
    save = found.saves.row(1, named=True)
    reason = "the inventory lists nothing of generation 1"
    assert (save["checkpoint_bytes"], save["effective_gb_per_s"], save["coverage_min"]) == (None, None, None)
    assert (save["bytes_reason"], save["coverage_reason"]) == (reason, f"rank 0: {reason}")
    ranks = found.rank_saves.filter(pl.col("generation") == 1)
    assert set(ranks.select("disk_bytes", "bytes_reason").rows()) == {(None, reason)}
    assert found.saves["checkpoint_bytes"].to_list() == [10_000_000, None, 10_000_000]
    assert found.left_out.height == 0


def test_a_size_that_is_not_known_has_a_reason_and_one_that_cannot_be_is_a_bad_inventory(tmp_path: Path) -> None:
    last = pl.col("generation") == 2
    path = plant(tmp_path, Plan())
    edited(path, {"file_bytes": pl.when(~last).then(pl.col("file_bytes"))})
    found = taken(path)
    assert found.left_out.height == 0, "a mechanism may prune a file before its size can be read"
    assert found.saves["checkpoint_bytes"].to_list() == [10_000_000, 10_000_000, None]
    assert "no size of file generation-00002/" in found.saves["bytes_reason"][2]
    edited(path, {"file_bytes": pl.when(last).then(-1).otherwise(1)})
    found = taken(path)
    assert found.left_out.select("scope", "code").rows() == [("inventory", "bad_inventory")]
    assert found.saves["checkpoint_bytes"].to_list() == [None] * 3
    assert "has -1 bytes" in found.saves["bytes_reason"][0]
    assert found.files.height == 0


Lines = list[records.Record]


def _first(lines: Lines, kind: type[records.Record], **changes: Any) -> Lines:
    """The lines with the first of a kind changed."""
    at = next(i for i, line in enumerate(lines) if isinstance(line, kind))
    return [*lines[:at], msgspec.structs.replace(lines[at], **changes), *lines[at + 1 :]]


def _without(lines: Lines, generation: int) -> Lines:
    return [line for line in lines if getattr(line, "generation", None) != generation]


def _fewer_saves(lines: Lines) -> Lines:
    return _first(_without(lines, 2), records.Window, saves=2)


def _twice(lines: Lines, kind: type[records.Record]) -> Lines:
    at = next(i for i, line in enumerate(lines) if isinstance(line, kind))
    return [*lines[:at], lines[at], *lines[at:]]


IMPOSSIBLE: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "span": (lambda x: _first(x, records.Span, end_ns=1), "end_ns 1 is before begin_ns"),
    "step": (lambda x: _first(x, records.Step, end_ns=1), "line 5, step: end_ns 1 is before"),
    "save end": (lambda x: _first(x, records.Save, end_ns=1), "save of generation 0: end_ns 1 is before"),
    "save done": (lambda x: _first(x, records.Save, done_ns=1), "done_ns 1 is before begin_ns"),
    "save arrive": (lambda x: _first(x, records.Save, arrive_ns=10**18), "is before arrive_ns"),
    "size": (lambda x: _first(x, records.Save, planned_bytes=-5), "planned_bytes is -5"),
    "window": (lambda x: _first(x, records.Window, end_ns=1), "end_ns 1 is before"),
    "pause": (lambda x: _first(x, records.Window, paused_ns=10**15), "paused_ns 1000000000000000 in a window"),
    "negative pause": (lambda x: _first(x, records.Window, paused_ns=-1), "paused_ns is -1"),
    "end": (lambda x: [*x[:-2], x[-1], *x[-2:]], "a closing line before the last"),
    "start": (lambda x: _twice(x, records.Start), "a second opening line"),
    "twice": (lambda x: _twice(x, records.Span), "the same span stands there twice"),
    "gap": (lambda x: _first(_without(x, 1), records.Window, saves=2), "generations [0, 2] are not counted"),
    "lost": (lambda x: _without(x, 2), "the window counts 3 saves, the file holds 2"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_records_that_cannot_be_true_are_not_counted(tmp_path: Path, case: str) -> None:
    path = plant(tmp_path, Plan(nodes=1))
    change, reason = IMPOSSIBLE[case]
    file = RunDir(path).leg("train").rank_file(0)
    lines = [records.decode(line) for line in file.read_bytes().splitlines()]
    file.write_bytes(b"".join(map(records.encode, change(lines))))
    left = only(path)
    assert (left["code"], left["file"]) == ("impossible_record", str(file))
    assert "rank 0" in left["reason"]
    assert reason in left["reason"]


def test_fewer_checkpoints_than_planned_are_possible(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan(nodes=1))
    file = RunDir(path).leg("train").rank_file(0)
    lines = [records.decode(line) for line in file.read_bytes().splitlines()]
    file.write_bytes(b"".join(map(records.encode, _fewer_saves(lines))))
    assert taken(path).saves.height == 2


@pytest.mark.parametrize("rank", [2, 7, 99999])
def test_a_rank_file_beyond_the_size_of_the_run(tmp_path: Path, rank: int) -> None:
    path = plant(tmp_path, Plan(nodes=2))
    leg = RunDir(path).leg("control")
    shutil.copy(leg.rank_file(1), leg.rank_file(rank))
    left = only(path)
    assert (left["code"], left["file"]) == ("wrong_rank", str(leg.rank_file(rank)))


@pytest.mark.parametrize("text", ["{", "{}", "[]", "7", '{"runs": {}}', '{"runs": [{}]}', "\udc80"])
def test_a_ledger_that_names_no_runs_is_listed_and_its_runs_counted(tmp_path: Path, text: str) -> None:
    ledger = plant_all(tmp_path, [Plan()]) / "campaign.json"
    ledger.write_bytes(text.encode("utf-8", "surrogateescape"))
    for given in (tmp_path, ledger.parent):
        left = same(given).left_out.to_dicts()
        assert [(row["scope"], row["code"], row["file"]) for row in left] == [
            ("campaign", "unreadable", str(ledger))
        ]


def test_a_manifest_that_is_no_object_leaves_the_commit_open(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan())
    RunDir(path).manifest.write_text("[1]")
    found = same(path)
    assert (found.runs["commit"].to_list(), found.left_out.height) == (["not recorded"], 0)


def test_an_empty_root_is_a_mistake_and_a_stray_folder_nobodys_run(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with pytest.raises(SpecError, match="no run in it; give runs, campaigns or a root of campaigns"):
        collect([tmp_path / "root"], read_trace)
    campaign = plant_all(tmp_path / "root", [Plan()])
    (campaign / "figures").mkdir()
    (campaign / "figures" / "stall.svg").write_text("")
    assert same(campaign).left_out.height == 0
