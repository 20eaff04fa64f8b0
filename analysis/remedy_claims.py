"""The findings RM01 to RM06: whether another strategy is worth it, and how far its numbers carry.

Each takes one row of the question `remedies`. Thresholds stand here with their reasons.
"""

from __future__ import annotations

from typing import Any

from analysis.deciding import MECHANISM_NOTE, placed
from analysis.finding import Finding, not_measured, signed

Row = dict[str, Any]
PAPER = "arXiv 2012.00825"
SAME = 0.05
"""Stalls closer than this share of the base's count as equal: no user would change anything for it."""
MORE = 1.10
"""A tenth more bytes, files or memory is a cost; less is headers and allocation."""
CACHED = 0.5
"""Share of the files in memory from which a read is more of memory than of the disk."""
EXCESS = 0.005
"""Share of the wall clock that a better interval must save to be worth a word: seven minutes a day."""


def findings(row: Row) -> list[Finding]:
    """RM01, RM02, RM04 and RM05 for rows with a base to compare with; RM03 and RM06 for all."""
    found = [less_stall(row), *paper(row), costs(row)] if row["base"] and not row["is_base"] else []
    return [*found, cached(row), *behind(row), interval(row)]


def _claim(code: str, claim: str, row: Row, holds: bool, level: Any, **more: Any) -> Finding:
    return Finding(
        code=code, claim=claim, group=row["group"], verdict="supports" if holds else "contradicts", level=level,
        evidence=row["evidence"], **more,
    )  # fmt: skip


def _difference(row: Row) -> tuple[str | None, bool, str]:
    """(why there is no verdict on the stall, whether it is less, the difference in words)."""
    if row["stall_more_s"] is None:
        return row["stall_more_reason"], False, ""
    low, high = row["stall_more_low_s"], row["stall_more_high_s"]
    words = f"{signed(row['stall_more_s'])} s [{signed(low)}, {signed(high)}] over {row['stall_more_runs']} pairs of "
    words += f"runs against {row['base']} ({row['base_format']}), at {row['place']}"
    if row["virtual_nodes"]:
        words += f" (one machine with {row['ranks_per_core']:g} ranks per core: mechanism, not scaling)"
    if row["stall_more_runs"] < 2:
        return f"one pair of runs: {signed(row['stall_more_s'])} s against {row['base']}", False, words
    # Less by what nobody would notice is not less.
    decision = placed(low, high, row["stall_more_runs"], bottom=-SAME * row["base_stall_s"], what="pair")
    if decision.side is None:
        return f"{decision.reason}: {words}", False, words
    return None, decision.side == "below", words + decision.note


def less_stall(row: Row) -> Finding:
    """RM01: this strategy stalls training less than what the framework's users have."""
    code, claim = "RM01", f"{row['strategy']} ({row['format']}) stalls training less than {row['base']}"
    reason, less, words = _difference(row)
    if reason:
        return not_measured(code, claim, row["group"], reason, row["evidence"], unit="s")
    numbers = {"value": row["stall_more_s"], "low": row["stall_more_low_s"], "high": row["stall_more_high_s"]}
    kind = " (its work behind the stall is not in it)" if row["asynchronous"] else ""
    return _claim(
        code, claim, row, less, "info" if less else "ok", unit="s", sentence=f"stall {words}{kind}", **numbers,
        recommendation=f"Consider {row['strategy']}: see what it costs in bytes, files, memory and reading.",
    )  # fmt: skip


def paper(row: Row) -> list[Finding]:
    """RM02: the paper's finding on Chainer: that many nodes write saves no time."""
    many = (row["writers_declared_max"] or 0) > 1 and row["nodes"] > 1
    if not (row["framework"].startswith("chainer") and row["own"] and many):
        return []
    code, claim = "RM02", f"that Chainer writes from many nodes saves no time ({PAPER})"
    reason, less, words = _difference(row)
    if row["virtual_nodes"] and words:
        # Writers on one machine share its cores and its disk: that they save nothing there says nothing of nodes.
        reason = f"virtual nodes share one machine's cores and storage: {row['strategy']}, stall {words}"
    if reason:
        return [not_measured(code, claim, row["group"], reason, row["evidence"], unit="s")]
    sentence = f"{row['strategy']}: {row['writers_declared_max']} writers, stall {words}"
    numbers = {"value": row["stall_more_s"], "low": row["stall_more_low_s"], "high": row["stall_more_high_s"]}
    return [_claim(code, claim, row, not less, "info", unit="s", sentence=sentence, **numbers)]


def cached(row: Row) -> Finding:
    """RM03: what was read back came from memory, so its time says nothing of the disk."""
    code, claim = "RM03", "reads came from memory: their time says nothing of the disk"
    if row["read_s"] is None or row["cached"] is None:
        reason = row["read_reason"] or row["cached_reason"] or "not read back"
        return not_measured(code, claim, row["group"], reason, row["evidence"], unit="fraction")
    holds = row["cached"] >= CACHED
    return _claim(
        code, claim, row, holds, "info" if holds else "ok", value=row["cached"], unit="fraction",
        sentence=f"{100 * row['cached']:.0f} % of the pages lay in memory before {row['read_s']:.3g} s of reading all "
        f"files, at {row['place']}",
        recommendation="Restore on other nodes, or after the page cache was dropped, to time the disk." if holds
        else None,
    )  # fmt: skip


