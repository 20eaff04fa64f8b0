"""What lies in the files, from the inventory: bytes by kind and by file, and how much of it is there twice.

Replicas are told by name and slice, copies by digest. Pure: an inventory in, rows out.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from hpcckpt.records import INVENTORY_COLUMNS

Row = dict[str, Any]


def contents_rows(run: str, inventory: pl.DataFrame) -> list[Row]:
    """Rows of `contents`: one per generation and kind."""
    same_name = ["tensor", "offset_bytes", "tensor_bytes"]
    grouped = inventory.group_by("generation", "kind", maintain_order=True)
    return [
        {
            "run": run,
            "generation": generation,
            "kind": kind,
            "tensors": part.height,
            "logical_bytes": part["tensor_bytes"].sum(),
            "unique_name_bytes": part.unique(same_name)["tensor_bytes"].sum(),
            "unique_digest_bytes": None
            if part["digest"].null_count()
            else part.unique(["digest", "tensor_bytes"])["tensor_bytes"].sum(),
        }
        for (generation, kind), part in grouped
    ]


def file_rows(run: str, inventory: pl.DataFrame) -> list[Row]:
    """Rows of `files`: one per generation and file."""
    keys = ["generation", "file", "rank", "node", "format", "file_bytes"]
    grouped = inventory.group_by(keys, maintain_order=True).agg(pl.col("tensor_bytes").sum().alias("logical_bytes"))
    return [{"run": run, **row} for row in grouped.iter_rows(named=True)]


def usable(inventory: pl.DataFrame) -> bool:
    """Whether the frame has the columns that this release writes."""
    return set(INVENTORY_COLUMNS) <= set(inventory.columns)
