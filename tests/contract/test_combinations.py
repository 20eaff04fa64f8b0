"""Every framework x strategy x format that claims to work: saves, restores bit-equal, goes on bit-equal.

One mpirun saves all combinations of a framework and a second one restores them; the tests judge the facts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcckpt import registry
from hpcckpt.records import COMMIT, GATHER, SYNC
from hpcckpt.strategies._parts import PartsStrategy
from tests.contract.program import combinations
from tests.support import mpirun

FRAMEWORKS = registry.names("hpcckpt.frameworks")
RANKS = (4,)  # and restored on half of them too

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]


@pytest.fixture(
    scope="module", params=[(f, n) for f in FRAMEWORKS for n in RANKS], ids=lambda p: f"{p[0]}-{p[1]}"
)
def facts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    framework, ranks = request.param
    base: Path = tmp_path_factory.mktemp(f"{framework}-{ranks}")
    result: dict[str, Any] = {"framework": framework, "ranks": ranks}
    for mode in ("save", "restore"):
        done = mpirun(ranks, ["-m", "tests.contract.program", mode, framework, str(base)])
        assert done.returncode == 0, f"{mode}:\n{done.stdout}\n{done.stderr}"
        result[mode] = json.loads((base / f"{mode}.json").read_text())
    done = mpirun(ranks // 2, ["-m", "tests.contract.program", "restore-elsewhere", framework, str(base)])
    assert done.returncode == 0, f"restore on {ranks // 2} ranks:\n{done.stdout}\n{done.stderr}"
    result["restore-elsewhere"] = json.loads((base / "restore-elsewhere.json").read_text())
    return result


def test_every_supported_pair_was_run(facts: dict[str, Any]) -> None:
    expected = {f"{strategy}/{format_}" for strategy, format_ in combinations(facts["framework"])}
    assert expected, f"{facts['framework']}: no strategy and format serve it"
    assert {label.rsplit("/", 2)[0] for label in facts["save"]} == expected
    assert facts["save"].keys() == facts["restore"].keys()


def test_each_rank_writes_what_the_plan_says(facts: dict[str, Any]) -> None:
    for label, ranks in facts["save"].items():
        for rank, own in enumerate(ranks):
            assert sorted(own["wrote"]) == sorted(own["planned"]), f"{label}, rank {rank}"


def test_the_files_lie_under_their_final_names(facts: dict[str, Any]) -> None:
    for label, ranks in facts["save"].items():
        files = [Path(f) for own in ranks for f in own["files"]]
        assert files, label
        for file in files:
            inner = [path for path in file.rglob("*") if path.is_file()] if file.is_dir() else [file]
            assert sum(path.stat().st_size for path in inner) > 0, f"{label}: {file}"
            assert not list(file.parent.glob("*.tmp")), f"{label}: temporary files left"


def test_durable_saves_sync_before_and_after_the_commit(facts: dict[str, Any]) -> None:
    """Ours sync, rename and sync; a framework's own mechanism commits in its own way, and is synced behind it."""
    for label, ranks in facts["save"].items():
        strategy = registry.load("hpcckpt.strategies", label.split("/")[0])
        for own in ranks:
            if not own["files"]:
                continue
            steps = [p for p in own["phases"] if p in (SYNC, COMMIT)]
            if strategy.asynchronous:
                assert not steps, f"{label}: what goes on behind the save is no phase of it"
            elif issubclass(strategy, PartsStrategy):
                assert steps == ([SYNC, COMMIT, SYNC] if label.endswith("durable") else [COMMIT]), label
                assert own["phases"][0] == GATHER, label
            else:
                assert (SYNC in steps) == label.endswith("durable"), label


def carried(label: str, own: dict[str, Any]) -> dict[str, str]:
    """Digests of what this combination's file carries, as far as this rank restores it."""
    kinds = own["carried"]
    return {key: digest for key, digest in own["state"].items() if key in kinds}


def test_restored_state_is_bit_equal(facts: dict[str, Any]) -> None:
    for label, ranks in facts["save"].items():
        for rank, own in enumerate(ranks):
            restored = facts["restore"][label][rank]["state"]
            assert carried(label, own), label
            assert {key: restored[key] for key in carried(label, own)} == carried(label, own), (
                f"{label}, rank {rank}"
            )


def test_next_step_after_a_restore_is_bit_equal(facts: dict[str, Any]) -> None:
    for label, ranks in facts["save"].items():
        for rank, own in enumerate(ranks):
            assert own["next"] != own["state"], (
                f"{label}: the step changed nothing, so this test would prove nothing"
            )
            if own["carried"] != sorted(own["state"]):
                continue  # what such a file leaves out is the finding of the restart experiment
            if facts["ranks"] > 2 and registry.load("hpcckpt.frameworks", facts["framework"]).reorders_sums:
                continue  # the reason is the framework's own, and the table prints it
            assert facts["restore"][label][rank]["next"] == own["next"], f"{label}, rank {rank}"


def test_restored_on_half_the_ranks_the_shared_state_is_equal(facts: dict[str, Any]) -> None:
    for label, ranks in facts["restore-elsewhere"].items():
        saved = facts["save"][label][0]
        shared = {key: digest for key, digest in carried(label, saved).items() if "@" not in key}
        for rank, own in enumerate(ranks):
            assert {key: own["state"][key] for key in shared} == shared, f"{label}, rank {rank}"
