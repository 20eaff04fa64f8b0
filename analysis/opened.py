"""One run directory opened: its job, its state and every rank's file of every leg; or why it is not counted.

Nothing is repaired and nothing counted here: a run is opened whole, or not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from analysis.locate import is_run
from analysis.rank_leg import RankLeg
from analysis.readers.ranks import OTHER_SCHEMA, RankFile, read_rank
from analysis.readers.trace import RankTrace, TraceReader
from hpcckpt.errors import HpcCkptError
from hpcckpt.experiment import Job, Run
from hpcckpt.records import SCHEMA_VERSION, TRAIN, Beacon, Clock, Gpu, Save, Span
from hpcckpt.rundir import DONE, LegDir, RunDir, State, read_bytes

Row = dict[str, Any]

# Stable codes of a run that is left out; those of a rank's file are in analysis.readers.ranks.
NOT_A_RUN, MISSING, NOT_DONE, UNREADABLE = "not_a_run", "missing", "not_done", "unreadable"
NO_TRAIN_LEG, WRONG_RANK, BAD_SAVES, LAW_BROKEN = "no_train_leg", "wrong_rank", "bad_saves", "law_broken"
BAD_INVENTORY, DUPLICATE = "bad_inventory", "duplicate"


class LeftOut(Exception):  # noqa: N818  (no error of the program: a verdict on a run)
    """Why a run, or a part of it, is not counted."""

    def __init__(self, code: str, file: Path | str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.file, self.reason = code, str(file), reason

    def row(self, run: str, scope: str = "run") -> Row:
        """A row of the table `left_out`."""
        return {"run": run, "scope": scope, "code": self.code, "file": self.file, "reason": self.reason}


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is done, with the complete files of all ranks of all its legs."""

    directory: RunDir
    job: Job
    state: State
    legs: dict[str, list[RankFile]]
    """leg -> files by rank; `train` is among them, unless a test of restart killed one of its ranks."""


def opened(path: Path) -> Opened:
    """The run at `path`. Raises LeftOut for one that is not done, or not whole."""
    job, state = _job(path)
    directory = RunDir(path)
    restart = job.run.settings.restart
    whole = [leg for leg in job.run.legs if not (restart and restart.kill is not None and leg == TRAIN)]
    legs = {leg: _rank_files(directory.leg(leg), job.run, leg) for leg in whole}
    if TRAIN not in job.run.legs:
        raise LeftOut(NO_TRAIN_LEG, directory.run, f"legs {', '.join(legs) or 'none'}, but no {TRAIN!r}")
    return Opened(directory=directory, job=job, state=state, legs=legs)


def _job(path: Path) -> tuple[Job, State]:
    if not path.exists():
        raise LeftOut(MISSING, path, "planned, but its directory is missing")
    if not path.is_dir() or not is_run(path):
        what = "not a run directory" if path.is_dir() else "a file, not a run directory"
        raise LeftOut(NOT_A_RUN, path, what)
    directory = RunDir(path)
    try:
        state = directory.read_state()
    except (HpcCkptError, OSError, UnicodeDecodeError) as error:
        raise LeftOut(UNREADABLE, directory.state, str(error)) from error
    if state.state != DONE:
        absent = "" if directory.state.exists() else "no state file: "
        cause = f": {state.reason}" if state.reason else ""
        raise LeftOut(NOT_DONE, directory.state, f"{absent}{state.state}{cause}")
    job = read_json(directory.run, Job)
    if job.run.ranks < 1:
        raise LeftOut(UNREADABLE, directory.run, f"a run of {job.run.ranks} ranks")
    return job, state


def read_json(path: Path, kind: type[Any]) -> Any:
    """What a JSON file of the run directory holds. Raises LeftOut with the cause told apart."""
    try:
        plain = msgspec.json.decode(read_bytes(path))
        version = plain.get("schema_version") if isinstance(plain, dict) else None
        if version != SCHEMA_VERSION:
            raise LeftOut(
                OTHER_SCHEMA, path, f"schema version {version}, this release reads {SCHEMA_VERSION}"
            )
        return msgspec.convert(plain, kind)
    except OSError as error:
        raise LeftOut(UNREADABLE, path, f"cannot be read ({error.strerror})") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LeftOut(UNREADABLE, path, f"not a valid {kind.__name__} ({error})") from error


def _rank_files(leg: LegDir, run: Run, name: str) -> list[RankFile]:
    """The files of all ranks of a leg, all complete and of this run. Raises LeftOut for the first other."""
    files = []
    for rank in range(run.ranks):
        file = read_rank(leg.rank_file(rank))
        if file.code:
            raise LeftOut(file.code, file.path, f"leg {name}, rank {rank}: {file.reason}")
        start = file.start
        expected = (run.run_id, name, rank, run.ranks)
        if (start.run_id, start.leg, start.rank, start.size) != expected:
            what = f"run {start.run_id}, leg {start.leg}, rank {start.rank} of {start.size}"
            raise LeftOut(
                WRONG_RANK, file.path, f"is of {what}; expected leg {name}, rank {rank} of {run.ranks}"
            )
        files.append(file)
    known = {Path(file.path) for file in files}
    for other in sorted(leg.ranks.glob("*.jsonl")):
        if other not in known:
            raise LeftOut(WRONG_RANK, other, f"leg {name}: a rank beyond the run's {run.ranks}")
    return files


def rank_legs(leg: LegDir, files: list[RankFile], read_trace: TraceReader) -> dict[int, RankLeg]:
    one_clock = len({file.start.boot_id for file in files}) == 1
    return {file.start.rank: _rank_leg(leg, file, read_trace, one_clock) for file in files}


def _rank_leg(leg: LegDir, file: RankFile, read_trace: TraceReader, one_clock: bool) -> RankLeg:
    start = file.start
    saves = {save.generation: save for save in file.all(Save)}
    if len(saves) != len(file.all(Save)):
        raise LeftOut(BAD_SAVES, file.path, f"rank {start.rank} saved a generation twice")
    spans: dict[int, list[Span]] = {}
    for span in file.all(Span):
        spans.setdefault(span.generation, []).append(span)
    clocks = file.all(Clock)
    if one_clock and not clocks:
        clocks = [Clock(t_ns=start.t_ns, offset_ns=0, error_ns=0, method="same_boot")]
    trace = _usable(read_trace(leg.rank_darshan(start.rank), start, file.all(Beacon), list(saves.values())))
    gpu = next(iter(file.all(Gpu)), None)
    return RankLeg(
        rank=start.rank, node=start.node, clocks=clocks, saves=saves, spans=spans, trace=trace, gpu=gpu
    )


def _usable(trace: RankTrace) -> RankTrace:
    """A trace one of whose logs is unreadable would count too little: it counts nothing."""
    if trace.bad and not trace.reason:
        return msgspec.structs.replace(
            trace, generations={}, reason=f"a log is unreadable: {trace.bad[0][1]}"
        )
    return trace
