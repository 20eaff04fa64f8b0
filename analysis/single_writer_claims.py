"""The findings SW01 to SW10: who wrote while who waited, and what the storage had to do with it.

Thresholds stand here with their reasons. SC01 to SC06 and ME01 to ME03 are other questions' claims:
growth of the stall alone, uneven shares, coverage and spread are not said again. Nothing is printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.deciding import MECHANISM_NOTE, placed, slope_words
from analysis.finding import Finding, counted, not_measured
from analysis.more_writers import ONE_AT_A_TIME, WRITING_SHARE, together
from analysis.own import is_own
from analysis.pooling import Group, Row
from analysis.scaling_claims import STRAGGLE_RUNS, WAIT_SHARE, stall_grows

PAPER = "arXiv 2012.00825"
ALL = "all frameworks"
SLOW_RATIO, SLOW_S = 1.5, 0.010
"""A writer is slow where each of its bytes takes half as long again as its peers', and it shows in the stall."""
LONGER_RATIO, LONGER_S, USUAL_OF = 1.5, 0.25, 3
"""One checkpoint stands out at half as long again as the usual of its run, by a quarter second, of three or more
behind the first."""
FSYNC_RATIO, FSYNC_S = 3.0, 0.050
"""A single fsync stands out at three times the usual one, and above what one full device cache costs anywhere."""
ON_SHARE, ON_S = 0.10, 0.010
"""A rank works on when it is behind the others by this share of the stall, and by more than time slices."""
CACHED_RATIO = 1.5
"""Buffered writes are faster than durable ones by so much only where memory takes them."""
NO_GAIN = 1.25
"""Several writers that together are not a quarter faster than one gain too little to be told from noise."""
WRITTEN_TWICE = 1.5
"""Traced over stored bytes from which a shared file was written over, not filled by all."""


def findings(group: Group, rows: Sequence[Row]) -> list[Finding]:
    """SW01 and SW03 to SW10 for one group; `rows` are its rows."""
    found = [growth(group, rows)] if _one_writer(rows) else []
    found += [claim(group.title, rows) for claim in (same_path, slow_writer, works_on, cached, slow_fsync, slower_once)]
    return found + [claim(group.title, rows) for claim in (turns, no_gain) if not _one_writer(rows)]


def _one_writer(rows: Sequence[Row]) -> bool:
    return all(row["writers_declared_max"] in (None, 1) for row in rows)


def _evidence(rows: Sequence[Row]) -> list[str]:
    return [run for row in rows for run in row["evidence"]]


def _claim(code: str, claim: str, group: str, holds: bool, rows: Sequence[Row], **more: Any) -> Finding:
    level = more.pop("level", "warning")
    return Finding(
        code=code, claim=claim, group=group, verdict="supports" if holds else "contradicts",
        level=level if holds else "ok", evidence=_evidence(rows), **more,
    )  # fmt: skip


def growth(group: Group, rows: Sequence[Row]) -> Finding:
    """SW01: the paper's finding, both halves: the cost grows with nodes, and the others wait for one writer."""
    code = "SW01"
    claim = f"checkpoint overhead grows with scale because one writer works while all others wait ({PAPER})"
    wide = [row for row in rows if row["ranks"] > 1 and row["stall_s"] is not None]
    fit, decision = stall_grows(group)
    if not wide or fit.slope is None:
        reason = "no run has more than one rank" if not wide else str(decision.reason)
        return not_measured(code, claim, group.title, reason, _evidence(rows), unit="s/node")
    largest = max(wide, key=lambda row: row["ranks"])
    if largest["writers_seen_max"] is None or largest["idle_share"] is None:
        reason = largest["writers_seen_reason"] or largest["idle_share_reason"] or "no trace"
        return not_measured(code, claim, group.title, reason, _evidence(rows), unit="s/node")
    waits = largest["idle_share"] >= WAIT_SHARE and largest["writers_seen_max"] == 1
    if waits and decision.side is None:
        return not_measured(code, claim, group.title, str(decision.reason), _evidence(rows), unit="s/node")
    virtual = bool(largest["virtual_nodes"])
    return _claim(
        code, claim, group.title, decision.side == "above" and waits, rows, value=fit.slope, unit="s/node",
        low=fit.slope_low, high=fit.slope_high, level="info" if virtual else "warning",
        sentence=f"the stall changes by {slope_words(fit, 's per node')}; at {largest['place']} "
        f"{largest['writers_seen_max']} of {largest['ranks']} ranks wrote and the others waited "
        f"{100 * largest['idle_share']:.0f} % of their stall{_where(largest)}",
        recommendation=None if virtual else "Let every rank or node write its share, or take the writing off the "
        "critical path.",
        for_developers=None if virtual else "Offer a save in which each rank writes its share, and one that returns "
        "before it is written.",
    )  # fmt: skip


