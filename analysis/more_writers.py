"""What a stall would be with more writers, at rates that were measured; and where the file system is the limit.

No further than twice the most writers that were measured, and on virtual nodes no further than those.
Rows of the question `single_writer` in, columns for them out; nothing is read or printed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec

Row = dict[str, Any]
FARTHEST = 2
"""No statement about more than this many times the writers that were measured."""
LIMITED = 0.8
"""The file system is the limit where several writers get less than this share of what each gets alone."""

ONE_AT_A_TIME = 1.25
"""Writers at once, on average, below which several writers in fact take turns."""
WRITING_SHARE = 0.25
"""Share of the stall in which somebody must write before turns cost anything: few writes meet by chance only."""
AT_ONCE = 0.5
"""Share of the writers that must be in a write call at once, on average, to show what the storage takes."""


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """What one site's file system was seen to take, buffered and durable apart."""

    most_writers: int
    best_bytes_per_s: float | None
    best_writers: int | None
    best_place: str | None
    virtual: bool
    apart: str | None
    """Why the best rate is no limit of the storage: its writers hardly wrote at once."""


def together(row: Row) -> str | None:
    """None where the writers wrote at once and for a good part of the stall; else why they say nothing of the storage.

    What then holds them up is between the writes: serializing or compression, turns, or waiting.
    """
    at_once, share = row["writers_at_once_mean"], row["writing_share"]
    if at_once is None or share is None:
        return "it is not known how many wrote at once"
    least = max(AT_ONCE * row["writers_seen_max"], ONE_AT_A_TIME)
    if at_once >= least and share >= WRITING_SHARE:
        return None
    found = f"of {row['writers_seen_max']} writers {at_once:.2f} write at once on average, and somebody writes in "
    return f"{found}{100 * share:.0f} % of the stall: the storage is not what holds them up, ask OV03 for compression"


def storage(rows: Sequence[Row]) -> Storage:
    """From all rows of one site and durability: other strategies show what the file system can do."""
    known = [row for row in rows if row["aggregate_bytes_per_s"] and row["writers_seen_max"]]
    best = max(known, key=lambda row: row["aggregate_bytes_per_s"], default=None)
    return Storage(
        most_writers=max((row["writers_seen_max"] for row in known), default=0),
        best_bytes_per_s=best["aggregate_bytes_per_s"] if best else None,
        best_writers=best["writers_seen_max"] if best else None,
        best_place=f"{best['strategy']}, {best['place']}" if best else None,
        virtual=any(row["virtual_nodes"] for row in rows),
        apart=together(best) if best and best["writers_seen_max"] > 1 else None,
    )


def alone(row: Row, rows: Sequence[Row]) -> float | None:
    """What one writer of the same framework and format gets by itself, on as many ranks where that was measured."""
    alike = [each for each in rows if (each["framework"], each["format"]) == (row["framework"], row["format"])]
    single = [each for each in alike if each["writers_seen_max"] == 1 and each["per_writer_bytes_per_s"]]
    here = [each for each in single if each["ranks"] == row["ranks"]] or single
    return median(each["per_writer_bytes_per_s"] for each in here) if here else None


def same_storage(row: Row) -> tuple[Any, ...]:
    """Rows that agree in this were written to the same place in the same way."""
    return row["site"], row["durable"], row["virtual_nodes"]


def predicted(row: Row, seen: Storage, alone_bytes_per_s: float | None) -> Row:
    """Columns for one row: the stall with `n_writers`, by rate per writer and by best aggregate; the limit."""
    reach = seen.most_writers * (1 if seen.virtual else FARTHEST)
    n = min(row["ranks"], reach)
    reason = _no_prediction(row, seen, n)
    empty: Row = {"n_writers": None, "stall_at_writer_rate_s": None, "stall_at_best_aggregate_s": None}
    shared = empty if reason else _stalls(row, seen, n)
    found = {"n_writers_reason": reason, "alone_bytes_per_s": alone_bytes_per_s}
    return {**shared, **found, **limit(seen, alone_bytes_per_s)}


def _no_prediction(row: Row, seen: Storage, n: int) -> str | None:
    writers = row["writers_seen_max"]
    if writers is None:
        return str(row["writers_seen_reason"])
    if row["put_s"] is None or row["stall_s"] is None:
        return str(row["put_reason"] or "no write seconds")
    if writers >= row["ranks"]:
        return "every rank writes already"
    if n > writers:
        return None
    most = f"no more than {seen.most_writers} were measured"
    if seen.virtual:
        return f"{most}, and nothing is extrapolated from virtual nodes"
    return f"{most}, and nothing is said beyond twice as many"


def _stalls(row: Row, seen: Storage, n: int) -> Row:
    """Serializing and writing are cut in shares, everything else stays; each at its measured rate.

    Ranks that share a core do not serialize at the same time.
    """
    writers = row["writers_seen_max"]
    share, serialize = writers / n, row["serialize_s"] or 0.0
    computing = min(writers / max(n / max(row["ranks_per_core"], 1.0), writers), 1.0)
    fixed = max(row["stall_s"] - serialize - row["put_s"], 0.0) + serialize * computing
    at_best = row["written_bytes"] / seen.best_bytes_per_s if seen.best_bytes_per_s else 0.0
    return {
        "n_writers": n,
        "stall_at_writer_rate_s": fixed + row["put_s"] * share,
        "stall_at_best_aggregate_s": fixed + max(row["put_s"] * share, at_best),
    }


def limit(seen: Storage, alone_bytes_per_s: float | None) -> Row:
    """How many writers the file system feeds at the rate that one gets alone; or why that is not known."""
    found: Row = {"limit_writers": None, "limit_reason": None, "best_bytes_per_s": seen.best_bytes_per_s}
    found |= {"best_place": seen.best_place, "best_writers": seen.best_writers}
    if seen.most_writers < 2 or not seen.best_bytes_per_s:
        return found | {"limit_reason": "no run with several writers shows what the file system takes"}
    if not alone_bytes_per_s:
        return found | {"limit_reason": "no run with one writer of this framework and format shows what it gets alone"}
    writers = seen.best_bytes_per_s / alone_bytes_per_s
    if writers >= LIMITED * (seen.best_writers or 1):
        return found | {"limit_reason": f"not reached by {seen.most_writers} writers"}
    if seen.apart:
        return found | {"limit_reason": seen.apart}
    return found | {"limit_writers": max(writers, 1.0)}