def costs(row: Row) -> Finding:
    """RM04: what is saved in stall is paid for elsewhere."""
    code, claim = "RM04", f"{row['strategy']} costs more bytes, files or memory than {row['base']}"
    ratios = {"bytes on disk": row["checkpoint_ratio"], "files": row["files_ratio"]}
    known = {words: ratio for words, ratio in ratios.items() if ratio is not None}
    if not known:
        reason = row["checkpoint_more_reason"] or "not recorded"
        return not_measured(code, claim, row["group"], reason, row["evidence"], unit="ratio")
    each = [f"{ratio:.2f} times the {words}" for words, ratio in known.items()]
    memory, size = row["memory_more_bytes"], row["checkpoint_bytes"]
    if memory is not None:
        each.append(f"{memory / 1e6:+.3g} MB of memory on the fullest rank")
    # A few pages more are the allocator's; a tenth of the checkpoint is a copy of something.
    low = row["memory_more_low_bytes"]
    fat = memory is not None and size is not None and low >= (MORE - 1) * size
    more = fat or max(known.values()) >= MORE
    return _claim(
        code, claim, row, more, "info" if more else "ok", value=max(known.values()), unit="ratio",
        sentence=f"{', '.join(each)}, at {row['place']}",
    )  # fmt: skip


def behind(row: Row) -> list[Finding]:
    """RM05: the work behind the stall outlasts the training between two checkpoints, so the next save waits for it."""
    if not row["background_s"]:
        return []
    code, claim = "RM05", "the work behind the stall is longer than the training between two checkpoints"
    if row["interval_s"] is None:
        return [not_measured(code, claim, row["group"], row["interval_reason"], row["evidence"], unit="s")]
    words = f"{row['background_s']:.3g} s of work behind a stall of {row['stall_s']:.3g} s, and "
    words += f"{row['interval_s']:.3g} s of training between two checkpoints, at {row['place']}"
    low, high = row["background_low_s"], row["background_high_s"]
    decision = placed(low, high, row["background_runs"], top=row["interval_s"])
    if decision.side is None:
        return [not_measured(code, claim, row["group"], f"{decision.reason}: {words}", row["evidence"], unit="s")]
    holds = decision.side == "above"
    return [_claim(
        code, claim, row, holds, "warning" if holds else "ok", value=row["background_s"], unit="s",
        sentence=f"{words}{decision.note}",
        recommendation="Save less often: a save that waits for the last one stalls for the rest of it.",
    )]  # fmt: skip


def interval(row: Row) -> Finding:
    """RM06: saving at the stated interval loses more than at the best one. Restart time is in neither."""
    code, claim = "RM06", "saving at the stated interval loses more wall clock than at the best one"
    if row["best_s"] is None:
        reason = row["stall_reason"] or "no stall"
        return not_measured(code, claim, row["group"], reason, row["evidence"], unit="fraction")
    more = row["lost_share"] - row["lost_share_at_best"]
    bounds = f" [{row['best_low_s'] / 60:.3g}, {row['best_high_s'] / 60:.3g}]" if row["runs"] > 1 else ""
    kind = "durable" if row["durable"] else "buffered, so without the time to the disk"
    where = f" ({MECHANISM_NOTE})" if row["virtual_nodes"] else ""
    return _claim(
        code, claim, row, more >= EXCESS, "info" if more >= EXCESS else "ok", value=more, unit="fraction",
        sentence=f"at {row['cost_s']:.3g} s a checkpoint ({row['cost_kind']}, {kind}) and a failure of the job every "
        f"{row['mtbf_s'] / 3600:.3g} h (--mtbf: assumed, not measured), saving every {row['every_s'] / 60:.3g} min "
        f"loses {100 * row['lost_share']:.3g} % of the wall clock, every {row['best_s'] / 60:.3g} min{bounds} "
        f"{100 * row['lost_share_at_best']:.3g} %, restarts not counted, at {row['place']}{where}",
        recommendation=_how_often(row),
    )  # fmt: skip


def _how_often(row: Row) -> str:
    """An interval to use, or what must be known before there is one."""
    every = f"every {row['best_s'] / 60:.3g} minutes"
    failing = f"a failure every {row['mtbf_s'] / 3600:.3g} h"
    if not row["durable"]:
        return f"Measure durable checkpoints first: saving {every} is best only if one costs no more than this."
    if row["virtual_nodes"]:
        return f"On the machine that trains, measure it again: saving {every} is best only for this cost and {failing}."
    return f"Save {every} where the job sees {failing}; give its own time between failures as --mtbf."
