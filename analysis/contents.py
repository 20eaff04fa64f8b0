"""What lies in the files, from the inventory: bytes by kind and by file, what is there twice, and who holds it.

Replicas are told by name and slice, copies by digest, piece by piece as they were written; equal
stretches of pieces that were cut differently are not seen. Copies of one thing share its redundancy
equally, whichever came first. Pure: an inventory in, rows out; nothing loops over tensors in Python.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl

from hpcckpt.records import INVENTORY_COLUMNS

Row = dict[str, Any]

_FILE = ["generation", "file"]
_SAME_NAME = ["generation", "kind", "tensor", "label", "offset_bytes", "tensor_bytes"]
_SAME_CONTENT = ["generation", "digest", "tensor_bytes"]
_CHUNK_BYTES = 1 << 20
DRAGS = 0.1
"""Share of a storage's surplus by which the file must outgrow its tensors, else they share the storage."""


def inventory_rows(run: str, inventory: pl.DataFrame) -> dict[str, list[Row]]:
    """The rows of every table that comes from the inventory alone."""
    return {
        "contents": contents_rows(run, inventory),
        "holdings": holdings_rows(run, inventory),
        "files": file_rows(run, inventory),
        "draggers": dragger_rows(run, inventory),
    }


def contents_rows(run: str, inventory: pl.DataFrame) -> list[Row]:
    """Rows of `contents`: one per generation and kind."""
    size, digested = pl.col("tensor_bytes"), pl.col("digest").null_count() == 0
    first_name, first_content = (_first(keys) for keys in (_SAME_NAME, [*_SAME_CONTENT, "kind"]))
    marked = inventory.with_columns(
        disk=_disk(),
        first_name=first_name,
        first_content=first_content,
        replicas=_twice(_SAME_NAME),
        copies=_twice(_SAME_CONTENT),
        constant=_constant(inventory),
    )
    constant, disk, known = pl.col("constant"), pl.col("disk"), pl.col("file_bytes").null_count() == 0
    replicas, copies, varied = pl.col("replicas"), pl.col("copies"), ~constant
    grouped = marked.group_by("generation", "kind", maintain_order=True).agg(
        tensors=pl.len(),
        logical_bytes=size.sum(),
        unique_name_bytes=size.filter(pl.col("first_name")).sum(),
        unique_digest_bytes=pl.when(digested).then(size.filter(pl.col("first_content")).sum()),
        disk_bytes=_whole(known, disk),
        replica_redundant_bytes=_whole(pl.lit(value=True), size * replicas),
        replica_redundant_disk_bytes=_whole(known, disk * replicas),
        content_redundant_bytes=_whole(digested, (size * copies).filter(varied)),
        content_redundant_disk_bytes=_whole(known & digested, (disk * copies).filter(varied)),
        constant_bytes=_whole(digested, size.filter(constant)),
        constant_redundant_bytes=_whole(digested, (size * copies).filter(constant)),
    )
    return _rows(run, grouped)


def holdings_rows(run: str, inventory: pl.DataFrame) -> list[Row]:
    """Rows of `holdings`: one per generation, kind and set of ranks that hold the same contents."""
    marked = inventory.with_columns(constant=_constant(inventory)).filter(pl.col("digest").is_not_null())
    pieces = marked.group_by(*_SAME_CONTENT, "kind", maintain_order=True).agg(
        ranks=pl.col("rank").unique().sort(),
        nodes=pl.col("node").n_unique(),
        copies=pl.len(),
        constant=pl.col("constant").first(),
    )
    held = pieces.with_columns(holders=pl.col("ranks").cast(pl.List(pl.String())).list.join(","))
    keys = ["generation", "kind", "constant", "holders", "nodes", "copies"]
    grouped = held.group_by(keys, maintain_order=True).agg(tensors=pl.len(), bytes_each=pl.col("tensor_bytes").sum())
    return _rows(run, grouped)


def file_rows(run: str, inventory: pl.DataFrame) -> list[Row]:
    """Rows of `files`: one per generation and file."""
    keys = ["generation", "file", "rank", "node", "format", "file_bytes"]
    grouped = inventory.group_by(keys, maintain_order=True).agg(
        logical_bytes=pl.col("tensor_bytes").sum(), storages_known=pl.col("storage_bytes").count()
    )
    return _rows(run, grouped)


def dragger_rows(run: str, inventory: pl.DataFrame) -> list[Row]:
    """Rows of `draggers`: tensors whose file holds more of their storage than they use.

    Tensors that share a storage drag nothing as long as they use it up: the file is then no larger than they are.
    """
    surplus = pl.col("storage_bytes") - pl.col("tensor_bytes")
    excess = pl.col("file_bytes") - pl.col("tensor_bytes").sum().over(_FILE)
    found = inventory.with_columns(surplus=surplus, excess=excess).filter(
        (pl.col("surplus") > 0) & (pl.col("excess") >= DRAGS * pl.col("surplus"))
    )
    dragged = pl.min_horizontal("surplus", "excess").alias("dragged_bytes")
    return _rows(run, found.select("generation", "file", "tensor", "tensor_bytes", "storage_bytes", dragged))


def usable(inventory: pl.DataFrame) -> bool:
    """Whether the frame has the columns that this release writes."""
    return set(INVENTORY_COLUMNS) <= set(inventory.columns)


def _rows(run: str, found: pl.DataFrame) -> list[Row]:
    return [{"run": run, **row} for row in found.iter_rows(named=True)]


def _first(keys: list[str]) -> pl.Expr:
    """Whether the row is the first with its keys."""
    return pl.int_range(pl.len()).over(keys) == 0


def _twice(keys: list[str]) -> pl.Expr:
    """The share of a row that is there already: of n equals, (n - 1) / n of each."""
    count = pl.len().over(keys)
    return (count - 1) / count


def _disk() -> pl.Expr:
    """The row's share of its file by logical bytes; equal shares where the file's tensors are all empty."""
    size, file = pl.col("tensor_bytes"), pl.col("file_bytes")
    logical = size.sum().over(_FILE)
    return pl.when(logical > 0).then(size / logical * file).otherwise(file / pl.len().over(_FILE))


def _whole(known: pl.Expr, values: pl.Expr) -> pl.Expr:
    """The sum as whole bytes; null where it is not known."""
    return pl.when(known).then(values.sum().round().cast(pl.Int64))


def _constant(inventory: pl.DataFrame) -> pl.Series:
    """Whether each piece is all zero or all one, told by its digest; null where it has none."""
    kinds = inventory.select("dtype", "tensor_bytes").unique().rows()
    known = [digest for dtype, size in kinds for digest in _constants(dtype, size)]
    return inventory["digest"].cast(pl.String).is_in(known)


@lru_cache(maxsize=4096)
def _constants(dtype: str, size: int) -> tuple[str, ...]:
    """Digests of so many bytes of zeros, and of ones where numpy knows the type."""
    values = [b"\0"]
    try:
        values.append(np.ones((), dtype=dtype).tobytes())
    except TypeError:
        pass  # a type of some framework's own
    return tuple(_digest(value, size) for value in values if size % len(value) == 0)


def _digest(value: bytes, size: int) -> str:
    """What `hpcckpt.inventory.digest` gives for `size` bytes of a repeated value, without holding them."""
    import xxhash

    chunk = value * (_CHUNK_BYTES // len(value))
    found = xxhash.xxh3_128()
    for start in range(0, size, len(chunk)):
        found.update(chunk[: size - start])
    return str(found.hexdigest())