def _where(row: Row) -> str:
    return f" ({MECHANISM_NOTE})" if row["virtual_nodes"] else ""


def many_nodes(rows: Sequence[Row]) -> list[Finding]:
    """SW02: the paper's other finding, over all frameworks: whose own mechanism writes from several nodes."""
    code, claim = "SW02", f"only Chainer writes checkpoints from many nodes ({PAPER})"
    own = [row for row in rows if row["nodes"] > 1 and is_own(row["framework"], row["strategy"])]
    seen = [row for row in own if row["writing_nodes"] is not None]
    one_by_hand = [row for row in rows if row["nodes"] > 1 and row not in own and row["writing_nodes"] == 1]
    frameworks = {row["framework"] for row in [*seen, *one_by_hand]}
    if not rows:
        return []
    chainer = {name for name in frameworks if name.startswith("chainer")}
    if not chainer or frameworks == chainer:
        have = ", ".join(sorted(frameworks)) or "none"
        reason = f"needs Chainer and another framework on several nodes, traced; these runs have: {have}"
        return [not_measured(code, claim, ALL, reason, _evidence(own))]
    many = sorted({(row["framework"], row["strategy"]) for row in seen if row["writing_nodes"] > 1})
    who = ", ".join(f"{framework} ({strategy})" for framework, strategy in many) or "no framework"
    only = bool(many) and all(framework.startswith("chainer") for framework, _ in many)
    sentence = f"with its own mechanism {who} wrote from several nodes, of {len(frameworks)} frameworks measured"
    return [_claim(code, claim, ALL, only, seen, level="info", value=len(many), unit="mechanisms", sentence=sentence)]


def same_path(group: str, rows: Sequence[Row]) -> Finding:
    """SW03: several ranks write one path."""
    code, claim = "SW03", "several ranks write the same path"
    hit = [row for row in rows if row["shared_paths"]]
    if not hit:
        known = [row for row in rows if row["files_known"]]
        if not known:
            return not_measured(code, claim, group, "no inventory of the files", _evidence(rows), unit="paths")
        sentence = "every file of a checkpoint has one writer"
        return _claim(code, claim, group, False, known, value=0, unit="paths", sentence=sentence)
    row = max(hit, key=lambda each: each["shared_by_ranks"])
    again = row["written_over_stored"]
    ratio = f", {again:.2f} bytes written for each one stored" if again else ""
    lost = again is None or again >= WRITTEN_TWICE
    return _claim(
        code, claim, group, True, hit, value=sum(each["shared_paths"] for each in hit), unit="paths",
        level="critical" if lost else "info",
        sentence=f"{counted(row['shared_by_ranks'], 'rank')} on {counted(row['shared_by_nodes'], 'node')} wrote "
        f"{row['shared_path']}{ratio}, at {row['place']}",
        recommendation="Give each rank a name of its own, or let one rank write: the last to write wins." if lost
        else None,
    )  # fmt: skip


