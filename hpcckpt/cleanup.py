"""`python -m hpcckpt.cleanup RUN_DIR LEG`: deletes a run's checkpoints where only the nodes themselves reach them.

Started on every node as a rank is, since the driver sees the disk of its own node only. One rank per host works.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcckpt.experiment import Job


def main(arguments: list[str]) -> None:
    """Clear this host's disk; ends the process. The closing line says that it was done."""
    from hpcckpt import experiment
    from hpcckpt.comm import world
    from hpcckpt.rundir import RunDir, read_json
    from hpcckpt.tracing.spans import Trace

    paths = RunDir(arguments[0])
    job: Job = read_json(paths.run, experiment.Job)
    comm = world("poll")
    trace = Trace(paths.leg(arguments[1]).rank_file(comm.rank))
    if comm.first_here() == comm.rank:
        remove_tree(Path(job.scratch))
    comm.settle()
    trace.close("ok")
    comm.leave(0)


def may_stay(job: Job) -> str:
    """Words on what nobody can delete any more, behind the reason why a run ended; empty where scratch is shared."""
    if job.site.get("scratch_shared", True) or job.run.settings.keep_files:
        return ""
    return f"; its checkpoints may stay in {job.scratch} on the nodes' own disks, until its next start there"


def remove_tree(scratch: Path, above: int = 1) -> None:
    """Delete a run's checkpoints, and the campaign's directory above them once it is empty.

    `above`: how many directories above it go with it where they are empty; of a leg, those of run and campaign.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    with suppress(OSError):
        for folder in list(scratch.parents)[:above]:
            folder.rmdir()


if __name__ == "__main__":
    main(sys.argv[1:])
