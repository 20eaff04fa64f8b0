"""What the tests of `analysis.collect` share: planted runs through it, and the one entry of what was left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analysis.collect import collect
from analysis.tables import Tables
from tests.unit.planted import read_trace


def taken(path: Path) -> Tables:
    return collect([path], read_trace)


def only(path: Path) -> dict[str, Any]:
    """The one entry of left_out; nothing else may have been taken."""
    found = taken(path)
    assert found.runs.height == 0, found.runs["run"].to_list()
    assert found.saves.height == found.rank_saves.height == found.windows.height == 0
    assert found.left_out.height == 1, found.left_out.to_dicts()
    return found.left_out.to_dicts()[0]
