"""How busy this rank's GPU is, sampled through NVML beside the training. Without a GPU it says why not.

Samples only: what a stall's utilisation is, the analysis works out. NVML counts from the node's first
device whatever CUDA_VISIBLE_DEVICES says, so the device is looked up by that variable's own entry.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from hpcckpt.comm import clock
from hpcckpt.records import Gpu

PERIOD_S = 0.1
"""NVML's own counters are refreshed every 0.17 to 1 s: asking more often shows nothing more."""


class Sampler:
    """Samples from `start` to `stop`; costs nothing where there is no GPU."""

    def __init__(self, local_rank: int) -> None:
        self._samples: list[tuple[int, float]] = []
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._library, self._device, self.reason = _device(local_rank)

    def start(self) -> None:
        """Begin to sample, in a thread of its own."""
        if self._device is not None:
            self._thread = threading.Thread(target=self._sample, name="gpu-sampler", daemon=True)
            self._thread.start()

    def stop(self) -> Gpu:
        """The record of all samples."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        times, busy = [t for t, _ in self._samples], [share for _, share in self._samples]
        return Gpu(t_ns=times, busy=busy, reason=self.reason)

    def _sample(self) -> None:
        while not self._end.wait(PERIOD_S):
            try:
                share = self._library.nvmlDeviceGetUtilizationRates(self._device).gpu / 100
            except self._library.NVMLError as error:
                self.reason = f"NVML: {error}"
                return
            self._samples.append((clock(), share))


def _device(local_rank: int) -> tuple[Any, Any, str | None]:
    """NVML and the handle of this rank's device, or why there is none."""
    try:
        import pynvml
    except ImportError:
        return None, None, "no GPU: pynvml is not installed"
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        if not count:
            return pynvml, None, "no GPU: NVML finds no device"
        return pynvml, _handle(pynvml, local_rank, count), None
    except pynvml.NVMLError as error:
        return pynvml, None, f"no GPU: {error}"


def _handle(library: Any, local_rank: int, count: int) -> Any:
    visible = [entry for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry]
    chosen = visible[local_rank % len(visible)] if visible else str(local_rank % count)
    if chosen.isdigit():
        return library.nvmlDeviceGetHandleByIndex(int(chosen))
    return library.nvmlDeviceGetHandleByUUID(chosen.encode())
