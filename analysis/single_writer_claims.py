"""The findings SW01 to SW09: who wrote while who waited, and what the storage had to do with it.

Thresholds stand here with their reasons. SC01 to SC06 and ME01 to ME03 are other questions' claims:
growth of the stall alone, uneven shares, coverage and spread are not said again. Nothing is printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.finding import Finding, counted, not_measured, signed
from analysis.own import is_own
from analysis.pooling import Group, Row
from analysis.scaling_claims import WAIT_SHARE, stall_fit

PAPER = "arXiv 2012.00825"
ALL = "all frameworks"
GROWTH = 0.10
"""Growth over the measured nodes that an interval must exclude, as a share of the stall, to speak against any."""
SLOW_RATIO, SLOW_S = 1.5, 0.010
"""A writer is slow where each of its bytes takes half as long again as its peers', and it shows in the stall."""
FSYNC_RATIO, FSYNC_S = 3.0, 0.050
"""A single fsync stands out at three times the usual one, and above what one full device cache costs anywhere."""
ON_SHARE, ON_S = 0.10, 0.010
"""A rank works on when it is behind the others by this share of the stall, and by more than time slices."""
CACHED_RATIO = 1.5
"""Buffered writes are faster than durable ones by so much only where memory takes them."""
LEFT_SHARE, DRAIN_S = 0.1, 0.1
"""What tells memory's speed without durable runs: bytes that went to no device, or a drain that one can notice."""
ONE_AT_A_TIME = 1.25
"""Writers at once, on average, below which several writers in fact take turns."""
WRITING_SHARE = 0.25
"""Share of the stall in which somebody must write before turns cost anything: few writes meet by chance only."""
NO_GAIN = 1.25
"""Several writers that together are not a quarter faster than one gain too little to be told from noise."""
WRITTEN_TWICE = 1.5
"""Traced over stored bytes from which a shared file was written over, not filled by all."""


def findings(group: Group, rows: Sequence[Row]) -> list[Finding]:
    """SW01 and SW03 to SW09 for one group; `rows` are its rows."""
    found = [growth(group, rows)] if _one_writer(rows) else []
    found += [claim(group.title, rows) for claim in (same_path, slow_writer, works_on, cached, slow_fsync)]
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
    fit = stall_fit(group)
    if not wide or fit.slope is None or fit.slope_low is None or fit.slope_high is None:
        reason = "no run has more than one rank" if not wide else f"node counts: {fit.reason}"
        return not_measured(code, claim, group.title, reason, _evidence(rows), unit="s/node")
    largest = max(wide, key=lambda row: row["ranks"])
    if largest["writers_seen_max"] is None or largest["idle_share"] is None:
        reason = largest["writers_seen_reason"] or largest["idle_share_reason"] or "no trace"
        return not_measured(code, claim, group.title, reason, _evidence(rows), unit="s/node")
    grows, waits = fit.slope_low > 0, largest["idle_share"] >= WAIT_SHARE and largest["writers_seen_max"] == 1
    slope, low, high = map(signed, (fit.slope, fit.slope_low, fit.slope_high))
    if waits and not grows and fit.slope_high * _span(wide) > GROWTH * min(row["stall_s"] for row in wide):
        reason = f"the spread between runs is too large to tell: {slope} s per node [{low}, {high}]"
        return not_measured(code, claim, group.title, reason, _evidence(rows), unit="s/node")
    where = " (one machine: mechanism, not scaling)" if largest["virtual_nodes"] else ""
    return _claim(
        code, claim, group.title, grows and waits, rows, value=fit.slope, unit="s/node", low=fit.slope_low,
        high=fit.slope_high, sentence=f"the stall changes by {slope} s per node [{low}, {high}]; at {largest['place']} "
        f"{largest['writers_seen_max']} of {largest['ranks']} ranks wrote and the others waited "
        f"{100 * largest['idle_share']:.0f} % of their stall{where}",
        recommendation="Let every rank or node write its share, or take the writing off the critical path.",
        for_developers="Offer a save in which each rank writes its share, and one that returns before it is written.",
    )  # fmt: skip


def _span(rows: Sequence[Row]) -> int:
    """Nodes between the fewest and the most."""
    nodes = [row["nodes"] for row in rows]
    return int(max(nodes) - min(nodes))


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
    hit = [row for row in slow if row["slow_rank"] is not None]
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
    kept = [row for row in rows if row["left_in_memory"] is not None]
    tip = "Run with durable = true before planning with this speed."
    if twins:
        row = max(twins, key=lambda each: each["per_writer_bytes_per_s"] / each["durable_bytes_per_s"])
        ratio = row["per_writer_bytes_per_s"] / row["durable_bytes_per_s"]
        sentence = f"a writer gets {row['per_writer_bytes_per_s'] / 1e6:.4g} MB/s buffered and "
        sentence += f"{row['durable_bytes_per_s'] / 1e6:.4g} MB/s durable, at {row['place']}"
        return _claim(
            code, claim, group, ratio >= CACHED_RATIO, twins, value=ratio, unit="ratio", sentence=sentence,
            recommendation=tip,
        )  # fmt: skip
    drained = max((row["deferred_s"] or 0.0 for row in rows), default=0.0)
    left = max((row["left_in_memory"] for row in kept), default=0.0)
    if left < LEFT_SHARE and drained >= DRAIN_S:
        sentence = f"write-back went on for {drained:.3g} s after the last save had returned"
        return _claim(code, claim, group, True, rows, value=drained, unit="s", sentence=sentence, recommendation=tip)
    if left < LEFT_SHARE:
        reason = "nothing was fsynced, and no durable runs beside these show the disk's speed"
        return not_measured(code, claim, group, reason, _evidence(rows), unit="ratio")
    sentence = f"{100 * left:.0f} % of the bytes had not gone to any device when the save returned"
    return _claim(code, claim, group, True, kept, value=left, unit="fraction", sentence=sentence, recommendation=tip)


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
    turns_ = row["writers_at_once_mean"] < ONE_AT_A_TIME
    return _claim(
        code, claim, group, turns_ and row["writing_share"] >= WRITING_SHARE, known, unit="writers",
        value=row["writers_at_once_mean"],
        sentence=f"{row['writers_seen_max']} ranks write, {row['writers_at_once_mean']:.2f} at once on average and "
        f"{row['writers_at_once_max']} at most; somebody writes in {100 * row['writing_share']:.0f} % of the stall, "
        f"at {row['place']}",
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
    if row["runs"] < 2:
        return not_measured(code, claim, group, "one run", row["evidence"], unit="ratio")
    ratio = row["aggregate_bytes_per_s"] / row["alone_bytes_per_s"]
    where = "; one machine's storage, which says nothing of a cluster's" if row["virtual_nodes"] else ""
    return _claim(
        code, claim, group, ratio < NO_GAIN, known, value=ratio, unit="ratio",
        level="info" if row["virtual_nodes"] else "warning",
        sentence=f"{row['writers_seen_max']} writers get {row['aggregate_bytes_per_s'] / 1e6:.4g} MB/s together, one "
        f"alone {row['alone_bytes_per_s'] / 1e6:.4g} MB/s, at {row['place']}{where}",
        recommendation="Fewer bytes help, more writers do not: leave out copies, or what need not be saved.",
    )  # fmt: skip
