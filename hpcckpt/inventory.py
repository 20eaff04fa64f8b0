"""What lies in the files of a leg: one row per tensor or slice, with its digest."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.records import INVENTORY_COLUMNS
from hpcckpt.strategies.base import Written


def digest(array: np.ndarray) -> str:
    """xxh3-128 of the array's bytes, in hex."""
    import xxhash

    flat = np.ascontiguousarray(array).reshape(-1)
    return str(xxhash.xxh3_128_hexdigest(flat.view(np.uint8).data if flat.size else b""))


def rows(
    written: Iterable[Written],
    generation: int,
    step: int,
    root: Path,
    rank: int,
    node: str,
    format_: str,
    digests: bool = True,
) -> list[dict[str, Any]]:
    """Inventory rows of what this rank wrote. Call it outside timed parts.

    `digests` is False where the live state has moved on since: a digest of it would not be the file's.

    A file that is still being written behind the save has no size yet: `fill_sizes` asks later.
    """
    result = []
    for item in written:
        entry = item.piece.entry
        result.append(
            {
                "generation": generation,
                "step": step,
                "file": str(item.file.relative_to(root)),
                "rank": rank,
                "node": node,
                "file_bytes": None,
                "format": format_,
                "tensor": entry.key,
                "label": item.piece.label,
                "kind": entry.kind,
                "dtype": entry.dtype,
                "shape": json.dumps(list(entry.shape)),
                "offset_bytes": item.piece.offset * np.dtype(entry.dtype).itemsize,
                "tensor_bytes": item.piece.nbytes,
                "storage_bytes": None,
                "digest": digest(item.data) if digests else None,
                "replica_group": entry.replica_group,
            }
        )
    return result


def fill_sizes(found: list[dict[str, Any]], root: Path) -> None:
    """Size on disk of each file that is there and has none yet; a directory counts with all its files."""
    sizes: dict[str, int | None] = {}
    for row in found:
        if row["file_bytes"] is None:
            if row["file"] not in sizes:
                sizes[row["file"]] = _size(root / row["file"])
            row["file_bytes"] = sizes[row["file"]]


def fill_storages(found: list[dict[str, Any]], storages: dict[str, int]) -> None:
    """Bytes of the storage behind each tensor of one file, as its format tells."""
    for row in found:
        row["storage_bytes"] = storages.get(row["label"], row["storage_bytes"])


def _size(path: Path) -> int | None:
    try:
        return (
            sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
            if path.is_dir()
            else path.stat().st_size
        )
    except FileNotFoundError:
        return None


def write(path: Path, found: list[dict[str, Any]]) -> None:
    """All ranks' rows as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in INVENTORY_COLUMNS.items()])
    temporary = path.with_name(path.name + ".tmp")
    pq.write_table(pa.Table.from_pylist(found, schema=schema), temporary)
    temporary.replace(path)
