"""One opened run to its rows of every table. What a checkpoint or a law is, others say.

Only what one run says by itself: what runs say of each other, `analysis.collect` adds.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from analysis import durations, kept, laws, overheads
from analysis.checkpoints import save_rows
from analysis.inventories import content_rows, read_disk
from analysis.opened import (
    BAD_SAVES,
    LAW_BROKEN,
    UNREADABLE,
    LeftOut,
    Opened,
    Row,
    rank_legs,
    read_json,
)
from analysis.rank_leg import Disk, Expected, RankLeg
from analysis.rank_saves import RankSaves
from analysis.readers import trace as traces
from analysis.readers.plausible import impossible_saves, impossible_windows
from analysis.readers.ranks import IMPOSSIBLE_RECORD, RankFile
from analysis.readers.trace import TraceReader
from analysis.tables import frame
from hpcckpt.experiment import Run, fingerprint
from hpcckpt.records import TRAIN, Replica, Resumed, Save, Start, Verified, Window
from hpcckpt.rundir import RunDir, read_bytes

UNKNOWN_COMMIT = "not recorded"


def run_rows(run: Opened, name: str, read_trace: TraceReader) -> dict[str, pl.DataFrame]:
    """A run's part of every table that it has part in. Raises LeftOut where its records contradict each other."""
    directory, files = run.directory, run.legs[TRAIN]
    left: list[Row] = []
    legs = rank_legs(directory.leg(TRAIN), files, read_trace)
    for leg in legs.values():
        left += [LeftOut(traces.BAD_LOG, log, reason).row(name, "trace") for log, reason in leg.trace.bad]
    inventory = directory.leg(TRAIN).inventory
    disk = read_disk(inventory, name, left)
    ranks, saves = _checkpoint_rows(name, legs, disk, _expected(run.job.run, directory.run))
    rows: dict[str, list[Row]] = {"saves": saves}
    for file in files:
        went_on = [resumed.generation + 1 for resumed in file.all(Resumed)]
        if reason := impossible_saves(file.all(Save), file.all(Window), *went_on[-1:]):
            raise LeftOut(IMPOSSIBLE_RECORD, file.path, f"leg {TRAIN}, rank {file.start.rank}: {reason}")
    for leg_name, of_leg in run.legs.items():
        if apart := impossible_windows({file.start.rank: file.all(Window) for file in of_leg}):
            raise LeftOut(IMPOSSIBLE_RECORD, of_leg[apart[0]].path, f"leg {leg_name}, rank {apart[0]}: {apart[1]}")
    if disk.reason is None:
        rows |= content_rows(inventory, name, left)
    rows["windows"] = overheads.windows(name, run.legs)
    rows["steps"] = durations.steps(name, run.legs)
    rows["reads"] = durations.reads(name, files)
    rows["laws"] = _laws(name, run.legs, rows["saves"])
    rows["runs"] = [_run_row(name, run, rows)]
    for broken in rows["laws"]:
        if broken["verdict"] == laws.BROKEN and broken["law"] in laws.DECISIVE:
            reason = f"{broken['law']}: {broken['detail']}"
            left.append(LeftOut(LAW_BROKEN, directory.path, reason).row(name))
    rank_saves = ranks.frame()
    frames = {table: frame(table, found) for table, found in (rows | {"left_out": left}).items()}
    return frames | {"rank_saves": rank_saves, "writers": ranks.writers(rank_saves)}


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
) -> tuple[RankSaves, list[Row]]:
    """Every rank's part of every checkpoint, and the rows of `saves`. Raises LeftOut where ranks saw different ones."""
    first = legs[0]
    for leg in legs.values():
        if list(leg.saves) != list(first.saves):
            ours, theirs = list(leg.saves), list(first.saves)
            raise LeftOut(BAD_SAVES, name, f"rank {leg.rank} saved generations {ours}, rank 0 saved {theirs}")
    found = RankSaves(name, list(legs.values()), list(first.saves), disk, expected)
    return found, save_rows(found)


def _laws(name: str, legs: dict[str, list[RankFile]], saves: list[Row]) -> list[Row]:
    digests = {leg: {file.start.rank: file.all(Replica) for file in files} for leg, files in legs.items()}
    read_back = [item for file in legs[TRAIN] for item in file.all(Verified)]
    return [
        laws.coverage(name, saves),
        laws.unattributed(name, saves),
        laws.replicas(name, digests),
        laws.readback(name, [save["generation"] for save in saves], read_back),
    ]


