"""Tests of restart with the real frameworks: exact where the checkpoint has everything, else the cause is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcckpt.experiment import Fault
from tests.integration.test_restart import drive, leg

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

OWN = {
    "pytorch_horovod": {"format": "torch_zip"},
    "pytorch_ddp": {"strategy": "torch_dcp", "format": "dcp"},
    "pytorch_fsdp": {"strategy": "torch_dcp", "format": "dcp"},
    "tensorflow_horovod": {"format": "tf_bundle"},
    "chainer_chainermn": {"format": "npz"},
}


@pytest.mark.parametrize("framework", OWN)
def test_a_network_without_statistics_and_dropout_restarts_exactly(tmp_path: Path, framework: str) -> None:
    chosen: dict[str, Any] = {"model": "small", "settings": {"steps": 5}, **OWN[framework]}
    _, found, _ = drive(tmp_path, framework=framework, restart={"elsewhere": [1]}, **chosen)
    verdicts = {each.leg: each.exact for each in found.comparisons}
    assert verdicts == {"again": True, "train": True, "restored": True, "elsewhere-1": True}, found.comparisons
    saved = {row.kind: row.verdict for row in found.carried}
    assert saved["parameter"] == saved["optimizer"] == saved["data_position"] == "saved"


@pytest.mark.parametrize("framework", ["pytorch_ddp", "pytorch_fsdp", "chainer_chainermn"])
def test_an_optimizer_that_is_left_out_is_found(tmp_path: Path, framework: str) -> None:
    chosen: dict[str, Any] = {"model": "small", "settings": {"steps": 5}, **OWN[framework]}
    fault = Fault(rank="all", at="restore", action="drop", what="optimizer", leg="restored")
    _, found, _ = drive(tmp_path, [fault], framework=framework, restart={"again": 0}, **chosen)
    first = leg(found, "restored").first
    assert first and (first.step, first.when, first.kind) == (2, "loaded", "optimizer"), first
    assert "optimizer" in (found.cure or []), found.comparisons


def test_statistics_of_other_ranks_and_random_states_are_what_chainer_s_snapshot_lacks(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"model": "small_dropout", "strategy": "chainer_snapshot", "format": "npz"}
    _, found, _ = drive(tmp_path, framework="chainer_chainermn", settings={"steps": 5}, **chosen)
    assert leg(found, "restored").cause == "rng" and found.cure == ["buffer", "rng"]
    assert {row.kind: row.verdict for row in found.carried if row.kind in ("buffer", "rng")} == {
        "buffer": "partly", "rng": "missing",
    }  # fmt: skip
