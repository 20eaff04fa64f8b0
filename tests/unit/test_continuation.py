"""A leg that was cut off goes on: which generation ranks agree on, and that training then ends as it would have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcckpt import data, inventory, registry
from hpcckpt.comm import Comm
from hpcckpt.continuation import completed, go_on, newest_common
from hpcckpt.errors import RunError
from hpcckpt.experiment import Run
from hpcckpt.faults import Faults
from hpcckpt.leg import Leg, Stopped
from hpcckpt.records import Record, Resumed, Save, Step, Window, decode, encode
from hpcckpt.rundir import LegDir
from hpcckpt.strategies.base import Topology
from hpcckpt.tracing.spans import Trace
from tests.support import make_run


def save_of(generation: int, step: int = 0) -> Save:
    return Save(
        generation=generation, step=step, directory="d", arrive_ns=0, begin_ns=0, done_ns=1, end_ns=1, state_bytes=1,
        planned_bytes=1, rss_before_bytes=None, rss_peak_bytes=None, rss_reason="x", write_chars_bytes=None,
        storage_bytes=None, io_reason="x",
    )  # fmt: skip


def earlier(leg: LegDir, launch: int, records: list[Record], tail: bytes = b"") -> LegDir:
    found = LegDir(leg.launches / str(launch))
    found.ranks.mkdir(parents=True)
    found.rank_file(0).write_bytes(b"".join(map(encode, records)) + tail)
    return found


def test_half_a_line_of_a_killed_rank_ends_its_file(tmp_path: Path) -> None:
    leg = LegDir(tmp_path / "train")
    first = earlier(leg, 0, [save_of(0), save_of(1)], b'{"type":"save","generation":2,')
    second = earlier(leg, 1, [save_of(2)])
    assert sorted(completed([first], 0)) == [0, 1]
    assert sorted(completed([first, second], 0)) == [0, 1, 2]
    assert completed([first], 1) == {}, "rank 1 never wrote a line"


def test_launches_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    leg = LegDir(tmp_path / "train")
    for number in (10, 9, 0):
        earlier(leg, number, [])
    assert [launch.name for launch in leg.earlier()] == ["0", "9", "10"]


def test_setting_a_launch_aside_keeps_all_of_it(tmp_path: Path) -> None:
    leg = LegDir(tmp_path / "train")
    for text in ("first", "second"):
        leg.ranks.mkdir(parents=True)
        leg.rank_file(0).write_text(text)
        leg.output.write_text(text)
        leg.set_aside()
    assert [launch.rank_file(0).read_text() for launch in leg.earlier()] == ["first", "second"]
    assert [path.name for path in leg.path.iterdir()] == ["launches"]


class Together(Comm):
    """Rank 0 of several; the others' answers are planted."""

    def __init__(self, *others: Any) -> None:
        super().__init__()
        self.others = list(others)

    def allgather(self, value: Any) -> list[Any]:
        return [value, self.others.pop(0)]


class Holding:
    """A strategy whose generations lie where `here` says."""

    one_directory = False

    def __init__(self, here: set[int], asynchronous: bool = False) -> None:
        self.here, self.asynchronous = here, asynchronous

    def holds(self, directory: Path, step: int) -> bool:
        return step in self.here


def asking(comm: Comm, here: set[int], tmp_path: Path) -> Leg:
    leg = make_leg(make_run(), tmp_path, None)
    leg.comm, leg.strategy = comm, Holding(here)  # type: ignore[assignment]
    return leg


def test_ranks_agree_on_the_newest_that_all_completed(tmp_path: Path) -> None:
    leg = asking(Together([0, 1], True), {0, 1, 2}, tmp_path)
    assert newest_common(leg, {g: save_of(g, g) for g in (0, 1, 2)}) == 1


def test_a_generation_that_one_rank_cannot_reach_is_passed_over(tmp_path: Path) -> None:
    leg = asking(Together([0, 1], False, True), {0, 1}, tmp_path)
    assert newest_common(leg, {g: save_of(g, g) for g in (0, 1)}) == 0


def test_nothing_completed_means_from_the_beginning(tmp_path: Path) -> None:
    assert newest_common(asking(Together([]), {0}, tmp_path), {0: save_of(0)}) is None


def test_an_asynchronous_save_that_was_still_written_is_gone_behind(tmp_path: Path) -> None:
    saves = {3: save_of(3, 3), 4: save_of(4, 4)}
    leg = asking(Together([3, 4], False, True), set(), tmp_path)
    leg.strategy = Holding({3}, asynchronous=True)  # type: ignore[assignment]
    assert newest_common(leg, saves) == 3
    leg.comm = Together([4], False)
    leg.strategy = Holding(set(), asynchronous=True)  # type: ignore[assignment]
    assert newest_common(leg, {4: save_of(4, 4)}) is None, "there is none, on any rank: from the beginning"
    leg.comm = Together([4], True, "n2")
    with pytest.raises(RunError, match="cannot reach generation 4"):
        newest_common(leg, {4: save_of(4, 4)})