def slow_writer(group: str, rows: Sequence[Row]) -> Finding:
    """SW04: one writer takes longer per byte than its peers. That its share is larger is ME02's claim."""
    code, claim = "SW04", "one writer is slower than the others for the same bytes"
    known = [row for row in rows if row["slow_ratio"] is not None and (row["writers_seen_max"] or 0) > 1]
    if not known:
        single = any(row["writers_seen_max"] == 1 for row in rows)
        reason = "there is only one writer" if single else next((row["put_reason"] for row in rows), None)
        return not_measured(code, claim, group, reason or "no writers", _evidence(rows), unit="ratio")
    # A different rank each time is the machine's unrest, no slow writer.
    slow = [row for row in known if row["slow_ratio"] >= SLOW_RATIO and row["slow_by_s"] >= SLOW_S]
    named = [row for row in slow if row["slow_rank"] is not None]
    hit = [row for row in named if row["runs"] >= STRAGGLE_RUNS]
    if named and not hit:
        reason = f"rank {named[0]['slow_rank']} is slower in one run only, which may be chance, at {named[0]['place']}"
        return not_measured(code, claim, group, reason, named[0]["evidence"], unit="ratio")
    row, holds = max(hit or known, key=lambda each: each["slow_ratio"]), bool(hit)
    fsync = row["slow_fsync_s"] >= row["slow_put_s"] / 2
    who = f"rank {row['slow_rank']}" if row["slow_rank"] is not None else "no single rank"
    part = "most of it fsync" if fsync else "most of it write calls"
    return _claim(
        code, claim, group, holds, known, value=row["slow_ratio"], unit="ratio",
        sentence=f"the slowest writer takes {row['slow_ratio']:.2f} times its peers' time per byte ({who} in most "
        f"checkpoints, {row['slow_by_s']:.3g} s longer, {part}), at {row['place']}",
        recommendation="Look at that rank's node, its path to the storage and what else writes there.",
    )  # fmt: skip


def works_on(group: str, rows: Sequence[Row]) -> Finding:
    """SW05: a rank still works on the checkpoint when the others have been let go."""
    code, claim = "SW05", "a rank works on the checkpoint after the others were released"
    known = [row for row in rows if row["on_s"] is not None and row["ranks"] > 1]
    if not known:
        reason = next((row["on_reason"] for row in rows if row["on_reason"]), None) or "no run has more than one rank"
        return not_measured(code, claim, group, reason, _evidence(rows), unit="s")
    row = max(known, key=lambda each: each["on_s"])
    holds = row["on_s"] > max(ON_SHARE * row["stall_s"], ON_S)
    who = f"rank {row['on_rank']}" if row["on_rank"] is not None else "the last rank"
    late = f"{who} goes on {row['on_s']:.3g} s behind the others, at {row['place']}"
    return _claim(
        code, claim, group, holds, known, value=row["on_s"], unit="s",
        sentence=late if row["on_s"] else "no rank writes on when the others go on",
        recommendation="The next collective waits for it, and may time out: keep the others at a barrier, or hand "
        "the work to a background thread.",
    )  # fmt: skip


def cached(group: str, rows: Sequence[Row]) -> Finding:
    """SW06: the speed of buffered writes is memory's; taken for the disk's it promises too much."""
    code, claim = "SW06", "the write speed is that of the page cache, not of the disk"
    if rows and rows[0]["durable"]:
        return _claim(code, claim, group, False, rows, sentence="the data was fsynced before the save returned")
    twins = [row for row in rows if row["durable_bytes_per_s"] and row["per_writer_bytes_per_s"]]
    if twins and (found := _beside_durable(code, claim, group, twins)):
        return found
    # What Linux counts as written is what became dirty in memory: only that nothing was synced is known for sure.
    unsynced = [row for row in rows if row["fsync_calls_most"] == 0]
    if not unsynced:
        return not_measured(code, claim, group, _synced(rows), _evidence(rows), unit="s")
    row = max(unsynced, key=lambda each: (each["deferred_s"] or 0.0, each["ranks"]))
    drained = row["deferred_s"]
    after = "how long write-back went on after the last save was not recorded"
    if drained is not None:
        took = f"{drained:.3f} s" if drained >= 0.001 else "less than 0.001 s"
        after = f"after the last save it took {took} until the host had no more to write back"
    return _claim(
        code, claim, group, True, unsynced, value=drained, unit="s", level="info", recommendation=_DURABLE,
        sentence=f"buffered and not synced: the page cache took it; {after}, at {row['place']}",
    )  # fmt: skip


