"""Logs that a user has already, without a run directory: who wrote, how much, to which files, at the same time?

`python -m analysis.single_writer --darshan PATH`. A log knows no checkpoints, ranks' clocks or
contents, so less can be said than of a run, and the answer says what. Tables are in `darshan_show`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from analysis.cli import Answer
from analysis.darshan_claims import findings
from analysis.darshan_jobs import Process, WriterFile, at_once, contents, overlap, processes, read_all
from analysis.darshan_show import notes, views
from analysis.darshan_split import split
from analysis.finding import counted
from analysis.readers.darshan import DarshanLog
from hpcckpt.errors import ExitCode, SpecError, TraceError
from hpcckpt.rundir import RunDir

__all__ = ["answer", "views"]

Row = dict[str, Any]
RUN_FILE = RunDir(Path()).run.name
SHOWN_JOBS = 10
"""Jobs that a sentence names; all are in the rows."""
SUSPECT = ("partial-module", "dropped-events")
"""Warnings by which bytes are missing: their sums are not to be trusted."""


def answer(name: str, path: Path, below: str | None, state_bytes: int | None) -> tuple[Answer, ExitCode]:
    """The answer from all logs in `path`. Raises SpecError without any, TraceError if none can be read."""
    if not path.exists():
        raise SpecError(f"{path}: no such file or directory; give a .darshan log or a directory of them")
    paths = sorted(p for p in path.rglob("*.darshan") if not p.is_dir()) if path.is_dir() else [path]
    if not paths:
        raise SpecError(f"{path}: no .darshan log in it; give a log or the directory that holds them")
    logs, bad = read_all(paths)
    if not logs:
        raise TraceError(f"{bad[0][0]}: {bad[0][1]}" + (f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""))
    jobs = split(logs, path)
    where, titles = below or "/", jobs if len(jobs) > 1 else [""]
    parts = [_of_job(path, job, mine, where, state_bytes) for job, mine in zip(titles, jobs.values(), strict=True)]
    rows = [row for part in parts for row in part]
    warnings = [f"{log.source}: {warning}" for log in logs for warning in log.warnings]
    left_out = [
        {"run": path.name, "scope": "trace", "code": "bad_trace_log", "file": str(file), "reason": reason}
        for file, reason in bad
    ]
    suspect = any(word in warning for warning in warnings for word in SUSPECT)
    code = ExitCode.NOT_TRUSTWORTHY if suspect else ExitCode.RUNS_FAILED if bad else ExitCode.OK
    evidence = {name: [str(log.source) for log in mine] for name, mine in jobs.items()}
    found_answer = Answer(
        question=name,
        rows=rows,
        findings=[f for part, mine in zip(parts, evidence.values(), strict=True) for f in findings(part[0], mine)],
        left_out=left_out,
        notes=[*_jobs_words(path, jobs), *notes([part[0] for part in parts], warnings)],
    )
    return found_answer, code


def _jobs_words(path: Path, jobs: dict[str, list[DarshanLog]]) -> list[str]:
    """That there are several, where there are: what they wrote is never added up."""
    if len(jobs) < 2:
        return []
    names = list(jobs)
    more = f"; and {len(names) - SHOWN_JOBS} more" if len(names) > SHOWN_JOBS else ""
    which = "; ".join(f"{name} ({counted(len(jobs[name]), 'log')})" for name in names[:SHOWN_JOBS])
    return [f"{path} holds logs of {len(jobs)} jobs, each answered for itself: {which}{more}."]


def _of_job(path: Path, job: str, logs: list[DarshanLog], where: str, state_bytes: int | None) -> list[Row]:
    """The job's row, then those of its processes."""
    found, files = processes(logs, path, where)
    row = _job(path, found, files, state_bytes)
    row |= at_once(logs, where, row["written_bytes"]) | {"overlap_bytes": overlap(logs, where)}
    row["our_runs"] = any((above / RUN_FILE).is_file() for log in logs for above in log.source.absolute().parents)
    row["collective_ranks"] = sum(len(set(log.mpiio_segments.rank.tolist())) for log in logs)
    row |= {"job": job, "source": f"{path}, {job}" if job else str(path)}
    return [row, *({"kind": "process", "job": job} | msgspec.to_builtins(each) for each in found)]


def _job(path: Path, found: list[Process], files: list[WriterFile], state_bytes: int | None) -> Row:
    """One row for all logs of a job together."""
    writers = [each for each in found if each.writer]
    total = sum(each.written_bytes for each in found)
    top = max(found, key=lambda each: each.written_bytes, default=None)
    return {
        "kind": "job",
        "source": str(path),
        "processes": len(found),
        "hosts": len({each.host for each in found if each.host}),
        "writers": len(writers),
        "writing_hosts": len({each.host for each in writers if each.host}) or None,
        "files": len({file.path for file in files}),
        "written_bytes": total,
        "other_bytes": total - sum(each.written_bytes for each in writers),
        "top_process": top.name if top and top.written_bytes else None,
        "top_share": top.written_bytes / total if top and total else None,
        "calls": sum(each.calls for each in found) if all(each.calls >= 0 for each in found) else None,
        **contents(files, {each.name for each in writers}, state_bytes),
    }
