"""PyTorch on real ranks: adapters that train alike, models in parts, DCP, partial checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hpcckpt.records import BACKGROUND, STALL_PHASES, Replica, Save, Span, Verified
from tests.integration.torch_program import DATA_PARALLEL, ELASTIC, IN_PARTS
from tests.support import closing, launch, make_run, make_run_dir, mpirun, of, phase_s, trace

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def facts(mode: str, ranks: int, base: Path) -> list[dict[str, Any]]:
    done = mpirun(ranks, ["-m", "tests.integration.torch_program", mode, str(base)])
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads((base / f"{mode}.json").read_text())
    return found


def test_the_three_ways_to_average_gradients_train_alike(tmp_path: Path) -> None:
    for rank, own in enumerate(facts("alike", 2, tmp_path)):
        first = own[DATA_PARALLEL[0]]
        for name in DATA_PARALLEL[1:]:
            assert own[name]["losses"] == pytest.approx(first["losses"], rel=1e-5), f"{name}, rank {rank}"
            assert own[name]["parameters"].keys() == first["parameters"].keys()
        assert own["pytorch_ddp"]["parameters"] == first["parameters"], "two ranks: a sum of two has one order"


def test_what_is_overwritten_after_the_call_is_saved_as_it_was(tmp_path: Path) -> None:
    for rank, own in enumerate(facts("overwritten", 2, tmp_path)):
        for name, found in own.items():
            assert found["after"] != found["before"], "nothing was overwritten, so this proves nothing"
            assert found["saved"] == found["before"], f"{name}, rank {rank}"
            assert len(found["background"]) == 1 and found["background"][0][0] <= found["background"][0][1]


@pytest.mark.parametrize(("saved_on", "restored_on"), [(2, 4), (4, 2)])
def test_models_in_parts_go_to_another_number_of_ranks(tmp_path: Path, saved_on: int, restored_on: int) -> None:
    saved = facts("parts_save", saved_on, tmp_path)[0]
    restored = facts("parts_restore", restored_on, tmp_path)
    for name in IN_PARTS:
        state = saved[name]["state"]
        for own in restored:
            for how, _ in ELASTIC:
                assert {key: own[name][how][key] for key in state} == state, f"{name}, {how}"
            resharded = own[name]["resharded"]
            assert resharded == {key: state[key] for key in resharded}, f"{name}: DCP's own resharding"
        assert all(saved[name]["planned"]["sharded"]), "every rank writes its own part"
        assert [count > 0 for count in saved[name]["planned"]["single_writer"]] == [True] + [False] * (saved_on - 1)


def test_partial_checkpoints_leave_the_rest_as_it_is(tmp_path: Path) -> None:
    for rank, own in enumerate(facts("partial", 2, tmp_path)):
        for label, found in own.items():
            kept = set(found["kept"])
            assert kept, label
            for key, digest in found["restored"].items():
                expected = found["begin"] if key in kept else found["saved"]
                assert digest == expected[key], f"{label}, rank {rank}: {key}"
            if "frozen" in label:
                assert kept == {"model.0.weight", "model.0.bias"}, label
            else:
                assert not any(key.startswith("model.") for key in kept), label


def run_leg(base: Path, **changes: Any) -> tuple[list[list[Any]], list[dict[str, Any]]]:
    """Traces by rank and the inventory of one leg on two ranks, every generation read back."""
    run = make_run(model="resnet20", settings={"steps": 5, "verify": "all", **changes.pop("settings", {})}, **changes)
    paths = make_run_dir(base, run)
    done = launch(paths, run)
    assert done.returncode == 0, done.stderr
    traces = [trace(paths, rank) for rank in range(run.ranks)]
    assert {closing(records).status for records in traces} == {"ok"}
    assert [v.equal for v in of(traces[0], Verified)] == [True, True], of(traces[0], Verified)
    return traces, pq.read_table(paths.leg("train").inventory).to_pylist()


def test_fsdp_says_that_there_are_no_replicas_to_compare(tmp_path: Path) -> None:
    traces, rows = run_leg(tmp_path, framework="pytorch_fsdp", strategy="sharded", format="torch_legacy")
    for records in traces:
        assert {r.equal for r in of(records, Replica)} == {None}
        assert all("no parameter is replicated" in (r.reason or "") for r in of(records, Replica))
    values = sum(row["tensor_bytes"] for row in rows if row["generation"] == 0 and row["kind"] == "parameter")
    whole = {(r["tensor"], r["shape"]) for r in rows if r["kind"] == "parameter"}
    assert values == 4 * sum(_count(shape) for _, shape in whole), "each value once"
    assert all(row["storage_bytes"] == row["tensor_bytes"] for row in rows), "no view drags a storage along"


def test_a_dcp_save_names_its_phases_and_its_index(tmp_path: Path) -> None:
    traces, rows = run_leg(tmp_path, framework="pytorch_horovod", strategy="torch_dcp", format="dcp", durable=True)
    for records in traces:
        assert all(r.equal for r in of(records, Replica))
        for phase in ("gather", "serialize+write", "sync", "wait_inside"):
            assert phase_s(records, phase, 0) > 0, phase
    assert phase_s(traces[0], "commit", 0) > 0 and phase_s(traces[1], "commit", 0) == 0, "rank 0 commits"
    index = [row for row in rows if row["kind"] == "container"]
    assert {(row["rank"], row["tensor_bytes"]) for row in index} == {(0, 0)} and all(r["file_bytes"] for r in index)
    for rank in (0, 1):
        mine = {r["file"]: r["file_bytes"] for r in rows if r["rank"] == rank and r["generation"] == 0}
        save = of(traces[rank], Save)[0]
        assert save.planned_bytes <= sum(mine.values()) <= save.write_chars_bytes * 1.01 + 1024


def test_an_asynchronous_save_keeps_its_writing_out_of_the_stall(tmp_path: Path) -> None:
    traces, _ = run_leg(tmp_path, framework="pytorch_ddp", strategy="torch_dcp_async", format="dcp")
    for records in traces:
        phases = {s.phase for s in of(records, Span) if s.phase in STALL_PHASES}
        assert phases == {"gather", "wait_inside", "wait_after"}
        assert [s.generation for s in of(records, Span) if s.phase == BACKGROUND] == [0, 1]
        assert all(phase_s(records, BACKGROUND, generation) > 0 for generation in (0, 1))


def test_frozen_layers_are_written_once(tmp_path: Path) -> None:
    _, rows = run_leg(
        tmp_path,
        framework="pytorch_ddp",
        strategy="changed_only",
        format="torch_zip",
        settings={"frozen": ["3.*"], "keep": 1},
    )
    written = [{r["tensor"] for r in rows if r["generation"] == g and r["kind"] == "parameter"} for g in (0, 1)]
    frozen = {name for name in written[0] if name.startswith("model.3.")}
    assert frozen and written[0] - written[1] == frozen
    files = [sum({r["file"]: r["file_bytes"] for r in rows if r["generation"] == g}.values()) for g in (0, 1)]
    assert all(files), "keep = 1 removed nothing: the second generation refers to the first"


def _count(shape: str) -> int:
    total = 1
    for length in json.loads(shape):
        total *= length
    return total
