"""Darshan logs without a run directory: real ones with known truth, and hostile ones."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from analysis import cli
from analysis.single_writer import SingleWriter
from hpcckpt.errors import ExitCode
from tests.unit.planted import write_darshan

LOGS = Path(__file__).resolve().parents[1] / "data" / "darshan-logs"
EDGE = LOGS / "edge"
S = 10**9


def asked(path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    out = io.StringIO()
    code = cli.main(SingleWriter(), ["--darshan", str(path), "--json", *options], out)
    return code, json.loads(out.getvalue())


def job(path: Path, *options: str) -> dict[str, Any]:
    code, found = asked(path, *options)
    assert code == ExitCode.OK
    row: dict[str, Any] = next(row for row in found["rows"] if row["kind"] == "job")
    return row


def finding(path: Path, code: str, *options: str) -> dict[str, Any]:
    mine = [f for f in asked(path, *options)[1]["findings"] if f["code"] == code]
    assert len(mine) == 1
    found: dict[str, Any] = mine[0]
    return found


def test_one_process_wrote() -> None:
    row = job(LOGS / "nonmpi_single", "--below", "/scratch/ckpt/single")
    assert (row["processes"], row["writers"], row["content"], row["top_process"]) == (4, 1, "one_writer", "rank 0")
    assert row["written_bytes"] == 8_391_578 + 4  # checkpoints and the beacons
    found = finding(LOGS / "nonmpi_single", "SW11")
    assert (found["verdict"], found["value"]) == ("supports", 1)
    assert "1 of 4 processes wrote" in found["sentence"]


def test_four_copies_worth_of_bytes_of_unknown_content() -> None:
    row = job(LOGS / "nonmpi_copies", "--below", "/scratch/ckpt/copies")
    assert (row["writers"], row["content"], row["copies"], row["shared_files"]) == (4, "copies", 4.0, 0)
    assert row["written_bytes"] == 33_567_160 + 4
    found = finding(LOGS / "nonmpi_copies", "SW12")
    assert found["sentence"].startswith("4 identical copies' worth of bytes")
    assert "content unknown: no digests, Darshan has none" in found["sentence"]


def test_four_disjoint_writers() -> None:
    row = job(LOGS / "nonmpi_shards", "--below", "/scratch/ckpt/shards")
    assert (row["writers"], row["content"], row["copies"]) == (4, "disjoint", 1.0)
    assert row["written_bytes"] == 8_401_560 + 4
    assert finding(LOGS / "nonmpi_shards", "SW12")["verdict"] == "contradicts"
    assert finding(LOGS / "nonmpi_shards", "SW11")["verdict"] == "contradicts"


@pytest.mark.parametrize(("name", "worth", "content"), [("copies", 4.0, "copies"), ("shards", 1.0, "disjoint")])
def test_the_size_of_a_state_tells_copies_from_shares(name: str, worth: float, content: str) -> None:
    row = job(LOGS / f"nonmpi_{name}", "--state-bytes", "4194304", "--below", f"/scratch/ckpt/{name}")
    assert (row["content"], row["copies"]) == (content, pytest.approx(worth, rel=0.01))


def test_a_shared_log_of_mpi_knows_its_ranks() -> None:
    row = job(EDGE / "mpi_single.darshan")
    assert (row["processes"], row["writers"], row["top_process"], row["hosts"]) == (4, 1, "rank 0", 1)


def test_several_ranks_in_one_file_at_different_offsets() -> None:
    row = job(EDGE / "mpi_sharedfile.darshan", "--below", "/scratch/ckpt/m_sharedfile")
    assert (row["writers"], row["content"], row["shared_files"], row["overlap_bytes"]) == (4, "shared_file", 2, 0)
    assert row["calls"] == 12
    found = finding(EDGE / "mpi_sharedfile.darshan", "SW13")
    assert (found["verdict"], found["recommendation"]) == ("supports", None)


def test_collective_writes_name_the_aggregator_and_the_ranks_behind_it() -> None:
    found = finding(EDGE / "mpi_mpiio.darshan", "SW11")
    assert (found["verdict"], found["value"]) == ("supports", 1)
    assert "4 ranks handed them over by MPI-IO" in found["sentence"]


@pytest.mark.parametrize("name", ["npsave_stdio_and_posix", "rename_tmp_then_final", "h5py_rewrites", "dxt_v2"])
def test_logs_of_one_process(name: str) -> None:
    row = job(EDGE / f"{name}.darshan")
    assert (row["processes"], row["writers"]) == (1, 1)
    assert row["written_bytes"] >= 16_777_216
    assert finding(EDGE / f"{name}.darshan", "SW11")["reason"] == "the logs are of one process"


def test_calls_without_times_say_nothing_of_concurrency() -> None:
    assert "hold 128 of 16777344 bytes" in job(EDGE / "npsave_stdio_and_posix.darshan")["at_once_reason"]


def test_short_writes_of_unaligned_clocks_say_nothing_of_concurrency() -> None:
    assert "clocks in the logs may be 0.041 s apart" in job(LOGS / "nonmpi_shards")["at_once_reason"]
    assert finding(LOGS / "nonmpi_shards", "SW14")["verdict"] == "not_measured"


def planted(root: Path, calls: dict[int, list[tuple[str, int, int, int]]]) -> Path:
    for rank, mine in calls.items():
        write_darshan(root / f"rank{rank:05d}" / f"x_id1-{100 + rank}_1-1-1-1_1.darshan", mine, 0)
    return root


def test_long_writes_are_at_once_or_in_turns(tmp_path: Path) -> None:
    together = planted(tmp_path / "a", {rank: [(f"/c/{rank}.pt", S, 3 * S, 10**6)] for rank in range(3)})
    assert job(together)["at_once_mean"] == pytest.approx(3.0)
    assert finding(together, "SW14")["verdict"] == "contradicts"
    turns = planted(tmp_path / "b", {r: [(f"/c/{r}.pt", (1 + 2 * r) * S, (3 + 2 * r) * S, 10**6)] for r in range(3)})
    assert (job(turns)["at_once_max"], finding(turns, "SW14")["verdict"]) == (1, "supports")


def test_one_path_from_two_processes_overlaps(tmp_path: Path) -> None:
    same = planted(tmp_path, {rank: [("/c/state.pt", S, 3 * S, 1000)] for rank in range(2)})
    row, found = job(same), finding(same, "SW13")
    assert (row["shared_files"], row["overlap_bytes"]) == (1, 1000)
    assert "1000 bytes of it by more than one" in found["sentence"]
    assert found["recommendation"]


def jobs(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in found["rows"] if row["kind"] == "job"]


def test_two_jobs_in_one_tree_are_answered_for_themselves(tmp_path: Path) -> None:
    for name in ("a", "b"):
        planted(tmp_path / name, {rank: [("/c/state.pt", S, 3 * S, 1000)] for rank in range(2)})
    code, found = asked(tmp_path)
    assert code == ExitCode.OK
    each = [(row["job"], row["processes"], row["written_bytes"]) for row in jobs(found)]
    assert each == [("a", 2, 2000), ("b", 2, 2000)]
    names = [(row["job"], row["name"]) for row in found["rows"] if row["kind"] == "process"]
    assert names == [("a", "rank 0"), ("a", "rank 1"), ("b", "rank 0"), ("b", "rank 1")]
    assert "holds logs of 2 jobs, each answered for itself: a (2 logs); b (2 logs)" in found["notes"][0]
    assert not found["rows"][0]["our_runs"]
    groups = {finding["group"] for finding in found["findings"]}
    assert groups == {f"{tmp_path}, a", f"{tmp_path}, b"}


def test_real_logs_of_several_programs_are_told_apart_by_id_and_program() -> None:
    code, found = asked(EDGE)
    rows = jobs(found)
    assert {row["processes"] for row in rows} == {1, 4}
    assert any(row["job"].startswith("job 19962, python gen.py single") for row in rows)
    assert len(rows) == len(list(EDGE.glob("*.darshan"))) - len(found["left_out"])
    assert f"holds logs of {len(rows)} jobs" in found["notes"][0]
    assert (code == ExitCode.OK) == (not found["left_out"])


def test_loose_logs_of_one_program_belong_together_where_they_ran_at_once(tmp_path: Path) -> None:
    """Outside of a batch system each process is a job of its own by its id: that says nothing."""
    for name in ("nonmpi_copies", "nonmpi_single"):
        for log in (LOGS / name).rglob("*.darshan"):
            (tmp_path / f"{name}-{log.name}").write_bytes(log.read_bytes())
    _, found = asked(tmp_path)
    assert [row["processes"] for row in jobs(found)] == [4, 4]
    assert [row["writers"] for row in jobs(found)] == [4, 1]
    assert "python gen.py copies /scratch/ckpt/copies 4 2, from 2026-" in jobs(found)[0]["job"]


def test_a_person_sees_each_job(tmp_path: Path) -> None:
    for name in ("a", "b"):
        planted(tmp_path / name, {rank: [(f"/c/{name}.pt", S, 3 * S, 1000)] for rank in range(2)})
    out = io.StringIO()
    assert cli.main(SingleWriter(), ["--darshan", str(tmp_path)], out) == ExitCode.OK
    text = " ".join(out.getvalue().split())
    assert text.count("Darshan logs in") == 2 and "logs of 2 jobs" in text


def test_logs_of_our_own_runs_are_better_asked_otherwise() -> None:
    code, found = asked(LOGS.parent / "run-schema-1")
    assert code == ExitCode.OK
    assert "without --darshan" in found["notes"][0]


def test_copies_that_differ_by_their_headers_are_copies_worth(tmp_path: Path) -> None:
    near = planted(tmp_path / "a", {rank: [(f"/c/{rank}", S, 3 * S, 100_000 + rank)] for rank in range(3)})
    far = planted(tmp_path / "b", {rank: [(f"/c/{rank}", S, 3 * S, 100_000 * (rank + 1))] for rank in range(3)})
    assert (job(near)["content"], job(far)["content"]) == ("copies", "unknown")


def test_below_leaves_other_files_out(tmp_path: Path) -> None:
    log = planted(tmp_path, {0: [("/c/a.pt", S, 2 * S, 500), ("/elsewhere/log.txt", S, 2 * S, 900)]})
    assert job(log, "--below", "/c")["written_bytes"] == 500
    assert job(log)["written_bytes"] == 1400
    nothing = finding(log, "SW11", "--below", "/nowhere")
    assert nothing["reason"] == "nothing was written"


def test_a_person_sees_tables_and_what_is_not_in_logs(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    assert cli.main(SingleWriter(), ["--darshan", str(LOGS / "nonmpi_copies")], out) == ExitCode.OK
    text = " ".join(out.getvalue().split())
    assert "no waiting and no contents" in text
    assert "None" not in text


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "empty file"), (b"hello", "only 5 bytes"), (b"x" * 5000, "no Darshan log")],
)
def test_a_bad_log_alone_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, words: str
) -> None:
    (tmp_path / "bad.darshan").write_bytes(content)
    assert cli.main(SingleWriter(), ["--darshan", str(tmp_path)]) == ExitCode.NOT_TRUSTWORTHY
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_bad_log_among_good_ones_is_left_out_and_said(tmp_path: Path) -> None:
    shutil.copytree(LOGS / "nonmpi_single", tmp_path / "logs")
    whole = next((tmp_path / "logs" / "rank0003").glob("*.darshan"))
    whole.chmod(0o600)
    whole.write_bytes(whole.read_bytes()[:-50])
    code, found = asked(tmp_path / "logs")
    assert code == ExitCode.RUNS_FAILED
    assert [left["code"] for left in found["left_out"]] == ["bad_trace_log"]
    assert found["rows"][0]["processes"] == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--darshan", "nowhere"], "no such file"),
        (["--darshan", "."], "no .darshan log in it"),
        (["--darshan", ".", "runs"], "leave out RUNS"),
        (["--darshan", ".", "--state-bytes", "0"], "must be at least 1"),
    ],
)
def test_mistakes_on_the_command_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(SingleWriter(), options) == ExitCode.BAD_SPEC
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
