"""The parts of a rank that need no MPI: trace file, records, data order, models, host facts, sizes."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcckpt import data, host, registry, sizing
from hpcckpt.comm import Comm, world
from hpcckpt.errors import RunError, SpecError, TraceError
from hpcckpt.experiment import Fault
from hpcckpt.faults import Faults
from hpcckpt.frameworks.base import entry, of_all_ranks
from hpcckpt.records import End, Span, Step, decode, encode
from hpcckpt.strategies.base import Topology, supports
from hpcckpt.tracing import process_io
from hpcckpt.tracing.spans import Trace
from tests.support import make_run


def lines(path: Path) -> list:
    return [decode(line) for line in path.read_bytes().splitlines()]


def test_a_trace_always_ends_with_its_closing_line(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "0.jsonl")
    with trace.phase(0, "write"):
        pass
    trace.close("ok")
    trace.add(Step(index=1, begin_ns=0, end_ns=1, loss=0.0))
    trace.flush()
    trace.close("failed")
    found = lines(tmp_path / "0.jsonl")
    assert [type(record) for record in found] == [Span, End]
    assert found[-1].status == "ok"


def test_the_closing_line_names_what_the_rank_was_inside(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "0.jsonl")
    with pytest.raises(RunError), trace.inside("save"), trace.phase(3, "sync"):
        raise RunError("x")
    with trace.inside("step"):
        trace.close("terminated")
    assert lines(tmp_path / "0.jsonl")[-1].inside == ["save", "step"]


def test_phases_never_nest(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "0.jsonl")
    with (
        pytest.raises(AssertionError, match="write inside"),
        trace.phase(0, "gather"),
        trace.phase(0, "write"),
    ):
        pass


@pytest.mark.parametrize(
    "line", [b"", b"{}", b'{"type":"step"}', b'{"type":"nonsense"}', b"\xff", b'{"type":"end","t_']
)
def test_a_line_that_is_no_record_is_named(line: bytes) -> None:
    with pytest.raises(TraceError, match="rank 3, line 7"):
        decode(line, "rank 3, line 7")


@given(st.integers(0, 2**62), st.text(), st.lists(st.text(), max_size=3))
def test_records_survive_their_line(t_ns: int, error: str, inside: list[str]) -> None:
    record = End(t_ns=t_ns, status="failed", error=error, inside=inside)
    assert encode(record).count(b"\n") == 1
    assert decode(encode(record)) == record


def test_the_digits_are_pictures_in_cifar_s_form() -> None:
    found = data.load(None, seed=1)
    assert found.name.startswith("scikit-learn digits")
    assert found.images.shape == (1797, 3, 32, 32) and found.images.dtype == np.uint8
    assert found.images.max() == 255 and sorted(set(found.labels)) == list(range(10))


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda d: None, "data_batch_1: No such file"),
        (lambda d: (d / "data_batch_1").write_bytes(b"x"), "not CIFAR-10's file"),
    ],
    ids=["missing", "foreign"],
)
def test_a_folder_without_cifar10_is_refused(tmp_path: Path, prepare: object, message: str) -> None:
    prepare(tmp_path)  # type: ignore[operator]
    with pytest.raises(SpecError, match=message):
        data.load(str(tmp_path), seed=1)


@given(st.integers(1, 6), st.integers(1, 16), st.integers(0, 3))
def test_one_epoch_deals_every_sample_once(ranks: int, size: int, seed: int) -> None:
    images = data.Dataset("d", np.zeros((96, 3, 1, 1), np.uint8), np.zeros(96, np.int64))
    steps = 96 // (ranks * size) or 1
    ids = np.concatenate(
        [images.sample_ids(s, r, ranks, size, seed) for s in range(steps) for r in range(ranks)]
    )
    first = ids[:96]
    assert len(set(first)) == len(first)
    assert np.array_equal(
        images.sample_ids(1, 0, ranks, size, seed), images.sample_ids(1, 0, ranks, size, seed)
    )


def test_sizes_of_the_models() -> None:
    assert registry.load("hpcckpt.models", "small").parameter_count() == 448 + 9_280 + 2_097_664 + 5_130
    assert registry.load("hpcckpt.models", "resnet50").parameter_count() == 23_528_522


@pytest.mark.parametrize("name", registry.names("hpcckpt.models"))
def test_torch_builds_what_the_description_counts(name: str) -> None:
    torch = pytest.importorskip("torch")
    from hpcckpt.frameworks._torch import build

    model = registry.load("hpcckpt.models", name)
    module = build(model)
    assert sum(p.numel() for p in module.parameters()) == model.parameter_count()
    buffers = sum(b.numel() for n, b in module.named_buffers() if not n.endswith("num_batches_tracked"))
    assert buffers == model.buffer_count()
    assert module(torch.zeros(2, *model.input_shape)).shape == (2, model.classes)


def test_bytes_needed_cover_a_torch_file(tmp_path: Path) -> None:
    run = make_run(framework="pytorch_horovod", format="torch_zip")
    assert sizing.generations(run) == 3
    assert sizing.bytes_needed(run) >= 3 * 2 * 4 * registry.load("hpcckpt.models", "small").parameter_count()
    kept = make_run(framework="pytorch_horovod", format="torch_zip", settings={"keep": 1})
    assert sizing.bytes_needed(kept) < sizing.bytes_needed(run)


def test_owned_entries_exist_once_per_rank() -> None:
    local = [entry("w", "parameter", np.zeros(3)), entry("rng", "rng", np.zeros(2), owner=1)]
    keys = [e.key for e in of_all_ranks(local, 3)]
    assert keys == ["w", "rng@00000", "rng@00001", "rng@00002"]
    assert all(e.data is None for e in of_all_ranks(local, 3))


@pytest.mark.parametrize("name", registry.names("hpcckpt.strategies"))
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_plans_cover_the_state(name: str, ranks: int) -> None:
    strategy = registry.load("hpcckpt.strategies", name)
    entries = of_all_ranks(
        [entry("w", "parameter", np.zeros((5, 7))), entry("r", "rng", np.zeros(4), owner=0)], ranks
    )
    plan = strategy.plan(entries, Topology(ranks, 1))
    assert set(plan) <= set(range(ranks))
    covered = {
        (p.entry.key, i)
        for pieces in plan.values()
        for p in pieces
        for i in range(p.offset, p.offset + p.count)
    }
    assert covered == {(e.key, i) for e in entries for i in range(int(np.prod(e.shape)))}
    total = sum(p.count for pieces in plan.values() for p in pieces)
    assert (total == len(covered)) == (strategy.content == "disjoint") or ranks == 1


def test_what_does_not_fit_together_gives_a_reason() -> None:
    assert supports("numpy_toy", "single_writer", "npz_plain") is None
    assert "torch_zip serves" in (supports("numpy_toy", "single_writer", "torch_zip") or "")


def test_unknown_plugins_name_the_nearest() -> None:
    with pytest.raises(
        SpecError, match="frameworks: unknown name 'pytorch_horovid'; did you mean 'pytorch_horovod'"
    ):
        registry.load("hpcckpt.frameworks", "pytorch_horovid")


def test_faults_strike_only_where_they_are_planted() -> None:
    fault = Fault(rank=2, at="sync", action="raise", generation=1)
    Faults([fault], rank=2, leg="train").at("sync", 0)
    Faults([fault], rank=2, leg="control").at("sync", 1)
    Faults([fault], rank=1, leg="train").at("sync", 1)
    with pytest.raises(RunError, match="planted fault at sync 1"):
        Faults([fault], rank=2, leg="train").at("sync", 1)


def resident(size: int) -> mmap.mmap:
    """So many bytes of new memory: what NumPy allocates may have been resident before."""
    held = mmap.mmap(-1, size)
    for at in range(0, size, mmap.PAGESIZE):
        held[at] = 1
    return held


def test_the_peak_of_memory_starts_anew() -> None:
    size = 64 << 20
    resident(2 * size).close()
    assert process_io.reset_peak() is None
    before = process_io.read()
    with resident(size):
        after = process_io.read()
    assert before.rss_peak_bytes is not None and after.rss_peak_bytes is not None
    assert after.rss_peak_bytes - before.rss_peak_bytes >= 0.9 * size


def test_counters_that_the_kernel_hides_have_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_io, "PROC", tmp_path)
    found = process_io.read()
    assert (found.write_chars_bytes, found.rss_peak_bytes) == (None, None)
    assert "No such file" in (found.io_reason or "") and "No such file" in (found.rss_reason or "")


def test_written_bytes_are_counted(tmp_path: Path) -> None:
    before = process_io.read()
    (tmp_path / "x").write_bytes(bytes(100_000))
    after = process_io.read()
    assert before.write_chars_bytes is not None and after.write_chars_bytes is not None
    assert 100_000 <= after.write_chars_bytes - before.write_chars_bytes < 110_000


def test_the_longest_mount_point_wins_and_memory_is_not_durable() -> None:
    assert host.mount_of("/proc/self").filesystem == "proc"
    assert (
        host.Mount("/dev/shm", "tmpfs", "rw").volatile_reason == "no device behind fsync (tmpfs at /dev/shm)"
    )
    assert host.Mount("/", "overlay", "rw,volatile").volatile_reason is not None
    assert host.Mount("/data", "ext4", "rw").volatile_reason is None


def test_the_probe_measures_or_says_why_not(tmp_path: Path) -> None:
    found = host.probe(tmp_path)
    assert found.count == 50 and found.median_s is not None and found.max_s is not None
    assert 0 < found.median_s <= found.max_s
    assert not list(tmp_path.iterdir())
    absent = host.probe(tmp_path / "absent")
    assert absent.median_s is None and "No such file" in (absent.reason or "")


def test_draining_stops_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "dirty_bytes", lambda: 1 << 30)
    monkeypatch.setattr(host.os, "sync", lambda: None)
    found = host.drain("before_leg", limit_s=0.05)
    assert not found.reached and found.seconds >= 0.05


def test_without_a_launcher_a_rank_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(key, raising=False)
    alone = world()
    assert type(alone) is Comm and (alone.rank, alone.size) == (0, 1)
    assert alone.allgather(3) == [3] and alone.any(True) and not alone.any(False)