_DURABLE = "Run with durable = true before planning with this speed."


def _beside_durable(code: str, claim: str, group: str, twins: Sequence[Row]) -> Finding | None:
    """The verdict by durable runs of the same kind; None where their rates cannot tell."""
    row = max(twins, key=lambda each: each["per_writer_bytes_per_s"] / each["durable_bytes_per_s"])
    ratio, low, high = (
        row[f"per_writer{bound}_bytes_per_s"] / row["durable_bytes_per_s"] for bound in ("", "_low", "_high")
    )
    decision = placed(low, high, min(row["per_writer_runs"], row["durable_runs"]), top=CACHED_RATIO)
    if decision.side is None:
        return None
    return _claim(
        code, claim, group, decision.side == "above", twins, value=ratio, low=low, high=high, unit="ratio",
        sentence=f"a writer gets {row['per_writer_bytes_per_s'] / 1e6:.4g} MB/s buffered and "
        f"{row['durable_bytes_per_s'] / 1e6:.4g} MB/s durable, at {row['place']}{decision.note}",
        recommendation=_DURABLE,
    )  # fmt: skip


def _synced(rows: Sequence[Row]) -> str:
    """Why buffered runs do not tell whose speed they show."""
    beside = "no durable runs beside these, enough of them, show the disk's speed"
    calls = max((row["fsync_calls_most"] or 0 for row in rows), default=0)
    if calls:
        return f"buffered, yet its mechanism synced {counted(calls, 'time')} in a checkpoint, and {beside}"
    return f"whether anything was synced is not in the trace, and {beside}"


def slower_once(group: str, rows: Sequence[Row]) -> Finding:
    """SW10: the rank that works longest took far longer in one checkpoint than in the others of its run."""
    code, claim = "SW10", "in some checkpoints the slowest rank worked far longer than in the others of its run"
    known = [row for row in rows if row["longer_s"] is not None]
    if not known:
        reason = f"no run has {USUAL_OF} checkpoints behind its first, to tell the usual one"
        return not_measured(code, claim, group, reason, _evidence(rows), unit="s")
    row = max(known, key=lambda each: each["longer_s"])
    work = f"{row['longest_own_s']:.3g} s, the usual one of that run {row['usual_own_s']:.3g} s, at {row['place']}"
    return _claim(
        code, claim, group, row["longer_saves"] > 0, known, value=row["longer_s"], unit="s",
        sentence=f"{row['longer_saves']} of {counted(row['checkpoints'], 'checkpoint')} stand out; furthest is rank "
        f"{row['longer_rank']} in {row['longer_where']}: {work}",
        recommendation="Look at what else ran on that rank's node and on the storage then: every rank waits for it.",
    )  # fmt: skip


def slow_fsync(group: str, rows: Sequence[Row]) -> Finding:
    """SW09: one fsync of one rank in one checkpoint took far longer than they usually do."""
    code, claim = "SW09", "a single fsync took far longer than the others"
    known = [row for row in rows if row["fsync_max_s"]]
    if not known:
        reason = "nothing was fsynced" if rows and not rows[0]["durable"] else "no fsync was seen apart"
        return not_measured(code, claim, group, reason, _evidence(rows), unit="s")
    far = [row for row in known if row["fsync_max_s"] >= FSYNC_RATIO * row["fsync_usual_s"]]
    hit = [row for row in far if row["fsync_max_s"] - row["fsync_usual_s"] >= FSYNC_S]
    row = max(hit or known, key=lambda each: each["fsync_max_s"])
    return _claim(
        code, claim, group, bool(hit), known, value=row["fsync_max_s"], unit="s",
        sentence=f"the longest fsync took {row['fsync_max_s']:.3g} s (rank {row['fsync_rank']}, {row['fsync_where']}), "
        f"the usual one {row['fsync_usual_s']:.3g} s, at {row['place']}",
        recommendation="Plan with the longest, not with the median: every rank waits for it.",
    )  # fmt: skip


