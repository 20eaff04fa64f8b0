"""What is kept of collected runs: only what is new or changed is read again, and no damage to it is ever an error."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analysis import collect as module
from analysis import store
from analysis.collect import collect
from analysis.tables import TABLES, Tables
from hpcckpt.rundir import RunDir
from tests.unit.planted import Plan, plant, plant_all

PLANS = [Plan(repeat=number, log="darshan", generations=2, started=20.0 * number) for number in (1, 2, 3)]


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    return plant_all(tmp_path, PLANS)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the runs that were read, in their order."""
    names: list[str] = []

    def counted(path: Path) -> Any:
        names.append(path.name)
        return original(path)

    original = module.opened
    monkeypatch.setattr(module, "opened", counted)
    return names  # type: ignore[return-value]


def same(left: Tables, right: Tables) -> None:
    for table in TABLES:
        one, two = getattr(left, table), getattr(right, table)
        assert one.equals(two), table
        assert one.schema == two.schema


def zipped(path: Path, change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> None:
    """The kept file with its members changed."""
    file = path / store.FILE
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in change(members).items():
            archive.writestr(name, content)
    packed = file.read_bytes()
    file.write_bytes(store._sum(packed) + packed)  # whole, as far as its digest goes


def test_a_second_time_nothing_is_read_and_the_tables_are_the_same(campaign: Path, read: list[str]) -> None:
    fresh = collect([campaign], keep=False)
    assert not (campaign / store.FILE).exists()
    first = collect([campaign])
    assert len(read) == 6
    again = collect([campaign])
    assert len(read) == 6
    same(fresh, first)
    same(fresh, again)
    one = collect([campaign / PLANS[1].run_id])
    assert (one.runs["repeat"].to_list(), len(read)) == ([2], 6)


def test_new_and_changed_runs_alone_are_read_again(campaign: Path, read: list[str]) -> None:
    collect([campaign])
    read.clear()
    changed = RunDir(campaign / PLANS[1].run_id).leg("train").rank_file(1)
    text = changed.read_bytes()
    changed.write_bytes(text.replace(b'"node":"virtual001"', b'"node":"virtual009"'))
    plant(campaign.parent, Plan(repeat=4, log="darshan", generations=2))
    found = collect([campaign])
    assert read == [PLANS[1].run_id, Plan(repeat=4).run_id]
    assert found.runs["repeat"].to_list() == [1, 2, 3, 4]
    nodes = found.rank_saves.filter(pl.col("node") == "virtual009")
    assert set(nodes["run"]) == {f"planted/{PLANS[1].run_id}"}
    same(found, collect([campaign], keep=False))


@pytest.mark.parametrize("touched", ["state.json", "manifest.json", "run.json", "legs/train/inventory.parquet"])
def test_each_file_of_a_run_counts(campaign: Path, read: list[str], touched: str) -> None:
    collect([campaign])
    read.clear()
    os.utime(campaign / PLANS[0].run_id / touched, (1, 1))
    collect([campaign])
    assert read == [PLANS[0].run_id]


def test_links_are_followed_and_may_lead_back(campaign: Path, read: list[str]) -> None:
    leg = RunDir(campaign / PLANS[0].run_id).leg("train")
    elsewhere = leg.darshan.rename(campaign.parent / "scratch")
    leg.darshan.symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(leg.path)
    first = collect([campaign])
    read.clear()
    same(first, collect([campaign]))
    assert read == []
    os.utime(next((elsewhere / "rank00000").glob("*.darshan")), (1, 1))
    collect([campaign])
    assert read == [PLANS[0].run_id]


def test_a_log_that_is_gone_or_new_counts(campaign: Path, read: list[str]) -> None:
    collect([campaign])
    read.clear()
    logs = RunDir(campaign / PLANS[0].run_id).leg("train").rank_darshan(0)
    next(logs.glob("*.darshan")).unlink()
    found = collect([campaign])
    assert read == [PLANS[0].run_id]
    assert found.saves.filter(pl.col("run").str.ends_with("r01"))["writers_seen"].to_list() == [None, None]


def test_a_deleted_run_is_forgotten(campaign: Path, read: list[str]) -> None:
    collect([campaign])
    shutil.rmtree(campaign / PLANS[0].run_id)
    found = collect([campaign])
    assert found.runs["repeat"].to_list() == [2, 3]
    assert found.left_out["code"].to_list() == ["missing"]
    with zipfile.ZipFile(campaign / store.FILE) as archive:
        kept = pl.read_parquet(io.BytesIO(archive.read("runs.parquet")))
    assert kept["repeat"].to_list() == [2, 3]


def test_a_run_that_is_not_counted_is_looked_at_each_time(campaign: Path, read: list[str]) -> None:
    file = RunDir(campaign / PLANS[0].run_id).leg("train").rank_file(0)
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    for _ in range(2):
        assert collect([campaign]).left_out["code"].to_list() == ["half_line"]
    assert read.count(PLANS[0].run_id) == 2
    file.write_bytes(whole)
    assert collect([campaign]).runs.height == 3


def test_a_run_that_never_began_is_what_it_is_without_anything_kept(campaign: Path) -> None:
    begun = RunDir(plant(campaign.parent, Plan(repeat=4, state="queued")))
    shutil.rmtree(begun.legs)
    begun.manifest.unlink()
    empty = RunDir(plant(campaign.parent, Plan(repeat=5)))
    shutil.rmtree(empty.legs)
    for _ in range(2):
        assert collect([campaign]).left_out["code"].to_list() == ["not_done", "no_rank_file"]
    same(collect([campaign]), collect([campaign], keep=False))


def test_what_runs_say_of_each_other_is_not_kept(tmp_path: Path, read: list[str]) -> None:
    plans = [Plan(started=100.0, log="darshan"), Plan(repeat=2, started=105.0, log="darshan")]
    campaign = plant_all(tmp_path, plans)
    assert all(flags for flags in collect([campaign]).runs["flags"].to_list())
    for _ in range(2):
        alone = collect([campaign / plans[0].run_id])
        assert alone.runs["flags"].to_list() == [[]]
    shutil.copytree(campaign / plans[0].run_id, campaign / "copy")
    for _ in range(2):
        found = collect([campaign])
        assert found.runs.height == 2
        assert found.left_out.select("code", "file").rows() == [("duplicate", str(campaign / plans[0].run_id))]


def test_a_campaign_that_moved_or_is_named_otherwise(
    campaign: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = next(RunDir(campaign / PLANS[0].run_id).leg("train").rank_darshan(0).glob("*.darshan"))
    log.unlink()
    log.write_bytes(b"no log")
    collect([campaign])
    read.clear()
    monkeypatch.chdir(campaign.parent)
    relative = collect([Path(campaign.name)])
    assert read == []
    same(relative, collect([Path(campaign.name)], keep=False))
    assert relative.left_out["file"].to_list()[0].startswith(campaign.name + "/")
    read.clear()
    moved = campaign.rename(campaign.with_name("elsewhere"))
    found = collect([moved])
    assert len(read) == 3
    assert set(found.runs["campaign"]) == {"elsewhere"}


def test_a_file_cut_anywhere_is_no_error(campaign: Path, read: list[str]) -> None:
    fresh = collect([campaign])
    whole = (campaign / store.FILE).read_bytes()
    for cut in (0, 1, 100, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        (campaign / store.FILE).write_bytes(whole[:cut])
        read.clear()
        same(fresh, collect([campaign]))
        assert len(read) == 3, cut
        assert len((campaign / store.FILE).read_bytes()) > 1000, "and it is made anew"


def test_a_flipped_byte_is_no_error(campaign: Path) -> None:
    fresh = collect([campaign])
    whole = bytearray((campaign / store.FILE).read_bytes())
    for at in range(0, len(whole), max(1, len(whole) // 60)):
        damaged = whole.copy()
        damaged[at] ^= 0x55
        (campaign / store.FILE).write_bytes(damaged)
        same(fresh, collect([campaign]))


@pytest.mark.parametrize(
    "change",
    [
        lambda members: {**members, "keys.json": b"[]"},
        lambda members: {**members, "keys.json": members["keys.json"].replace(b'"code":"', b'"code":"x')},
        lambda members: {**members, "saves.parquet": members["saves.parquet"][:-7]},
        lambda members: {**members, "saves.parquet": b"PAR1" + bytes(400) + b"PAR1"},
        lambda members: {**members, "saves.parquet": members["windows.parquet"]},
        lambda members: {name: content for name, content in members.items() if name != "runs.parquet"},
        lambda members: {},
    ],
)
def test_a_file_of_other_content_is_not_believed(
    campaign: Path, read: list[str], change: Callable[[dict[str, bytes]], dict[str, bytes]]
) -> None:
    fresh = collect([campaign])
    zipped(campaign, change)
    read.clear()
    same(fresh, collect([campaign]))
    assert len(read) == 3


def test_another_release_reads_all_runs_again(
    campaign: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    collect([campaign])
    read.clear()
    monkeypatch.setattr(store, "code_digest", lambda: "another")
    collect([campaign])
    assert len(read) == 3
    collect([campaign])
    assert len(read) == 3


def test_a_campaign_that_cannot_be_written_is_read_each_time(
    campaign: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(store, "write_bytes", refuse)
    same(collect([campaign]), collect([campaign]))
    assert len(read) == 6
    assert not (campaign / store.FILE).exists()


def test_beside_a_run_of_no_campaign_nothing_is_written(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan(log="darshan"))
    before = sorted(path.parent.iterdir())
    assert collect([path]).runs.height == 1
    assert sorted(path.parent.iterdir()) == before


def test_the_code_digest_covers_the_tables_code() -> None:
    covered = {file.name for root, pattern in store._CODE for file in root.glob(pattern)}
    assert {"tables.py", "darshan_layout.py", "records.py", "single_writer.py"} <= covered
