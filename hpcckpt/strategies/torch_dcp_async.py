"""torch.distributed.checkpoint.async_save: the state is copied at once, and written while training goes on.

The stall is the copy (`gather`) and the wait for a save that is still going on (`wait_inside`);
planning, writing, syncing and commit lie in the background, on a thread of DCP's, and talk through a
process group of their own: on the training's group their collectives would mix with its.
"""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

from hpcckpt.comm import clock
from hpcckpt.errors import RunError
from hpcckpt.formats.base import Phase
from hpcckpt.records import GATHER, WAIT_INSIDE
from hpcckpt.strategies._dcp import DcpStrategy, Phases, differs, planner, writer
from hpcckpt.strategies.base import Written


class TorchDcpAsync(DcpStrategy):
    asynchronous = True
    _pending: tuple[Any, Any, Event] | None = None
    """The save that goes on, its planner, and whether its end is recorded."""

    def save(self, directory: Path, phase: Phase) -> list[Written]:
        from torch.distributed.checkpoint.state_dict_saver import async_save

        with phase(WAIT_INSIDE):
            self.finish()
        with phase(GATHER):
            own = planner()
            future = async_save(
                self.tensors(),
                storage_writer=writer(directory, self.durable, Phases(None)),
                planner=own,
                process_group=self.group,
            )
        recorded = self._record_end(future)
        self._pending = (future, own, recorded)
        return self.planned(directory)

    def _record_end(self, future: Any) -> Event:
        begin, recorded = clock(), Event()

        def record(_: Any) -> None:
            self.background.append((begin, clock()))
            recorded.set()

        future.add_done_callback(record)
        return recorded

    def finish(self) -> None:
        if self._pending is None:
            return
        future, own, recorded = self._pending
        self._pending = None
        future.result()
        recorded.wait()  # a result is there a moment before the callbacks are called
        if reason := differs(own, self.job_plan, self.comm.rank):
            raise RunError(f"torch_dcp_async: {reason}")
