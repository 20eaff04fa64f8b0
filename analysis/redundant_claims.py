"""The findings RC01 to RC05 of the question on redundant copies, from its rows.

Thresholds stand here with their reasons; nothing is counted or shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.finding import Finding, not_measured
from analysis.own import is_own
from analysis.rows import Row

REDUNDANT = 0.01
"""Share of the logical bytes from which copies are more than equal counters and equal initial values."""
MANY = 2
"""Generations on disk at once from which keeping them multiplies the room that is needed."""
_ONCE = "Write each replica set once (ChainerMN's replica sets, sharded saves): the copies restore nothing more."
_ONCE_DEVELOPERS = "Know which ranks are replicas of each other, and let one of them write, or each of them a part."


def findings(row: Row) -> list[Finding]:
    """All findings of a row about a checkpoint."""
    return [claim(row) for claim in (replicas, copies, across_nodes, kept)]


def replicas(row: Row) -> Finding:
    """RC01: several files hold the same names and slices."""
    what = "several files hold the same names and slices"
    words = "of the logical bytes are replicas by name and slice"
    return _redundant("RC01", what, words, row, "replica_redundant")


def copies(row: Row) -> Finding:
    """RC02: the same contents are written more than once."""
    what = "the same contents are written more than once"
    words = "of the logical bytes are copies by content, constants apart"
    return _redundant("RC02", what, words, row, "content_redundant")


def _redundant(code: str, claim: str, words: str, row: Row, name: str) -> Finding:
    share = row[f"{name}_share"]
    if share is None:
        return not_measured(code, claim, row["group"], row[f"{name}_reason"] or "nothing was written", row["evidence"])
    many = share >= REDUNDANT
    return Finding(
        code=code, claim=claim, group=row["group"], value=share, unit="fraction", evidence=row["evidence"],
        verdict="supports" if many else "contradicts", level="warning" if many else "ok",
        sentence=f"{100 * share:.1f} % {words}: {_disk(row, name)}",
        recommendation=_ONCE if many else None, for_developers=_ONCE_DEVELOPERS if many else None,
    )  # fmt: skip


def _disk(row: Row, name: str) -> str:
    disk, whole = row[f"{name}_disk_bytes"], row["disk_bytes"]
    if disk is None or whole is None:
        return f"{row[f'{name}_bytes'] / 1e6:.4g} of {row['logical_bytes'] / 1e6:.4g} MB (sizes on disk not known)"
    return f"{disk / 1e6:.4g} of {whole / 1e6:.4g} MB on disk per checkpoint"


def across_nodes(row: Row) -> Finding:
    """RC03: copies lie on more than one node."""
    code, claim, share = "RC03", "copies lie on more than one node", row["content_redundant_share"]
    if share is None:
        reason = row["content_redundant_reason"] or "nothing was written"
        return not_measured(code, claim, row["group"], reason, row["evidence"])
    across = row["across_nodes_share"] if share >= REDUNDANT else 0.0
    if across is None:
        return not_measured(code, claim, row["group"], "nothing is listed of who holds what", row["evidence"])
    held = f"{100 * across:.0f} % of the copies are held on several nodes"
    words = held if share >= REDUNDANT else "there are no copies"
    return Finding(
        code=code, claim=claim, group=row["group"], value=across, unit="fraction of copies", evidence=row["evidence"],
        verdict="supports" if across > 0 else "contradicts", level="info" if across > 0 else "ok",
        sentence=f"{words}; files are written on {row['writer_nodes']:.0f} of {row['nodes']} nodes",
        recommendation="On a shared file system a copy per node buys nothing; on node-local disks it survives a node."
        if across > 0 else None,
    )  # fmt: skip


def kept(row: Row) -> Finding:
    """RC04: older generations stay on disk beside the newest."""
    code, claim, count = "RC04", "older generations stay on disk beside the newest", row["generations_kept"]
    if count is None or row["kept_bytes"] is None:
        reason = row["kept_reason"] or "no checkpoints"
        return not_measured(code, claim, row["group"], reason, row["evidence"])
    most = row["generations_most"]
    limit = "a longer job keeps every one" if most is None else f"a longer job has up to {most} there"
    many = count >= MANY
    return Finding(
        code=code, claim=claim, group=row["group"], value=count, unit="generations", evidence=row["evidence"],
        verdict="supports" if many else "contradicts", level="info" if many else "ok",
        sentence=f"{count:.0f} generations, {row['kept_bytes'] / 1e6:.4g} MB, are left at the end by the strategy's "
        f"rule; {limit}",
        recommendation="Ask for so much room before the run, or keep fewer generations." if many else None,
        for_developers="Let the user say how many generations stay." if many and most is not None else None,
    )  # fmt: skip


def only_chainer(rows: Sequence[Row]) -> Finding:
    """RC05, the paper's finding: only Chainer writes checkpoints from many nodes, and those are copies."""
    code = "RC05"
    claim = "only Chainer writes from many nodes, and what it writes there is redundant (arXiv 2012.00825)"
    several = [row for row in rows if row["nodes"] > 1 and row["writer_nodes"]]
    own = [row for row in several if is_own(row["framework"], row["strategy"])]
    chainer = [row for row in own if _is_chainer(row)]
    others = [row for row in several if not _is_chainer(row)]
    evidence = [run for row in (*own, *others) for run in row["evidence"]]
    many = [row for row in own if row["writer_nodes"] > 1]
    if not any(row in chainer for row in many) or not others:
        missing = "mechanism of Chainer's own that writes from several nodes" if others else "other framework"
        return not_measured(code, claim, "all", f"these runs hold no {missing} on 2 or more nodes", evidence)
    if unknown := next((row for row in many if row["content_redundant_share"] is None), None):
        return not_measured(code, claim, "all", f"copies not known: {unknown['content_redundant_reason']}", evidence)
    alone = all(_is_chainer(row) for row in many)
    redundant = all(row["content_redundant_share"] >= REDUNDANT for row in many if _is_chainer(row))
    words = "; ".join(sorted(set(map(_words, many))))
    return Finding(
        code=code, claim=claim, group="all", value=float(len({row["framework"] for row in many})), unit="frameworks",
        verdict="supports" if alone and redundant else "contradicts", level="info", evidence=evidence,
        sentence=f"written from several nodes by a framework's own mechanism: {words}",
    )  # fmt: skip


def _is_chainer(row: Row) -> bool:
    return str(row["framework"]).startswith("chainer")


def _words(row: Row) -> str:
    share = 100 * row["content_redundant_share"]
    nodes = f"{row['writer_nodes']:.0f} of {row['nodes']} nodes"
    return f"{row['framework']} {row['strategy']} ({nodes}, {share:.1f} % copies)"
