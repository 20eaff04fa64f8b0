"""The laws of a save, on real MPI ranks with planted delays and faults."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hpcckpt.experiment import Fault
from hpcckpt.records import (
    CONTROL,
    INVENTORY_COLUMNS,
    STALL_PHASES,
    Beacon,
    Clock,
    Replica,
    Save,
    Start,
    Verified,
    Window,
)
from tests.support import closing, launch, make_run, make_run_dir, of, phase_s, stall_s, trace

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
RANKS = 8
SLEEP_S = 2.0


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> list[list[object]]:
    """Traces of 8 ranks: rank 5 late before save 0, slow inside save 1; rank 0 slow at writing save 2."""
    run = make_run(
        nodes=RANKS,
        faults=[
            Fault(rank=5, at="before_save", action="sleep", seconds=SLEEP_S, generation=0),
            Fault(rank=5, at="gather", action="sleep", seconds=SLEEP_S, generation=1),
            Fault(rank=0, at="serialize+write", action="sleep", seconds=SLEEP_S, generation=2),
        ],
    )
    paths = make_run_dir(tmp_path_factory.mktemp("planted"), run)
    done = launch(paths, run)
    assert done.returncode == 0, done.stderr
    return [trace(paths, rank) for rank in range(RANKS)]


def saves(records: list[object]) -> list[Save]:
    return of(records, Save)  # type: ignore[arg-type]


def own_work_s(records: list[object], generation: int) -> float:
    """Seconds that a rank spent on its own part, its waiting left out: who makes the others wait."""
    save = saves(records)[generation]
    return (save.done_ns - save.begin_ns) / 1e9 - phase_s(records, "wait_inside", generation)  # type: ignore[arg-type]


def test_a_late_rank_is_waited_for_before_the_save_and_not_in_the_stall(planted: list[list]) -> None:
    others = [records for rank, records in enumerate(planted) if rank != 5]
    assert all(phase_s(records, "wait_before", 0) >= SLEEP_S - 0.05 for records in others)
    assert phase_s(planted[5], "wait_before", 0) < SLEEP_S
    assert max(stall_s(saves(records)[0]) for records in planted) < SLEEP_S
    arrivals = [saves(records)[0].arrive_ns for records in planted]
    assert arrivals.index(max(arrivals)) == 5


def test_a_rank_slow_inside_its_save_is_in_the_stall_of_all(planted: list[list]) -> None:
    assert max(stall_s(saves(records)[1]) for records in planted) >= SLEEP_S
    own = [own_work_s(records, 1) for records in planted]
    assert own.index(max(own)) == 5
    assert phase_s(planted[0], "wait_inside", 1) >= SLEEP_S - 0.5, "the writer waits for rank 5's part"
    for rank in {*range(RANKS)} - {5}:  # a rank that relays another's part in the tree waits inside
        waited = phase_s(planted[rank], "wait_inside", 1) + phase_s(planted[rank], "wait_after", 1)
        assert waited >= SLEEP_S - 0.5, f"rank {rank}"
    assert phase_s(planted[5], "wait_after", 1) < SLEEP_S


def test_a_slow_writer_is_waited_for_after_the_save(planted: list[list]) -> None:
    assert phase_s(planted[0], "serialize+write", 2) >= SLEEP_S
    for records in planted[1:]:
        assert phase_s(records, "wait_after", 2) >= SLEEP_S - 0.5
        assert phase_s(records, "serialize+write", 2) == 0


def test_unattributed_time_is_small_on_every_rank(planted: list[list]) -> None:
    """Law 2, where the machine is not the limit: 8 ranks share few cores, so the median save counts."""
    for records in planted:
        missing = []
        for save in saves(records):
            named = sum(phase_s(records, phase, save.generation) for phase in STALL_PHASES)
            assert named <= stall_s(save) + 1e-9, "phases overlap"
            missing.append(stall_s(save) - named)
        assert sorted(missing)[1] <= max(0.001, 0.01 * SLEEP_S)


def test_only_the_planned_writer_writes(planted: list[list]) -> None:
    for rank, records in enumerate(planted):
        for save in saves(records):
            assert (save.planned_bytes > 0) == (rank == 0)
            assert save.state_bytes > 200_000
            assert save.write_chars_bytes is not None
            assert (save.write_chars_bytes > save.planned_bytes * 0.9) or rank != 0


def test_parameters_are_equal_and_files_read_back(planted: list[list]) -> None:
    for records in planted:
        found = of(records, Replica)
        assert [r.where for r in found] == ["after_first_step", "save", "save", "save", "end"]
        assert all(r.equal for r in found)
    assert [v.equal for v in of(planted[0], Verified)] == [True, None, True]
    assert of(planted[0], Verified)[1].reason == "not verified: verify = ends"


def test_each_rank_introduces_itself(planted: list[list]) -> None:
    for rank, records in enumerate(planted):
        start = of(records, Start)[0]
        assert (start.rank, start.size, start.node, start.virtual_node) == (
            rank,
            RANKS,
            f"virtual{rank:03d}",
            True,
        )
        assert start.thread_level == "multiple" and start.threads >= 1 and start.ranks_on_host == RANKS
        assert closing(records).status == "ok"
        assert len(of(records, Beacon)) == 2
        assert [(c.offset_ns, c.error_ns, c.method) for c in of(records, Clock)] == [(0, 0, "same_boot")] * 2


def test_control_takes_the_same_steps_without_a_byte(tmp_path: Path) -> None:
    run = make_run(nodes=2)
    paths = make_run_dir(tmp_path, run)
    for leg in run.legs:
        assert launch(paths, run, leg).returncode == 0
    for rank in range(2):
        control, train = trace(paths, rank, CONTROL), trace(paths, rank)
        assert not saves(control) and len(saves(train)) == 3
        window, other = of(control, Window)[0], of(train, Window)[0]
        assert (window.steps, window.saves, other.steps, other.saves) == (6, 0, 6, 3)
        assert [r.digest for r in of(control, Replica)] == [r.digest for r in of(train, Replica)]
    assert not list((tmp_path / "scratch" / CONTROL).glob("generation-*"))
    assert not paths.leg(CONTROL).inventory.exists()


def test_inventory_lists_every_tensor_with_its_digest(tmp_path: Path) -> None:
    run = make_run(nodes=2)
    paths = make_run_dir(tmp_path, run)
    assert launch(paths, run).returncode == 0
    table = pq.read_table(paths.leg("train").inventory)
    assert table.column_names == list(INVENTORY_COLUMNS)
    rows = [row for row in table.to_pylist() if row["generation"] == 0]
    kinds = {row["tensor"]: row["kind"] for row in rows}
    assert kinds == {
        "model.weights": "parameter",
        "optimizer.velocity": "optimizer",
        "rng.numpy@00000": "rng",
        "rng.numpy@00001": "rng",
        "data.position": "data_position",
    }
    file = tmp_path / "scratch" / "train" / rows[0]["file"]
    assert {row["file_bytes"] for row in rows} == {file.stat().st_size}
    assert {row["rank"] for row in rows} == {0}
    weights = next(row for row in rows if row["tensor"] == "model.weights")
    assert (weights["tensor_bytes"], weights["shape"]) == (3 * 32 * 32 * 10 * 4, "[3072, 10]")


@pytest.mark.parametrize("verify", ["all", "none"])
def test_a_damaged_file_is_found_by_reading_back(tmp_path: Path, verify: str) -> None:
    fault = Fault(rank=0, at="after_save", action="corrupt", generation=1)
    run = make_run(nodes=2, faults=[fault], settings={"verify": verify})
    paths = make_run_dir(tmp_path, run)
    assert launch(paths, run).returncode == 0
    found = of(trace(paths, 0), Verified)
    assert [v.equal for v in found] == ([True, False, True] if verify == "all" else [None] * 3)
    assert all(v.reason for v in found if not v.equal)


def test_pruning_keeps_the_newest(tmp_path: Path) -> None:
    run = make_run(nodes=2, settings={"keep": 1, "verify": "all"})
    paths = make_run_dir(tmp_path, run)
    assert launch(paths, run).returncode == 0
    left = sorted(path.name for path in (tmp_path / "scratch" / "train").glob("generation-*"))
    assert left == ["generation-00002"]
    found = of(trace(paths, 0), Verified)
    assert [v.equal for v in found] == [None, None, True]
    assert found[0].reason == "not verified: pruned"


@pytest.mark.parametrize(
    ("action", "status"), [("raise", "failed"), ("kill", None)], ids=["exception", "killed"]
)
def test_a_rank_that_dies_leaves_what_it_can(tmp_path: Path, action: str, status: str | None) -> None:
    run = make_run(nodes=4, faults=[Fault(rank=2, at="gather", action=action, generation=1)])
    paths = make_run_dir(tmp_path, run)
    assert launch(paths, run).returncode != 0
    records = trace(paths, 2)
    if status is None:
        assert not isinstance(records[-1], type(closing(trace(paths, 1)))), (
            "a killed rank cannot have closed its file"
        )
    else:
        end = closing(records)
        assert (end.status, end.error) == ("failed", "RunError: planted fault at gather 1")
        assert "gather" in end.inside or "save" in end.inside
    others = [closing(trace(paths, rank)) for rank in (0, 1, 3)]
    assert {end.status for end in others} == {"terminated"}


def test_the_stop_file_ends_all_ranks_at_a_save(tmp_path: Path) -> None:
    run = make_run(nodes=2)
    paths = make_run_dir(tmp_path, run)
    paths.stop.touch()
    done = launch(paths, run)
    assert done.returncode != 0
    for rank in range(2):
        records = trace(paths, rank)
        assert closing(records).status == "stopped"
        assert len(saves(records)) == 1


def test_without_barriers_nothing_untimed_hides_in_the_window(tmp_path: Path) -> None:
    run = make_run(nodes=2, settings={"barrier": "none"})
    paths = make_run_dir(tmp_path, run)
    assert launch(paths, run).returncode == 0
    records = trace(paths, 0)
    assert of(records, Window)[0].paused_ns == 0
    assert all("barriers are off" in (v.reason or "") for v in of(records, Verified) if v.generation != 1)
    rows = pq.read_table(paths.leg("train").inventory).to_pylist()
    assert {row["generation"] for row in rows} == {0, 1, 2}
    assert all(row["file_bytes"] > 200_000 and row["digest"] is None for row in rows)
