"""torch.distributed.checkpoint.save: every rank writes some tensors, as DCP's planner spreads them.

Each generation has a directory of its own. Saving over an older generation is what DCP allows and
what mixes steps without an error where a rank dies in between.
"""

from __future__ import annotations

from pathlib import Path

from hpcckpt.errors import RunError
from hpcckpt.formats.base import Phase
from hpcckpt.records import GATHER, WAIT_INSIDE
from hpcckpt.strategies._dcp import DcpStrategy, Phases, differs, planner, writer
from hpcckpt.strategies.base import Written


class TorchDcp(DcpStrategy):
    def save(self, directory: Path, phase: Phase) -> list[Written]:
        from torch.distributed.checkpoint.state_dict_saver import save

        with Phases(phase).first(GATHER) as phases:
            tensors = self.tensors()
            phases.to(WAIT_INSIDE)
            own = planner()
            save(
                tensors,
                storage_writer=writer(directory, self.durable, phases),
                planner=own,
                process_group=self.group,
            )
        if reason := differs(own, self.job_plan, self.comm.rank):
            raise RunError(f"torch_dcp: {reason}")
        return self.planned(directory)
