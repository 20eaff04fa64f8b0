"""What a rank records of machine resources: pages in memory, GPU samples, and the time of a read alone."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcckpt.leg import _Timed
from hpcckpt.tracing import gpu
from hpcckpt.tracing.residency import cached_fraction


def test_pages_just_written_are_in_memory(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(1 << 20))
    assert cached_fraction([tmp_path / "a"]) == 1.0


def test_pages_that_were_dropped_are_not(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(bytes(1 << 20))
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if "tmpfs" in subprocess.run(["stat", "-fc", "%T", tmp_path], capture_output=True, text=True).stdout:
        pytest.skip("tmpfs keeps its pages: nothing can be dropped")
    assert cached_fraction([file]) == 0.0
    (tmp_path / "b").write_bytes(bytes(1 << 20))
    assert cached_fraction([file, tmp_path / "b"]) == 0.5


def test_nothing_to_ask_about_has_no_fraction(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert cached_fraction([]) is None
    assert cached_fraction([tmp_path / "empty"]) is None
    assert cached_fraction([tmp_path / "missing"]) is None


def test_a_timed_iterator_leaves_its_users_time_out() -> None:
    def slow() -> Iterator[int]:
        for item in range(3):
            time.sleep(0.02)
            yield item

    begin = time.monotonic_ns()
    timed = _Timed(slow())
    assert [time.sleep(0.1) or item for item in timed] == [0, 1, 2]
    assert timed.spent_ns >= 60_000_000
    assert time.monotonic_ns() - begin - timed.spent_ns >= 300_000_000  # the user's


class _Nvml:
    """A driver with two devices, the second of which is at 40 %."""

    NVMLError = RuntimeError

    class Rates:
        gpu = 40

    def nvmlDeviceGetUtilizationRates(self, device: object) -> object:  # noqa: N802
        assert device == "device"
        return self.Rates

    @staticmethod
    def nvmlDeviceGetHandleByIndex(index: int) -> str:  # noqa: N802
        return f"index {index}"

    @staticmethod
    def nvmlDeviceGetHandleByUUID(uuid: bytes) -> str:  # noqa: N802
        return f"uuid {uuid.decode()}"


def test_samples_are_fractions_on_the_ranks_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_device", lambda rank: (_Nvml(), "device", None))
    monkeypatch.setattr(gpu, "PERIOD_S", 0.01)
    sampler = gpu.Sampler(0)
    begin = time.monotonic_ns()
    sampler.start()
    time.sleep(0.1)
    record = sampler.stop()
    assert record.reason is None
    assert set(record.busy) == {0.4}
    assert len(record.t_ns) == len(record.busy) > 0
    assert all(begin < t < time.monotonic_ns() for t in record.t_ns)


def test_a_machine_without_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_device", lambda rank: (None, None, "no GPU: none here"))
    sampler = gpu.Sampler(0)
    sampler.start()
    record = sampler.stop()
    assert (record.t_ns, record.busy, record.reason) == ([], [], "no GPU: none here")


@pytest.mark.parametrize(
    ("visible", "rank", "found"),
    [("", 1, "index 1"), ("3,2", 1, "index 2"), ("GPU-ab", 0, "uuid GPU-ab"), ("", 5, "index 1")],
)
def test_the_device_is_the_ranks_own(monkeypatch: pytest.MonkeyPatch, visible: str, rank: int, found: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu._handle(_Nvml, rank, 2) == found
