"""The findings SW11 to SW14, on logs without a run directory. What a log cannot tell is not measured, never guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from analysis.finding import Finding, counted, not_measured
from analysis.more_writers import ONE_AT_A_TIME

Row = dict[str, Any]
NO_DIGESTS = "content unknown: no digests, Darshan has none"
Claim = Callable[[Row, list[str]], Finding]


def findings(row: Row, evidence: list[str]) -> list[Finding]:
    """All findings for the job's row."""
    claims: list[Claim] = [one_process, copies, same_path, turns]
    return [claim(row, evidence) for claim in claims]


def _claim(code: str, claim: str, row: Row, evidence: list[str], holds: bool, **more: Any) -> Finding:
    return Finding(
        code=code, claim=claim, group=row["source"], verdict="supports" if holds else "contradicts",
        level="warning" if holds else "ok", evidence=evidence, **more,
    )  # fmt: skip


def one_process(row: Row, evidence: list[str]) -> Finding:
    """SW11: one of several processes wrote everything."""
    code, claim = "SW11", "one process wrote and the others did not"
    if not row["writers"] or row["processes"] < 2:
        reason = "nothing was written" if not row["writers"] else "the logs are of one process"
        return not_measured(code, claim, row["source"], reason, evidence)
    holds = row["writers"] == 1
    who = f"; {row['top_process']} wrote {100 * row['top_share']:.1f} % of the bytes"
    if row["collective_ranks"] > row["writers"]:
        who += f"; {row['collective_ranks']} ranks handed them over by MPI-IO"
    tip = "How long the others waited is in no Darshan log: trace a run with this suite."
    return _claim(
        code, claim, row, evidence, holds, value=row["writers"], unit="writers",
        sentence=f"{row['writers']} of {row['processes']} processes wrote "
        f"{row['written_bytes'] / 1e6:.4g} MB{who}",
        recommendation=tip if holds else None,
    )  # fmt: skip


def copies(row: Row, evidence: list[str]) -> Finding:
    """SW12: the writers wrote copies of the same state, as far as names and sizes tell."""
    code, claim = "SW12", "the writers wrote copies of the same bytes"
    if row["content"] in ("one_writer", "shared_file", "unknown"):
        reason = f"{row['content_basis']}; {NO_DIGESTS}"
        return not_measured(code, claim, row["source"], reason, evidence, unit="copies")
    if row["content"] == "disjoint":
        sentence = f"{row['writers']} disjoint writers: {row['content_basis']} ({NO_DIGESTS})"
        return _claim(code, claim, row, evidence, False, value=row["copies"], unit="copies", sentence=sentence)
    sentence = f"{row['copies']:.3g} identical copies' worth of bytes: {row['content_basis']} ({NO_DIGESTS})"
    return _claim(
        code, claim, row, evidence, True, value=row["copies"], unit="copies", sentence=sentence,
        recommendation="Equal shares of one state look alike: give --state-bytes to tell them apart.",
    )  # fmt: skip


def same_path(row: Row, evidence: list[str]) -> Finding:
    """SW13: several processes wrote one path."""
    code, claim = "SW13", "several processes wrote the same path"
    if not row["writers"]:
        return not_measured(code, claim, row["source"], "nothing was written", evidence, unit="paths")
    holds = row["shared_files"] > 0
    overlap = row["overlap_bytes"]
    how = f"; {overlap} bytes of it by more than one" if overlap else "; at different offsets"
    how = "" if overlap is None else how
    sentence = f"{counted(row['shared_files'], 'path')} written by several, as {row['shared_file']}{how}"
    return _claim(
        code, claim, row, evidence, holds, value=row["shared_files"], unit="paths",
        sentence=sentence if holds else f"each of {counted(row['files'], 'file')} has one writer",
        recommendation="Where they overlap, the last to write wins: give each process a name of its own." if overlap
        else None,
    )  # fmt: skip


def turns(row: Row, evidence: list[str]) -> Finding:
    """SW14: several writers, one after another."""
    code, claim = "SW14", "several processes write one after another"
    if row["writers"] < 2 or row["at_once_mean"] is None:
        reason = "fewer than two processes wrote" if row["writers"] < 2 else row["at_once_reason"]
        return not_measured(code, claim, row["source"], reason, evidence, unit="writers")
    return _claim(
        code, claim, row, evidence, row["at_once_mean"] < ONE_AT_A_TIME, value=row["at_once_mean"], unit="writers",
        sentence=f"{row['at_once_mean']:.2f} of {row['writers']} writers at once on average, at most "
        f"{row['at_once_max']}",
        recommendation="Look for a lock or a token between the writers.",
    )  # fmt: skip
