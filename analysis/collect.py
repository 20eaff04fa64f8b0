"""Run directories to tables. Every run is either taken, or listed as left out with code, file and reason.

Where runs lie, `analysis.locate` says. What a checkpoint or a law is, others say;
what the tables hold, `analysis.tables` says. A run that cannot be read never stops the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from analysis import checkpoints, laws, overheads
from analysis.checkpoints import Disk, Expected, RankLeg
from analysis.contents import contents_rows, file_rows, usable
from analysis.locate import bad_ledgers, find_runs, impossible, is_run
from analysis.readers import trace as traces
from analysis.readers.plausible import impossible_saves
from analysis.readers.ranks import IMPOSSIBLE_RECORD, OTHER_SCHEMA, RankFile, read_rank
from analysis.readers.trace import RankTrace, TraceReader
from analysis.tables import Tables, tables
from hpcckpt.errors import HpcCkptError
from hpcckpt.experiment import Job, Run, fingerprint
from hpcckpt.records import SCHEMA_VERSION, TRAIN, Beacon, Clock, Replica, Save, Span, Start, Verified
from hpcckpt.rundir import DONE, LegDir, RunDir

Row = dict[str, Any]

# Stable codes of a run that is left out; those of a rank's file are in analysis.readers.ranks.
NOT_A_RUN, MISSING, NOT_DONE, UNREADABLE = "not_a_run", "missing", "not_done", "unreadable"
NO_TRAIN_LEG, WRONG_RANK, BAD_SAVES, LAW_BROKEN = "no_train_leg", "wrong_rank", "bad_saves", "law_broken"
BAD_INVENTORY, DUPLICATE = "bad_inventory", "duplicate"
UNKNOWN_COMMIT = "not recorded"


class LeftOut(Exception):  # noqa: N818  (no error of the program: a verdict on a run)
    """Why a run, or a part of it, is not counted."""

    def __init__(self, code: str, file: Path | str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.file, self.reason = code, str(file), reason

    def row(self, run: str, scope: str = "run") -> Row:
        """A row of the table `left_out`."""
        return {"run": run, "scope": scope, "code": self.code, "file": self.file, "reason": self.reason}


def collect(paths: Sequence[Path], read_trace: TraceReader = traces.read_trace) -> Tables:
    """The tables of all runs that `paths` name."""
    rows: dict[str, list[Row]] = {}
    executions: dict[Execution, Path] = {}
    for path in find_runs(paths):
        # The campaign is where the run lies: a copied run keeps its own name but not its place.
        name = f"{path.absolute().parent.name}/{path.name}"
        try:
            taken = _take(path, name, read_trace, executions)
        except LeftOut as left:
            taken = {"left_out": [left.row(name)]}
        except OSError as error:
            left_out = LeftOut(UNREADABLE, error.filename or path, error.strerror or str(error))
            taken = {"left_out": [left_out.row(name)]}
        for table, more in taken.items():
            rows.setdefault(table, []).extend(more)
    _flag_overlaps(rows.get("runs", []))
    rows["impossible"] = impossible(paths)
    rows.setdefault("left_out", []).extend(
        LeftOut(UNREADABLE, ledger, reason).row(ledger.parent.name, "campaign")
        for ledger, reason in bad_ledgers(paths)
    )
    return tables(rows)


Execution = tuple[str, int, str, int]
"""What no two executions share: run, and rank 0's start, boot and process."""


def _execution(start: Start) -> Execution:
    return start.run_id, start.t_ns, start.boot_id, start.pid


def _take(
    path: Path, name: str, read_trace: TraceReader, executions: dict[Execution, Path]
) -> dict[str, list[Row]]:
    """All rows of one run, which becomes one of the `executions`. Raises LeftOut."""
    job, state = _opened(path)
    directory = RunDir(path)
    legs = {leg: _rank_files(directory.leg(leg), job.run, leg) for leg in job.run.legs}
    if TRAIN not in legs:
        raise LeftOut(NO_TRAIN_LEG, directory.run, f"legs {', '.join(legs) or 'none'}, but no {TRAIN!r}")
    execution = _execution(legs[TRAIN][0].start)
    if first := executions.get(execution):
        raise LeftOut(DUPLICATE, path, f"the same execution as {first}, which is counted")
    left: list[Row] = []
    rank_legs = _rank_legs(directory.leg(TRAIN), legs[TRAIN], read_trace)
    for leg in rank_legs.values():
        left += [LeftOut(traces.BAD_LOG, log, reason).row(name, "trace") for log, reason in leg.trace.bad]
    inventory, disk = _inventory(directory.leg(TRAIN), name, left)
    rows = _checkpoint_rows(name, rank_legs, disk, _expected(job.run, directory.run))
    for file in legs[TRAIN]:
        if reason := impossible_saves(file.records):
            raise LeftOut(IMPOSSIBLE_RECORD, file.path, f"leg {TRAIN}, rank {file.start.rank}: {reason}")
    if inventory is not None:
        rows |= {"contents": contents_rows(name, inventory), "files": file_rows(name, inventory)}
    rows["windows"] = overheads.windows(name, legs)
    rows["laws"] = _laws(name, legs, rows["saves"])
    rows["runs"] = [_run_row(name, directory, job, state, legs, rows)]
    for broken in rows["laws"]:
        if broken["verdict"] == laws.BROKEN and broken["law"] in laws.DECISIVE:
            reason = f"{broken['law']}: {broken['detail']}"
            left.append(LeftOut(LAW_BROKEN, directory.path, reason).row(name))
    executions[execution] = path
    return {**rows, "left_out": left}


