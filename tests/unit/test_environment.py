"""The manifest: it says what is there, and what cannot be found out says so instead of raising."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcckpt import environment


def test_every_part_is_there_and_serialises(tmp_path: Path) -> None:
    found = environment.manifest(tmp_path)
    assert set(found) == {"code", "python", "packages", "host", "mpi", "setup", "slurm", "scratch", "gpu"}
    assert json.loads(json.dumps(found)) == found
    assert found["packages"]["numpy"] and found["host"]["cores"] >= 1
    assert found["scratch"]["filesystem"]


def test_a_part_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(environment, "host", broken)
    assert environment.manifest(tmp_path)["host"] == "not known: ValueError: no such thing"


def test_the_choice_of_the_set_up_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.sys, "prefix", str(tmp_path))
    assert "not made by the project's set-up" in str(environment.setup())
    (tmp_path / "hpcckpt-setup.json").write_text('{"mpi": {"kind": "pypi"}}')
    assert environment.setup() == {"mpi": {"kind": "pypi"}}
