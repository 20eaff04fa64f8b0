"""Where the time of a restart went: parts that add up, and parts that cannot be known."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcckpt.comm import boot_id
from hpcckpt.records import RESTART_PARTS, Restored, Start, Step, encode
from hpcckpt.rundir import RunDir, write_bytes
from jobs.restart_time import ENDED_WELL, NOT_SEEN, OTHER_CLOCK, Moments, split

SECOND = 1_000_000_000


def start(rank: int, boot: str) -> Start:
    return Start(
        schema_version=1, t_ns=0, run_id="r", leg="restored", rank=rank, size=2, node="n", virtual_node=True, host="h",
        pid=1, boot_id=boot, cores=1, ranks_on_host=2, threads=1, thread_level="multiple", versions={}, data="d",
        parameters=1, barrier="poll",
    )  # fmt: skip


def planted(base: Path, boots: tuple[str, str] | None = None, death: bool = True) -> RunDir:
    """Two ranks, the second one slower by half a second from the start of its framework on."""
    paths = RunDir(base)
    for rank, late in enumerate((0, SECOND // 2)):
        restored = Restored(
            born_ns=4 * SECOND, ready_ns=7 * SECOND + late, begin_ns=8 * SECOND + late, end_ns=10 * SECOND + late,
            generation=0, step=2, cached=0.25 * rank, lacking=[],
        )  # fmt: skip
        step = Step(index=3, begin_ns=11 * SECOND + late, end_ns=12 * SECOND + late, loss=1.0)
        records = [start(rank, (boots or (boot_id(),) * 2)[rank]), restored, step]
        write_bytes(paths.leg("restored").rank_file(rank), b"".join(map(encode, records)))
    if death:
        write_bytes(paths.leg("train").death, f"{SECOND} {boot_id()} save,commit".encode())
    return paths


def moments() -> Moments:
    return Moments(begun={"restored": 3 * SECOND}, ended={"train": 2 * SECOND})


def test_the_parts_add_up_to_the_whole(tmp_path: Path) -> None:
    found = split(moments(), planted(tmp_path), 2)
    assert tuple(found.parts_s) == RESTART_PARTS and not found.reasons
    assert list(found.parts_s.values()) == [1.0, 1.0, 1.0, 3.5, 1.0, 2.0, 1.0, 1.0]
    assert sum(found.parts_s.values()) == pytest.approx(11.5), "from the death to the end of the slowest first step"
    assert found.cached == 0.25 and "posix_fadvise" in found.cold


def test_without_a_death_nothing_had_to_be_noticed(tmp_path: Path) -> None:
    found = split(moments(), planted(tmp_path, death=False), 2)
    assert found.reasons == {"detect": ENDED_WELL} and "detect" not in found.parts_s


def test_a_driver_that_came_later_did_not_see_the_end(tmp_path: Path) -> None:
    found = split(Moments(), planted(tmp_path, death=False), 2)
    assert found.reasons["suite"] == found.reasons["launch"] == NOT_SEEN and found.parts_s["read"] == 2.0


def test_clocks_of_other_kernels_are_not_subtracted(tmp_path: Path) -> None:
    found = split(moments(), planted(tmp_path, boots=("a", "b")), 2)
    assert not found.parts_s and set(found.reasons.values()) == {OTHER_CLOCK}
    one = split(moments(), planted(tmp_path, boots=("a", "a")), 2)
    assert one.parts_s["read"] == 2.0 and "launch" not in one.parts_s