def _opened(path: Path) -> tuple[Job, Any]:
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
    job = _read_json(directory.run, Job)
    if job.run.ranks < 1:
        raise LeftOut(UNREADABLE, directory.run, f"a run of {job.run.ranks} ranks")
    return job, state


def _read_json(path: Path, kind: type[Any]) -> Any:
    """What a JSON file of the run directory holds. Raises LeftOut with the cause told apart."""
    try:
        plain = msgspec.json.decode(path.read_bytes())
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


def _rank_legs(leg: LegDir, files: list[RankFile], read_trace: TraceReader) -> dict[int, RankLeg]:
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
    return RankLeg(rank=start.rank, node=start.node, clocks=clocks, saves=saves, spans=spans, trace=trace)


def _usable(trace: RankTrace) -> RankTrace:
    """A trace one of whose logs is unreadable would count too little: it counts nothing."""
    if trace.bad and not trace.reason:
        return msgspec.structs.replace(
            trace, generations={}, reason=f"a log is unreadable: {trace.bad[0][1]}"
        )
    return trace


def _inventory(leg: LegDir, name: str, left: list[Row]) -> tuple[pl.DataFrame | None, Disk]:
    """The inventory, and bytes per generation and rank with each file counted once."""
    if not leg.inventory.exists():
        return None, Disk(reason="no inventory of the files")
    try:
        found = pl.read_parquet(leg.inventory)
        files = found.select("generation", "rank", "file", pl.col("file_bytes").cast(pl.Int64)).unique()
        bytes_ = files.group_by("generation", "rank").agg(pl.col("file_bytes").sum())
    except (pl.exceptions.PolarsError, OSError) as error:
        cause = str(error).splitlines()[0]
        left.append(LeftOut(BAD_INVENTORY, leg.inventory, cause).row(name, "inventory"))
        return None, Disk(reason=f"the inventory cannot be read: {cause}")
    negative = files.filter(pl.col("file_bytes") < 0).sort("generation", "file").rows()
    if negative:
        generation, _, file, size = negative[0]
        cause = f"file {file} of generation {generation} has {size} bytes"
        left.append(LeftOut(BAD_INVENTORY, leg.inventory, cause).row(name, "inventory"))
        return None, Disk(reason=f"the inventory cannot be true: {cause}")
    # A sum would pass over a size that nobody read: the generation would seem to hold less.
    unread = files.filter(pl.col("file_bytes").is_null()).sort("generation", "file").rows()
    unknown = {
        generation: f"the inventory has no size of file {file} of generation {generation}"
        for generation, _, file, _ in reversed(unread)
    }
    sizes = {(generation, rank): size for generation, rank, size in bytes_.rows()}
    return (found if usable(found) else None), Disk(bytes=sizes, unknown=unknown)


def _expected(run: Run, file: Path) -> Expected:
    """The interval of traced over on-disk bytes that the run declared for its format."""
    declared = run.identity.get("expected_coverage")
    if declared is None:
        return Expected()
    try:
        low, high = map(float, declared.split(","))
    except ValueError as error:
        raise LeftOut(
            UNREADABLE, file, f"identity.expected_coverage {declared!r} is not 'low,high'"
        ) from error
    return Expected(low=low, high=high)


def _checkpoint_rows(
    name: str, legs: dict[int, RankLeg], disk: Disk, expected: Expected
) -> dict[str, list[Row]]:
    """Rows of `saves`, `rank_saves` and `writers`. Raises LeftOut where ranks saw different checkpoints."""
    first = legs[0]
    for leg in legs.values():
        if list(leg.saves) != list(first.saves):
            ours, theirs = list(leg.saves), list(first.saves)
            raise LeftOut(BAD_SAVES, name, f"rank {leg.rank} saved generations {ours}, rank 0 saved {theirs}")
    errors = [clock.error_ns for leg in legs.values() for clock in leg.clocks]
    rows: dict[str, list[Row]] = {"saves": [], "rank_saves": [], "writers": []}
    for generation, save in first.saves.items():
        ranks = [checkpoints.rank_row(name, leg, generation, disk, expected) for leg in legs.values()]
        rows["saves"].append(
            checkpoints.save_row(save.step, save.state_bytes, ranks, max(errors, default=None))
        )
        rows["rank_saves"] += ranks
        rows["writers"] += checkpoints.writer_rows(ranks, legs)
    return rows