def turns(group: str, rows: Sequence[Row]) -> Finding:
    """SW07: the plan has several writers, and they write one after another."""
    code, claim = "SW07", "several writers write one after another"
    known = [r for r in rows if r["writers_at_once_mean"] is not None and (r["writers_seen_max"] or 0) > 1]
    if not known:
        reason = next((row["writers_at_once_mean_reason"] for row in rows if row["writers_at_once_mean_reason"]), None)
        return not_measured(code, claim, group, reason or "no row has several writers", _evidence(rows), unit="writers")
    row = max(known, key=lambda each: each["writers_seen_max"])
    words = f"{row['writers_seen_max']} ranks write, {row['writers_at_once_mean']:.2f} at once on average and "
    words += f"{row['writers_at_once_max']} at most; somebody writes in {100 * row['writing_share']:.0f} % of the stall"
    words += f", at {row['place']}"
    if row["virtual_nodes"] and row["ranks_per_core"] > 1:
        reason = f"{row['ranks_per_core']:g} ranks share a core, so they take turns anyway: {words}"
        return not_measured(code, claim, group, reason, row["evidence"], unit="writers")
    low, high = row["writers_at_once_mean_low"], row["writers_at_once_mean_high"]
    decision = placed(low, high, row["writers_at_once_mean_runs"], bottom=ONE_AT_A_TIME)
    if decision.side is None:
        return not_measured(code, claim, group, f"{decision.reason}: {words}", row["evidence"], unit="writers")
    return _claim(
        code, claim, group, decision.side == "below" and row["writing_share"] >= WRITING_SHARE, known, unit="writers",
        value=row["writers_at_once_mean"], low=low, high=high, level="info" if row["virtual_nodes"] else "warning",
        sentence=f"{words}{decision.note}{_where(row)}",
        recommendation="Look for a lock, a token or a collective between the writers.",
        for_developers="Let writers start together: collectives before the writing, none between.",
    )  # fmt: skip


def no_gain(group: str, rows: Sequence[Row]) -> Finding:
    """SW08: several writers together get no more from the storage than one does alone."""
    code, claim = "SW08", "several writers together are no faster than one: the storage, not the writer, is the limit"
    rated = [row for row in rows if row["aggregate_bytes_per_s"] and row["alone_bytes_per_s"]]
    known = [row for row in rated if (row["writers_seen_max"] or 0) > 1]
    if not known:
        reason = next((row["put_reason"] for row in rows if row["put_reason"]), None)
        reason = reason or "no run with one writer of this framework and format beside these"
        return not_measured(code, claim, group, reason, _evidence(rows), unit="ratio")
    row = max(known, key=lambda each: each["writers_seen_max"])
    alone = row["alone_bytes_per_s"]
    ratio, low, high = (row[f"aggregate{bound}_bytes_per_s"] / alone for bound in ("", "_low", "_high"))
    where = "; one machine's storage, which says nothing of a cluster's" if row["virtual_nodes"] else ""
    words = f"{row['writers_seen_max']} writers get {row['aggregate_bytes_per_s'] / 1e6:.4g} MB/s together, one "
    words += f"alone {alone / 1e6:.4g} MB/s, at {row['place']}{where}"
    decision = placed(low, high, row["aggregate_runs"], bottom=NO_GAIN)
    apart = None if ratio >= NO_GAIN else together(row)
    if decision.side is None or apart:
        # Writers that hardly ever meet cannot show what the storage takes.
        reason = f"{apart or decision.reason}: {words}"
        return not_measured(code, claim, group, reason, row["evidence"], unit="ratio")
    return _claim(
        code, claim, group, decision.side == "below", known, value=ratio, low=low, high=high, unit="ratio",
        level="info" if row["virtual_nodes"] else "warning", sentence=f"{words}{decision.note}",
        recommendation="Fewer bytes help, more writers do not: leave out copies, or what need not be saved.",
    )  # fmt: skip
