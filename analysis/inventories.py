"""The inventory of a leg read: bytes on disk per checkpoint and rank, and the rows of the tables on contents.

What lies in the files, `analysis.contents` says. An inventory may hold millions of tensors: it is read
a few checkpoints at a time, which are independent of each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from analysis.contents import inventory_rows, usable
from analysis.opened import BAD_INVENTORY, LeftOut
from analysis.rank_leg import Disk

Row = dict[str, Any]
ROWS_AT_ONCE = 400_000
_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
"""What a damaged file makes Polars raise; its panics are no ordinary exceptions."""


def read_disk(path: Path, name: str, left: list[Row]) -> Disk:
    """Bytes per generation and rank, each file counted once; what is wrong with the inventory goes to `left`."""
    if not path.exists():
        return Disk(reason="no inventory of the files")
    if not path.is_file():  # Polars would wait for a pipe
        cause = "not a regular file"
        return Disk(reason=f"the inventory cannot be read: {_bad(path, name, cause, left)}")
    try:
        found = pl.scan_parquet(path).select("generation", "rank", "file", pl.col("file_bytes").cast(pl.Int64))
        files = found.unique().collect()
        bytes_ = files.group_by("generation", "rank").agg(pl.col("file_bytes").sum())
    except _ERRORS as error:
        return Disk(reason=f"the inventory cannot be read: {_bad(path, name, _cause(error), left)}")
    negative = files.filter(pl.col("file_bytes") < 0).sort("generation", "file").rows()
    if negative:
        generation, _, file, size = negative[0]
        cause = f"file {file} of generation {generation} has {size} bytes"
        return Disk(reason=f"the inventory cannot be true: {_bad(path, name, cause, left)}")
    # A sum would pass over a size that nobody read: the generation would seem to hold less.
    unread = files.filter(pl.col("file_bytes").is_null()).sort("generation", "file").rows()
    unknown = {
        generation: f"the inventory has no size of file {file} of generation {generation}"
        for generation, _, file, _ in reversed(unread)
    }
    return Disk(bytes={(generation, rank): size for generation, rank, size in bytes_.rows()}, unknown=unknown)


def content_rows(path: Path, name: str, left: list[Row]) -> dict[str, list[Row]]:
    """The rows of all tables that come from the inventory, which `read_disk` could read."""
    rows: dict[str, list[Row]] = {}
    try:
        for part in _parts(path):
            if usable(part):
                for table, more in inventory_rows(name, part).items():
                    rows.setdefault(table, []).extend(more)
    except _ERRORS as error:
        _bad(path, name, _cause(error), left)
        return {}
    return rows


def _parts(path: Path) -> Iterator[pl.DataFrame]:
    """The inventory, whole checkpoints at a time, as many as make up `ROWS_AT_ONCE`."""
    whole = pl.scan_parquet(path)
    counts = whole.group_by("generation").len().sort("generation").collect()
    if counts["len"].sum() <= ROWS_AT_ONCE:
        yield whole.collect()
        return
    before = counts["len"].cum_sum() - counts["len"]
    for part in counts.group_by(before // ROWS_AT_ONCE, maintain_order=True).agg("generation")["generation"]:
        yield whole.filter(pl.col("generation").is_in(part.to_list())).collect()


def _cause(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _bad(path: Path, name: str, cause: str, left: list[Row]) -> str:
    left.append(LeftOut(BAD_INVENTORY, path, cause).row(name, "inventory"))
    return cause