def _laws(name: str, legs: dict[str, list[RankFile]], saves: list[Row]) -> list[Row]:
    digests = {leg: {file.start.rank: file.all(Replica) for file in files} for leg, files in legs.items()}
    read_back = [item for file in legs[TRAIN] for item in file.all(Verified)]
    return [
        laws.coverage(name, saves),
        laws.unattributed(name, saves),
        laws.replicas(name, digests),
        laws.readback(name, [save["generation"] for save in saves], read_back),
    ]


def _run_row(
    name: str,
    directory: RunDir,
    job: Job,
    state: Any,
    legs: dict[str, list[RankFile]],
    rows: dict[str, list[Row]],
) -> Row:
    run, point = job.run, job.run.point
    starts = [file.start for file in legs[TRAIN]]
    fullest = max(starts, key=lambda start: start.ranks_on_host / max(start.cores, 1))
    broken = [law for law in rows["laws"] if law["verdict"] == laws.BROKEN]
    return {
        "run": name,
        "run_id": run.run_id,
        "campaign": name.partition("/")[0],
        "path": str(directory.path),
        "experiment": run.experiment,
        "site": str(job.site.get("name") or run.identity.get("site") or "unknown"),
        **msgspec.to_builtins(point),
        "ranks": run.ranks,
        "repeat": run.repeat,
        "faults": "; ".join(map(_fault_words, run.faults)),
        "commit": _commit(directory),
        "conditions": fingerprint([run.settings, run.identity, job.virtual_nodes, job.tracer])[:8],
        "virtual_nodes": job.virtual_nodes,
        "ranks_per_core": fullest.ranks_on_host / max(fullest.cores, 1),
        "cores": fullest.cores,
        "tracer": job.tracer,
        "barrier": starts[0].barrier,
        "data": starts[0].data,
        "parameters": starts[0].parameters,
        "checkpoints": len(rows["saves"]),
        **overheads.overhead(rows["windows"], point.interval_steps),
        **overheads.deferred(legs[TRAIN]),
        "durable_reason": overheads.durable_reason(point.durable, legs),
        "started": state.started,
        "ended": state.ended,
        "trusted": not any(law["law"] in laws.DECISIVE for law in broken),
        "flags": [f"{law['law']}: {law['detail']}" for law in broken] + _writer_flags(rows["saves"]),
    }


def _fault_words(fault: Any) -> str:
    what = f"{fault.action} {fault.seconds:g} s" if fault.action == "sleep" else fault.action
    when = "" if fault.generation is None else f" {fault.generation}"
    return f"rank {fault.rank} {what} at {fault.at}{when} ({fault.leg})"


def _commit(directory: RunDir) -> str:
    """The code's commit, marked where it was changed; what nobody recorded is a value of its own."""
    if not directory.manifest.exists():
        return UNKNOWN_COMMIT
    if _no_object(directory.manifest):
        return UNKNOWN_COMMIT
    code = _read_json(directory.manifest, dict).get("code")
    if not isinstance(code, dict) or not code.get("commit"):
        return UNKNOWN_COMMIT
    return f"{code['commit']}+changes" if code.get("modified") else str(code["commit"])


def _no_object(path: Path) -> bool:
    """Whether the file is JSON, but of nothing that has fields."""
    try:
        return not isinstance(msgspec.json.decode(path.read_bytes()), dict)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return False  # the reader of its fields says what is wrong


def _writer_flags(saves: list[Row]) -> list[str]:
    """Checkpoints whose trace shows another number of writers than the plan declares."""
    other = [save for save in saves if save["writers_seen"] not in (None, save["writers_declared"])]
    if not other:
        return []
    seen, declared = other[0]["writers_seen"], other[0]["writers_declared"]
    return [f"writers: {seen} seen, {declared} declared in {len(other)} of {len(saves)} checkpoints"]


def _flag_overlaps(runs: list[Row]) -> None:
    """Runs of one campaign that ran at the same time disturbed each other: both are flagged."""
    timed = [run for run in runs if run["started"] is not None and run["ended"] is not None]
    timed.sort(key=lambda run: (run["campaign"], run["started"]))
    for i, run in enumerate(timed):
        for other in timed[i + 1 :]:
            if other["campaign"] != run["campaign"] or other["started"] >= run["ended"]:
                break
            run["flags"].append(f"overlaps with {other['run_id']}")
            other["flags"].append(f"overlaps with {run['run_id']}")
