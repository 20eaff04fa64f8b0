"""Imported Darshan logs as a person sees them: a table of the job, one of its processes, and what is to be known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis.view import Reasons, View, mega, number

if TYPE_CHECKING:
    from analysis.cli import Answer

Row = dict[str, Any]
JOBS = 10
"""Jobs whose tables are shown."""
SHOWN = 20
"""Processes in the table; the others are summed up in a line. All are in --json and --csv."""
CONTENT = {
    "one_writer": "one writer",
    "shared_file": "one file, several writers",
    "disjoint": "disjoint",
    "copies": "copies' worth",
    "unknown": "not told",
}


def views(answer: Answer) -> list[View]:
    """Each job, then its processes, the fullest first; of many jobs the processes are in --json and --csv alone."""
    jobs = [row for row in answer.rows if row["kind"] == "job"]
    found = []
    for job in jobs[:JOBS]:
        mine = [row for row in answer.rows if row["kind"] == "process" and row["job"] == job["job"]]
        found += [_job(job), _processes(sorted(mine, key=lambda row: -row["written_bytes"]))]
    more = len(jobs) - JOBS
    return [*found, *([View(title=f"{more} more jobs are in --json and --csv")] if more > 0 else [])]


def _job(row: Row) -> View:
    reasons = Reasons()
    columns = {
        "processes": [str(row["processes"])],
        "writers": [str(row["writers"])],
        "hosts that\nwrote": [reasons.cell(number(row["writing_hosts"]), "no log names a host of writes")],
        "files": [str(row["files"])],
        "MB": [mega(row["written_bytes"]) or "0"],
        "calls": [reasons.cell(None if row["calls"] is None else str(row["calls"]), "a record of all ranks together")],
        "content": [CONTENT[row["content"]]],
        "at once\nmean": [reasons.cell(number(row["at_once_mean"]), row["at_once_reason"])],
        "at once\nmost": [reasons.cell(number(row["at_once_max"]), row["at_once_reason"])],
    }
    return View(title=f"Darshan logs in {row['source']}", columns=columns, left=["content"], below=reasons.lines())


def _processes(rows: list[Row]) -> View:
    reasons, shown = Reasons(), rows[:SHOWN]
    columns = {
        "process": [row["name"] for row in shown],
        "host": [row["host"] or "-" for row in shown],
        "writer": ["yes" if row["writer"] else "no" for row in shown],
        "MB": [mega(row["written_bytes"]) or "0" for row in shown],
        "files": [str(row["files"]) for row in shown],
        "calls": [reasons.cell(None if r["calls"] < 0 else str(r["calls"]), "not counted by process") for r in shown],
        "write s\nwith fsync": [
            reasons.cell(number(row["write_s"]), "a record of all ranks together") for row in shown
        ],
    }
    rest = rows[SHOWN:]
    more = [f"and {len(rest)} more with {mega(sum(row['written_bytes'] for row in rest))} MB in all"]
    below = [*reasons.lines(), *(more if rest else [])]
    return View(title="", columns=columns, left=["process", "host", "writer"], below=below)


def notes(rows: list[Row], warnings: list[str]) -> list[str]:
    """What such logs do not hold, and what they say of themselves."""
    other = sum(row["other_bytes"] for row in rows)
    few = f" {other} bytes of processes that wrote less than 1 % of the fullest one's count for no writer."
    small = few if other else ""
    known = (
        "Logs without a run directory know no checkpoints, no waiting and no contents. All writes of the job are "
        "counted, whatever they were for (--below DIR narrows them); those by mmap, sendfile, copy_file_range or "
        f"io_uring are in no log.{small}"
    )
    if any(row["our_runs"] for row in rows):
        known += " These logs lie in run directories of this suite: ask about those, without --darshan, and learn more."
    kinds: dict[str, list[str]] = {}
    for warning in warnings:
        kinds.setdefault(warning.partition(": ")[2].partition(":")[0], []).append(warning)
    more = {items[0]: f" (and {len(items) - 1} more such)" if len(items) > 1 else "" for items in kinds.values()}
    return [known, *(first + rest for first, rest in more.items())]
