"""What the rows of several questions are made of: the point they stand for, and numbers over runs.

A run's number is the median over its checkpoints, a row's the median over its runs, as in
`analysis.pooling`; this does it for tables that have several rows per checkpoint. No claims here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from analysis.figures import MECHANISM
from analysis.pooling import Group, Pool
from analysis.stats import Interval, median_interval
from analysis.tables import Tables

Row = dict[str, Any]
AXES = ("framework", "strategy", "format", "model", "durable", "interval_steps", "faults", "site")


def head(group: Group, each: Pool) -> Row:
    """The point of a row, and the runs behind it."""
    run = each.runs[0] if each.runs else group.first
    return {
        "group": f"{group.title}, {each.place}",
        "place": place(group, each),
        **{name: group.key[name] for name in AXES},
        **apart(group, each),
        "nodes": each.nodes,
        "ranks_per_node": each.ranks_per_node,
        "ranks": each.ranks,
        "parameters": run["parameters"],
        "runs": len(each.runs),
        "evidence": each.evidence,
    }


def apart(group: Group, each: Pool) -> Row:
    """What else may tell its row from one of the same axes."""
    campaigns = dict.fromkeys(run["campaign"] for run in each.runs)
    return {
        "campaigns": ", ".join(campaigns),
        "conditions": group.key["conditions"],
        "commit": str(group.key.get("commit", ""))[:12],
    }


def place(group: Group, each: Pool) -> str:
    """What the rows of one table have in common."""
    kind = "durable" if group.durable else "buffered"
    virtual = f"; {MECHANISM}: virtual nodes" if group.first["virtual_nodes"] else ""
    planted = f"; planted faults: {group.key['faults']}" if group.key["faults"] else ""
    return f"{each.place}, {kind}{planted}{virtual}"


def of(frame: pl.DataFrame, each: Pool) -> pl.DataFrame:
    """The rows of a table that belong to the pool's runs."""
    return frame.filter(pl.col("run").is_in(each.evidence))


def over(each: Pool, frame: pl.DataFrame, column: str | pl.Expr, reason: str) -> Interval:
    """Median and interval over runs of the median over a run's rows; a run with an unknown value is left out.

    For bytes, not for times: a durable checkpoint without a device behind it has its true size all the same.
    """
    values = frame.select("run", value=pl.col(column) if isinstance(column, str) else column)
    unknown = pl.col("value").is_null() | ~pl.col("value").is_finite()
    runs = values.group_by("run").agg(pl.col("value").median(), unknown=unknown.any())  # one pass: asked often
    known = [float(value) for _, value, out in runs.iter_rows() if not out and value is not None]
    return median_interval(known, reason=reason if each.runs else "no trusted run")


def over_saves(tables: Tables, each: Pool, column: str) -> Interval:
    """The same for bytes in the table `saves`."""
    saves = of(tables.saves, each)
    reasons = saves.filter(pl.col(column).is_null())["bytes_reason"].drop_nulls()
    return over(each, saves, column, reasons[0] if reasons.len() else "no checkpoints")


def numbers(name: str, unit: str, item: Interval) -> Row:
    """A number's columns: name_unit, name_low_unit, name_high_unit, name_runs, name_reason."""
    return {
        f"{name}_{unit}": item.value,
        f"{name}_low_{unit}": item.low,
        f"{name}_high_{unit}": item.high,
        f"{name}_runs": item.n,
        f"{name}_reason": item.reason,
    }


def interval(row: Mapping[str, Any], name: str, unit: str) -> Interval:
    """The number of a row as an interval again."""
    keys = {"value": f"{name}_{unit}", "low": f"{name}_low_{unit}", "high": f"{name}_high_{unit}"}
    return Interval(**{field: row[key] for field, key in keys.items()}, n=row[f"{name}_runs"])


EXTRA = pl.col("rss_peak_bytes") - pl.col("rss_before_bytes")
"""What a save adds to a rank's resident memory."""


def fullest_extra(rank_saves: pl.DataFrame) -> pl.DataFrame:
    """run -> `extra`: of its fullest save's fullest rank; null where any rank's is not known in any save.

    The fullest, not the usual save: the first one fills pools that stay, and a node must have the memory for it.
    """
    known = pl.when(pl.col("extra").null_count() == 0).then(pl.col("extra").max())
    return rank_saves.with_columns(extra=EXTRA).group_by("run").agg(extra=known)


def no_inventory(tables: Tables, each: Pool) -> str:
    """Why nothing is known of the files of these runs."""
    reasons = of(tables.saves, each).filter(pl.col("bytes_reason").is_not_null())["bytes_reason"].to_list()
    if not each.runs:
        return "no trusted run"
    return reasons[0] if reasons else "the inventory lists no contents"


def ratio(over_: float | None, under: float | None) -> float | None:
    """A quotient; None where it is not known or has no meaning."""
    return None if over_ is None or not under else over_ / under


def places(rows: Sequence[Row]) -> list[str]:
    """The places of the rows, each once, in order."""
    return list(dict.fromkeys(row["place"] for row in rows))


def setting_title(row: Row) -> str:
    """What the rows of one table share, in words: site, model, durability, interval, planted faults."""
    kind = "durable" if row["durable"] else "buffered"
    planted = f", planted faults: {row['faults']}" if row["faults"] else ""
    return f"site {row['site']}, model {row['model']}, {kind}, every {row['interval_steps']} steps{planted}"


def telling(rows: Sequence[Row]) -> dict[str, Any]:
    """Heading -> cell of what tells the rows of a table apart; their conditions only where nothing else does."""
    names = ("framework", "strategy", "format")
    found: dict[str, Any] = {name: (lambda row, _, name=name: row[name]) for name in names}
    points = [tuple(row[name] for name in (*names, "nodes", "ranks_per_node")) for row in rows]
    if len(set(points)) < len(points):
        found["conditions"] = lambda row, _: row["conditions"]
    return found | {"nodes\nx ranks": lambda row, _: f"{row['nodes']} x {row['ranks_per_node']}"}