def test_files_on_other_nodes_are_refused_by_name(tmp_path: Path) -> None:
    leg = asking(Together([3], False, "n2"), {3}, tmp_path)
    with pytest.raises(RunError, match=r"ranks 1 on n2 cannot reach generation 3 in .*: checkpoints on a node's"):
        newest_common(leg, {3: save_of(3, 3)})


def make_leg(run: Run, base: Path, strategy: str | None = "single_writer", name: str = "train") -> Leg:
    comm = Comm()
    model = registry.load("hpcckpt.models", run.point.model)
    toy = registry.load("hpcckpt.frameworks", "numpy_toy")
    framework = toy(model, run.settings, comm, data.synthetic(seed=run.settings.seed), 1)
    framework.start()
    found = None
    if strategy:
        format_ = registry.load("hpcckpt.formats", run.point.format)(framework)
        kind = registry.load("hpcckpt.strategies", strategy)
        found = kind(framework, format_, comm, Topology(1, 1), False)
    trace = Trace(LegDir(base / name).rank_file(0))
    root = base / "scratch"
    root.mkdir(exist_ok=True)
    faults = Faults([], 0, name)
    return Leg(run, comm, trace, faults, framework, found, root, "node", lambda: (base / "stop").exists())


def digests(leg: Leg) -> dict[str, str]:
    return {e.key: inventory.digest(np.asarray(e.data)) for e in leg.framework.full_state()}


def test_a_leg_that_was_cut_off_ends_bit_equal(tmp_path: Path) -> None:
    run = make_run(nodes=1, interval_steps=2, settings={"steps": 9, "keep": "all"})
    whole = make_leg(run, tmp_path / "whole")
    whole.train()

    paths = LegDir(tmp_path / "cut" / "train")
    cut = make_leg(run, tmp_path / "cut")
    (tmp_path / "cut" / "stop").touch()
    with pytest.raises(Stopped):
        cut.train()  # leaves behind its first save
    (tmp_path / "cut" / "stop").unlink()
    cut.trace.close("stopped")
    paths.set_aside()
    (tmp_path / "cut" / "scratch" / "generation-00001").mkdir()  # of a save that was cut off

    again = make_leg(run, tmp_path / "cut")
    go_on(again, paths)
    assert (again.first_step, again.first_generation) == (3, 1)
    again.train()
    again.trace.close("ok")
    assert digests(again) == digests(whole)
    found = [decode(line) for line in paths.rank_file(0).read_bytes().splitlines()]
    resumed = [record for record in found if isinstance(record, Resumed)]
    assert [(r.generation, r.step, r.launch) for r in resumed] == [(0, 2, 1)]
    assert [r.index for r in found if isinstance(r, Step)] == [3, 4, 5, 6, 7, 8]
    assert [r.generation for r in found if isinstance(r, Save)] == [1, 2, 3]
    assert [r.steps for r in found if isinstance(r, Window)] == [5]


@pytest.mark.parametrize(("lacks", "goes_on"), [("rng", True), ("optimizer", False)])
def test_random_states_may_be_missing_and_are_named(tmp_path: Path, lacks: str, goes_on: bool) -> None:
    kinds = [kind for kind in ("parameter", "optimizer", "rng", "data_position") if kind != lacks]
    run = make_run(nodes=1, interval_steps=2, settings={"steps": 9, "include": kinds})
    cut = make_leg(run, tmp_path)
    (tmp_path / "stop").touch()
    with pytest.raises(Stopped):
        cut.train()
    cut.trace.close("stopped")
    paths = LegDir(tmp_path / "train")
    paths.set_aside()
    again = make_leg(run, tmp_path)
    if not goes_on:
        with pytest.raises(RunError, match=r"generation 0 lacks optimizer\.velocity: it cannot be gone on from"):
            go_on(again, paths)
        return
    go_on(again, paths)
    again.trace.close("ok")
    found = [decode(line) for line in paths.rank_file(0).read_bytes().splitlines()]
    (resumed,) = [record for record in found if isinstance(record, Resumed)]
    assert resumed.lacking == ["rng.numpy@00000"]


def test_a_control_starts_anew(tmp_path: Path) -> None:
    paths = LegDir(tmp_path / "control")
    earlier(paths, 0, [save_of(0)])
    leg = make_leg(make_run(nodes=1), tmp_path, None, "control")
    go_on(leg, paths)
    assert (leg.first_step, leg.first_generation) == (0, 0)