def _run_row(name: str, opened: Opened, rows: dict[str, list[Row]]) -> Row:
    job, state, legs, directory = opened.job, opened.state, opened.legs, opened.directory
    run, point = job.run, job.run.point
    starts = [file.start for file in legs[TRAIN]]
    load, cores = _load(starts)
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
        "faults": "; ".join(map(fault_words, run.faults)),
        "commit": commit_of(directory),
        "conditions": fingerprint([run.settings, run.identity, job.virtual_nodes, job.tracer])[:8],
        "condition_facts": _condition_facts(job),
        "virtual_nodes": job.virtual_nodes or _one_machine(starts),
        "ranks_per_core": load,
        "cores": cores,
        "tracer": job.tracer,
        "barrier": starts[0].barrier,
        "data": starts[0].data,
        "parameters": starts[0].parameters,
        "checkpoints": len(rows["saves"]),
        **overheads.overhead(rows["windows"], point.interval_steps),
        **overheads.deferred(legs[TRAIN]),
        "durable_reason": overheads.durable_reason(point.durable, legs),
        **kept.columns(point.strategy, run.settings.keep, rows["saves"]),
        "started": state.started,
        "ended": state.ended,
        "trusted": not any(law["law"] in laws.DECISIVE for law in broken),
        "flags": [
            *(f"{law['law']}: {law['detail']}" for law in broken),
            *_writer_flags(rows["saves"]),
            *(_resumed_words(resumed) for resumed in legs[TRAIN][0].all(Resumed)),
        ],
    }


def _one_machine(starts: list[Start]) -> bool:
    """Whether hosts of several names run on one kernel: they share cores, memory and disk, and show no scaling."""
    return len({start.boot_id for start in starts}) == 1 and len({start.host for start in starts}) > 1


def _load(starts: list[Start]) -> tuple[float, int]:
    """(ranks per core, cores) of the fullest machine; hosts of several names may be one machine."""
    ranks = Counter(start.boot_id for start in starts)
    here = {start.boot_id: max(start.cores, 1) for start in starts}
    fullest = max(ranks, key=lambda boot: ranks[boot] / here[boot])
    return ranks[fullest] / here[fullest], here[fullest]


def _resumed_words(resumed: Resumed) -> str:
    """A leg that was cut off: its earlier saves are in its earlier launches, and are in no table."""
    few = f"{', '.join(resumed.lacking[:3])}{' ...' if resumed.lacking[3:] else ''}"
    without = f", without {few}" if resumed.lacking else ""
    return f"went on after an interruption: from generation {resumed.generation}, step {resumed.step}{without}"


def _condition_facts(job: Any) -> list[str]:
    """What `conditions` is the digest of, each fact as `name = value`."""
    shared = {"virtual_nodes": job.virtual_nodes, "tracer": job.tracer}
    facts = msgspec.to_builtins(job.run.settings) | job.run.identity | shared
    return [f"{name} = {value}" for name, value in sorted(facts.items())]


def fault_words(fault: Any) -> str:
    what = f"{fault.action} {fault.seconds:g} s" if fault.action == "sleep" else fault.action
    when = "" if fault.generation is None else f" {fault.generation}"
    named = f" {fault.what}" if fault.what else ""
    return f"rank {fault.rank} {what}{named} at {fault.at}{when} ({fault.leg})"


def commit_of(directory: RunDir) -> str:
    """The code's commit, marked where it was changed; what nobody recorded is a value of its own."""
    if not directory.manifest.exists():
        return UNKNOWN_COMMIT
    if _no_object(directory.manifest):
        return UNKNOWN_COMMIT
    code = read_json(directory.manifest, dict).get("code")
    if not isinstance(code, dict) or not code.get("commit"):
        return UNKNOWN_COMMIT
    return f"{code['commit']}+changes" if code.get("modified") else str(code["commit"])


def _no_object(path: Path) -> bool:
    """Whether the file is JSON, but of nothing that has fields."""
    try:
        return not isinstance(msgspec.json.decode(read_bytes(path)), dict)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return False  # the reader of its fields says what is wrong


def _writer_flags(saves: list[Row]) -> list[str]:
    """Checkpoints whose trace shows another number of writers than the plan declares."""
    other = [save for save in saves if save["writers_seen"] not in (None, save["writers_declared"])]
    if not other:
        return []
    seen, declared = other[0]["writers_seen"], other[0]["writers_declared"]
    return [f"writers: {seen} seen, {declared} declared in {len(other)} of {len(saves)} checkpoints"]
