"""Damaged, unfinished and foreign run directories: named and left out, never a crash, never counted."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from analysis.collect import collect
from analysis.tables import Tables
from hpcckpt.rundir import RunDir
from tests.unit.planted import Plan, plant, plant_all, read_trace

DATA = Path(__file__).parents[1] / "data" / "run-schema-1"


def taken(path: Path) -> Tables:
    return collect([path], read_trace)


def only(path: Path) -> dict[str, Any]:
    """The one entry of left_out; nothing else may have been taken."""
    found = taken(path)
    assert found.runs.height == 0, found.runs["run"].to_list()
    assert found.saves.height == found.rank_saves.height == found.windows.height == 0
    assert found.left_out.height == 1, found.left_out.to_dicts()
    return found.left_out.to_dicts()[0]


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
