"""The findings MP01 to MP05 of the question on model parallelism, from its rows.

Thresholds stand here with their reasons; nothing is counted or shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.finding import Finding, counted, not_measured
from analysis.rows import Row

UNEVEN = 1.5
"""Largest over mean planned bytes from which a spread costs: the stall is the largest share's."""
WHOLE = 0.9
"""Share of the state from which one rank writes it all: the others add their random states at most."""
_LET = "Let every rank write the part that it holds."
_CUT = "Cut the model by bytes: one rank holds most of it."


def findings(row: Row) -> list[Finding]:
    """MP01 to MP04 for one combination."""
    return [claim(row) for claim in (saved, spread, gathered, elsewhere)]


def saved(row: Row) -> Finding:
    """MP01: it can be saved, and what is read back is what was saved."""
    code, claim = "MP01", "a model that no rank holds whole can be saved"
    if row["read_back"] is None:
        return not_measured(code, claim, row["group"], row["read_back_reason"], row["evidence"])
    equal = row["read_back"]
    differs = f"read back, it differs: {row['read_back_reason']}"
    words = "first and last checkpoint read back equal" if equal else differs
    seen, declared = row["writers_seen_max"], row["writers_declared_max"]
    wrote = f"{declared} ranks planned" if seen is None else f"{seen} of {row['ranks']} ranks wrote"
    return Finding(
        code=code, claim=claim, group=row["group"], value=float(row["runs"]), unit="runs", evidence=row["evidence"],
        verdict="supports" if equal else "contradicts", level="ok" if equal else "critical",
        sentence=f"{words}, in {counted(row['runs'], 'run')}; {wrote}",
    )  # fmt: skip


def spread(row: Row) -> Finding:
    """MP02: the ranks' shares are uneven."""
    code, claim, value = "MP02", "the bytes are spread unevenly over the ranks", row["spread"]
    if value is None or row["ranks"] < 2:
        reason = "one rank has all" if row["ranks"] < 2 else "nothing was planned"
        return not_measured(code, claim, row["group"], reason, row["evidence"])
    uneven = value >= UNEVEN
    return Finding(
        code=code, claim=claim, group=row["group"], value=value, unit="largest/mean", evidence=row["evidence"],
        verdict="supports" if uneven else "contradicts", level="warning" if uneven else "ok",
        sentence=f"rank {row['fullest_rank']}, the fullest, was given {value:.2f} times the mean over all ranks, "
        f"{row['planned_most_bytes'] / 1e6:.4g} of {row['planned_bytes'] / 1e6:.4g} MB",
        recommendation=uneven_advice(_all_write(row)),
        for_developers="Balance by bytes, and cut arrays where whole ones are too coarse." if uneven else None,
    )  # fmt: skip


def uneven_advice(all_write: bool) -> str:
    """What to do where shares of a model in parts are uneven; the same wherever it is found."""
    return _CUT if all_write else _LET


def gathered(row: Row) -> Finding:
    """MP03: one rank writes what no rank holds."""
    code, claim, value = "MP03", "one rank writes the whole state, which no rank holds", row["fullest_share"]
    if value is None or row["ranks"] < 2:
        reason = "one rank holds all" if row["ranks"] < 2 else "nothing was planned"
        return not_measured(code, claim, row["group"], reason, row["evidence"])
    whole = value >= WHOLE and not _all_write(row)
    own = "; all ranks write, each its own part" if _all_write(row) else ""
    return Finding(
        code=code, claim=claim, group=row["group"], value=value, unit="fraction of the state", evidence=row["evidence"],
        verdict="supports" if whole else "contradicts", level="warning" if whole else "ok",
        sentence=f"the fullest rank writes {100 * value:.1f} % of the state of {row['state_bytes'] / 1e6:.4g} MB{own}",
        recommendation="It works as long as the whole state fits into one rank's memory." if whole else None,
        for_developers="Write parts as they come instead of gathering all first." if whole else None,
    )  # fmt: skip


def _all_write(row: Row) -> bool:
    """Then nothing is gathered: a rank with nearly all bytes holds them, because the model is cut so."""
    return bool((row["writers_declared_max"] or 0) >= row["ranks"])


def elsewhere(row: Row) -> Finding:
    """MP04: restoring on another number of ranks, which these runs don't try."""
    code, claim = "MP04", "it can be restored on another number of ranks"
    declared = {
        True: "framework and strategy declare that it can, and contract tests restore on half the ranks",
        False: "framework or strategy declares that it cannot: a restore needs as many ranks as the save had",
        None: "this release does not know framework or strategy, so not what they declare",
    }[row["elastic"]]
    reason = f"these runs restore on their own {counted(row['ranks'], 'rank')}; {declared}"
    return not_measured(code, claim, row["group"], reason, row["evidence"])


def paper(rows: Sequence[Row], impossible: Sequence[Row]) -> Finding:
    """MP05, the paper's finding: no framework can save a model-parallel model."""
    code, claim = "MP05", "no framework can save a model-parallel model (arXiv 2012.00825)"
    evidence = [run for row in rows for run in row["evidence"]]
    if not rows and not impossible:
        return not_measured(code, claim, "all", "no run or plan is of a model-parallel framework", [])
    if rows and all(row["read_back"] is None for row in rows):
        return not_measured(code, claim, "all", f"nothing was read back: {rows[0]['read_back_reason']}", evidence)
    able = sorted({f"{row['framework']} with {row['strategy']} ({row['format']})" for row in rows if row["read_back"]})
    named = sorted({row["framework"] for row in (*rows, *impossible)})
    unable = [name for name in named if not any(text.startswith(f"{name} with ") for text in able)]
    words = f"saved and read back equal: {'; '.join(able)}" if able else "nothing was saved and read back equal"
    none = f"; without any way: {', '.join(unable)}" if unable else ""
    return Finding(
        code=code, claim=claim, group="all", value=float(len(able)), unit="combinations", evidence=evidence,
        verdict="contradicts" if able else "supports", level="info",
        sentence=f"{words}{none}; {counted(len(impossible), 'combination')} refused, with reasons",
    )  # fmt: skip
