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
from hpcckpt.errors import ExitCode, SpecError, TraceError
from hpcckpt.rundir import RunDir

__all__ = ["answer", "views"]

Row = dict[str, Any]
RUN_FILE = RunDir(Path()).run.name
SUSPECT = ("partial-module", "dropped-events")
"""Warnings by which bytes are missing: their sums are not to be trusted."""


def answer(name: str, path: Path, below: str | None, state_bytes: int | None) -> tuple[Answer, ExitCode]:
    """The answer from all logs in `path`. Raises SpecError without any, TraceError if none can be read."""
    if not path.exists():
        raise SpecError(f"{path}: no such file or directory; give a .darshan log or a directory of them")
    paths = sorted(p for p in path.rglob("*.darshan") if p.is_file()) if path.is_dir() else [path]
    if not paths:
        raise SpecError(f"{path}: no .darshan log in it; give a log or the directory that holds them")
    logs, bad = read_all(paths)
    if not logs:
        raise TraceError(f"{bad[0][0]}: {bad[0][1]}" + (f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""))
    where = below or "/"
    found, files = processes(logs, path, where)
    row = _job(path, found, files, state_bytes)
    row |= at_once(logs, where, row["written_bytes"]) | {"overlap_bytes": overlap(logs, where)}
    row["our_runs"] = any((above / RUN_FILE).is_file() for log in logs for above in log.source.absolute().parents)
    row["collective_ranks"] = sum(len(set(log.mpiio_segments.rank.tolist())) for log in logs)
    warnings = [f"{log.source}: {warning}" for log in logs for warning in log.warnings]
    left_out = [
        {"run": path.name, "scope": "trace", "code": "bad_trace_log", "file": str(file), "reason": reason}
        for file, reason in bad
    ]
    rows = [row, *({"kind": "process"} | msgspec.to_builtins(each) for each in found)]
    suspect = any(word in warning for warning in warnings for word in SUSPECT)
    code = ExitCode.NOT_TRUSTWORTHY if suspect else ExitCode.RUNS_FAILED if bad else ExitCode.OK
    evidence = [str(log.source) for log in logs]
    found_answer = Answer(
        question=name,
        rows=rows,
        findings=findings(row, evidence),
        left_out=left_out,
        notes=notes(row, warnings),
    )
    return found_answer, code


def _job(path: Path, found: list[Process], files: list[WriterFile], state_bytes: int | None) -> Row:
    """One row for all logs together."""
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
