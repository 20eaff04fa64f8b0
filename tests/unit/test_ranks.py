"""Verdicts over ranks' files: who failed first, who hung while others waited, what launchers say."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcckpt.experiment import Job
from hpcckpt.records import End, Step, encode
from hpcckpt.rundir import LegDir, RunDir
from jobs import ranks
from jobs.ranks import RankView
from tests.support import make_run


def job_of(count: int) -> Job:
    run = make_run(nodes=count)
    return Job(run=run, campaign="c", site={}, scratch="/s", virtual_nodes=True, tracer="none")


def end(status: str, *inside: str, error: str | None = None, t_ns: int = 0) -> End:
    return End(t_ns=t_ns, status=status, error=error, inside=list(inside))


def leg_of(tmp_path: Path, endings: list[End | None], output: str = "") -> LegDir:
    """A leg whose ranks trained one step and ended so; None is a rank that was cut off."""
    leg = LegDir(tmp_path / "train")
    leg.ranks.mkdir(parents=True)
    leg.output.write_text(output)
    for rank, last in enumerate(endings):
        lines = encode(Step(index=0, begin_ns=0, end_ns=1, loss=0.0)) + (
            encode(last) if last else b'{"type":"st'
        )
        leg.rank_file(rank).write_bytes(lines)
    return leg


def verdict(
    tmp_path: Path, endings: list[End | None], status: int = 1, output: str = "", overdue: bool = False
) -> ranks.Ending:
    found = ranks.failure(job_of(len(endings)), leg_of(tmp_path, endings, output), status, overdue)
    assert found is not None
    return found


def test_every_rank_done_is_no_failure(tmp_path: Path) -> None:
    leg = leg_of(tmp_path, [end("ok"), end("ok")])
    assert ranks.failure(job_of(2), leg, 0, overdue=False) is None


def test_a_missing_closing_line_is_a_failure_though_the_launcher_is_content(tmp_path: Path) -> None:
    found = verdict(tmp_path, [end("ok"), None], status=0)
    assert (found.rank, found.node, found.cause) == (1, "virtual001", "vanished")
    assert "after step 0" in found.reason


def test_of_several_exceptions_the_first_in_time_is_the_cause(tmp_path: Path) -> None:
    endings: list[End | None] = [
        end("failed", error="RuntimeError: connection lost", t_ns=20),
        end("failed", error="OSError: [Errno 28] No space left on device", t_ns=10),
    ]
    found = verdict(tmp_path, endings)
    assert (found.rank, found.cause) == (1, "OSError")


@pytest.mark.parametrize(
    "message",
    [
        "prterun noticed that process rank 2 with PID 15422 on node n7 exited on\nsignal 9 (Killed).",
        "mpirun noticed that process rank 2 with PID 0 on node n7 exited on signal 9 (Killed).",
    ],
)
def test_a_signal_is_read_from_what_either_open_mpi_says(tmp_path: Path, message: str) -> None:
    found = verdict(tmp_path, [end("terminated"), end("terminated"), None], 137, f"---\n{message}\n---")
    assert (found.rank, found.node, found.cause) == (2, "virtual002", "SIGKILL")


ABORT = (
    'prterun has exited due to process rank 3 with PID 5361 on node n4 calling\n"abort". This may have caused other '
    "processes in the application to be\nterminated by signals sent by prterun (as reported here)."
)


def test_a_rank_that_noticed_a_broken_connection_is_not_the_one_that_died(tmp_path: Path) -> None:
    one = verdict(tmp_path / "one", [end("terminated"), end("terminated"), None, None], status=14, output=ABORT)
    assert (one.rank, one.cause) == (2, "vanished")
    several = verdict(tmp_path / "several", [None, end("terminated"), None, None], status=14, output=ABORT)
    assert (several.rank, several.cause) == (None, "vanished")
    assert "saw its connection break; ranks without a closing line: 0, 2" in several.reason


LOST = "Remote daemon: [prterun-node1-32135@0,3] on node node4"


def test_a_lost_node_is_named_and_no_rank_is_blamed(tmp_path: Path) -> None:
    found = verdict(tmp_path, [None, end("terminated")], status=0, output=f"PRTE has lost communication\n  {LOST}\n")
    assert (found.cause, found.node, found.rank) == ("node lost", "node4", None)


@pytest.mark.parametrize("name", ["[prterun-vm-15401@1,1]", "[[4711,1],1]"])
def test_an_exit_status_is_read_from_what_either_open_mpi_says(tmp_path: Path, name: str) -> None:
    said = f"  Process name: {name}\n  Exit code:    3\n"
    found = verdict(tmp_path, [end("terminated"), None], 3, said)
    assert (found.rank, found.cause) == (1, "exit 3")


def test_a_launcher_that_starts_nothing_is_quoted(tmp_path: Path) -> None:
    leg = LegDir(tmp_path / "train")
    leg.path.mkdir()
    leg.output.write_text("-----\nThere are not enough slots available\n-----\nsee www.open-mpi.org\n")
    found = ranks.failure(job_of(2), leg, 1, overdue=False)
    assert found is not None
    assert found.rank is None
    assert "with status 1: There are not enough slots available; its output is in" in found.reason
    assert found.reason.endswith(str(leg.output))


@pytest.mark.parametrize(
    ("endings", "guilty"),
    [
        ([end("terminated", "wait_before"), end("terminated"), end("terminated", "wait_before")], 1),
        ([end("terminated", "wait_after"), end("terminated", "wait_after"), None], 2),
        ([end("terminated", "save", "serialize+write"), end("terminated", "wait_after")], 0),
        ([end("terminated", "step"), end("terminated", "step"), end("terminated")], 2),
        ([end("terminated", "save", "gather"), end("terminated", "save", "write")], 1),
        ([end("ok"), end("terminated", "save")], 1),
    ],
)
def test_a_rank_that_others_wait_for_is_the_one_that_hung(
    tmp_path: Path, endings: list[End | None], guilty: int
) -> None:
    found = verdict(tmp_path, endings, overdue=True)
    assert (found.rank, found.cause) == (guilty, "hung")


def test_a_leg_that_is_only_slow_accuses_nobody(tmp_path: Path) -> None:
    found = verdict(tmp_path, [end("stopped"), end("stopped")], overdue=True)
    assert (found.rank, found.cause) == (None, "time limit")


def test_ranks_that_are_equally_suspect_are_counted(tmp_path: Path) -> None:
    found = verdict(tmp_path, [None, None], overdue=True)
    assert "(and 1 more)" in found.reason


def test_a_run_is_closed_where_every_rank_of_every_leg_is(tmp_path: Path) -> None:
    run, run_dir = job_of(2).run, RunDir(tmp_path)
    for name in run.legs:
        assert not ranks.closed(run_dir, run)
        made = leg_of(tmp_path / name, [end("ok"), end("ok")])
        run_dir.legs.mkdir(exist_ok=True)
        made.path.rename(run_dir.leg(name).path)
    assert ranks.closed(run_dir, run)
    last = run_dir.leg(run.legs[-1]).rank_file(1)
    last.write_bytes(last.read_bytes()[:-9])
    assert not ranks.closed(run_dir, run)
    last.write_bytes(encode(end("stopped")))
    assert not ranks.closed(run_dir, run)


def test_a_file_is_read_up_to_its_torn_line(tmp_path: Path) -> None:
    seen: RankView = ranks.view(leg_of(tmp_path, [None]).rank_file(0), 0)
    assert (seen.records, seen.last_step, seen.end) == (1, 0, None)
