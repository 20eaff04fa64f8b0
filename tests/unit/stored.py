"""Inventories for planted runs: what lies in which file, said piece by piece. Truth for tests of what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from analysis.cli import Answer, Question
from analysis.collect import collect
from hpcckpt.records import INVENTORY_COLUMNS
from hpcckpt.rundir import RunDir
from tests.unit.planted import Plan, plant, read_trace

KINDS = {"int64": pl.Int64, "string": pl.String}
SCHEMA = {name: KINDS[kind] for name, kind in INVENTORY_COLUMNS.items()}


@dataclass(frozen=True)
class Stored:
    """One piece in one rank's file."""

    rank: int = 0
    tensor: str = "w"
    digest: str | None = "w"
    kind: str = "parameter"
    size: int = 4_000_000
    storage: int | None = None
    file_bytes: int | None = 4_000_000
    """Of the whole file; the same for all pieces in it."""
    generation: int | None = None
    """None: in every generation."""
    name: str = ""
    dtype: str = "float32"


def on(ranks: Sequence[int], *pieces: Stored) -> list[Stored]:
    """The same pieces in the files of all these ranks."""
    return [replace(piece, rank=rank) for rank in ranks for piece in pieces]


def store(path: Path, pieces: Sequence[Stored], generations: int = 3, per_node: int = 1) -> None:
    """Replace the inventory of a planted run by one of these pieces."""
    rows = [
        {
            "generation": generation, "step": generation, "rank": piece.rank, "node": f"n{piece.rank // per_node}",
            "file": f"g{generation}/part{piece.rank}{piece.name}", "file_bytes": piece.file_bytes, "format": "npz",
            "tensor": piece.tensor, "label": piece.tensor, "kind": piece.kind, "dtype": piece.dtype, "shape": "[1]",
            "offset_bytes": 0, "tensor_bytes": piece.size, "storage_bytes": piece.storage, "digest": piece.digest,
            "replica_group": "all",
        }
        for generation in range(generations)
        for piece in pieces
        if piece.generation in (None, generation)
    ]  # fmt: skip
    pl.DataFrame(rows, schema=SCHEMA).write_parquet(RunDir(path).leg("train").inventory)


def ask(question: Question, root: Path, *runs: tuple[Plan, Sequence[Stored]]) -> Answer:
    """Plant the runs with what they stored, and ask."""
    paths = []
    for plan, pieces in runs:
        paths.append(plant(root, plan))
        store(paths[-1], pieces, plan.generations, plan.ranks_per_node)
    return question.answer(collect(paths, read_trace), False)
