"""`python -m hpcckpt.rank RUN_DIR LEG`: one rank of one leg. Puts the parts together; measures nothing itself.

Exit status: 0 done, 1 failed (the trace's closing line says why), 75 stopped on request,
143 ended by a signal. Every way out but SIGKILL leaves a closing line.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcckpt.comm import Comm
    from hpcckpt.experiment import Job
    from hpcckpt.faults import Faults
    from hpcckpt.leg import Leg
    from hpcckpt.planting import Fault
    from hpcckpt.restart.begin import Birth
    from hpcckpt.rundir import LegDir, RunDir
    from hpcckpt.tracing.spans import Trace

STOPPED = 75  # EX_TEMPFAIL: go on later
TERMINATED = 143
ENDINGS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Run the rank; ends the process."""
    born = time.monotonic_ns()
    _leave_tracer_to_this_process()
    _die_with_launcher()
    threads = _limit_threads()
    run_dir, leg_name = Path(arguments[0]), arguments[1]
    # Imported only now: NumPy's library takes its thread count when it is loaded.
    from hpcckpt.comm import world
    from hpcckpt.experiment import Job
    from hpcckpt.rundir import RunDir, read_json
    from hpcckpt.tracing.spans import Trace

    paths = RunDir(run_dir)
    job: Job = read_json(paths.run, Job)
    _set_switches(job)
    comm = world(job.run.settings.barrier)
    faults = planted(job, comm.rank, leg_name)
    trace = Trace(paths.leg(leg_name).rank_file(comm.rank), faults.at)
    faults.before_kill = partial(_mark_death, job, paths.leg(leg_name), trace)
    _close_on_signal(trace)
    from hpcckpt.leg import Stopped

    try:
        leg = compose(job, leg_name, comm, trace, faults, paths.stop, threads)
        measure(leg, job, leg_name, paths, born)
    except Stopped:
        trace.close("stopped", "stop file")
        leg.framework.close()
        comm.leave(STOPPED)
    except BaseException as error:
        trace.close("failed", f"{type(error).__name__}: {error}")
        traceback.print_exc()
        sys.stderr.flush()
        comm.abandon(1)
    trace.close("ok")
    leg.framework.close()
    comm.leave(0)


def _set_switches(job: Job) -> None:
    """What a framework's determinism needs of MPI and of libraries: both read it when they are loaded."""
    from hpcckpt import registry

    adapter = registry.load("hpcckpt.frameworks", job.run.point.framework)
    os.environ.update(adapter.environment(job.run.point.determinism))


def _mark_death(job: Job, leg: LegDir, trace: Trace, fault: Fault) -> None:
    """Where it is the death that a test of restart is about, leave when it came and in what."""
    from hpcckpt.restart.spec import death

    restart = job.run.settings.restart
    if restart is not None and restart.kill is not None and fault == death(restart, job.run.point.interval_steps):
        leg.mark_death(trace.inside_now)


def planted(job: Job, rank: int, leg_name: str) -> Faults:
    """The faults of this rank. A leg that restores has those of `restored`; a test of restart may kill."""
    from hpcckpt.faults import Faults
    from hpcckpt.planting import RESTORED
    from hpcckpt.restart.spec import death, restores

    restart = job.run.settings.restart
    kills = [death(restart, job.run.point.interval_steps)] if restart and restart.kill is not None else []
    name = RESTORED if restores(leg_name) else leg_name
    return Faults([*job.run.faults, *kills], rank, name)


def _leave_tracer_to_this_process() -> None:
    """Children of this process must not write a log of their own in its place."""
    os.environ.pop("LD_PRELOAD", None)


def _die_with_launcher() -> None:
    """When the launcher is killed, this rank gets SIGTERM and writes its closing line."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)  # before any thread starts, so that all inherit it
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(TERMINATED)


def _limit_threads() -> int:
    """Cores / ranks of this host, at least one: oversubscribed ranks slow each other tenfold otherwise."""
    here = os.environ.get("HPCCKPT_RANKS_HERE") or os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") or "1"
    threads = max(1, len(os.sched_getaffinity(0)) // int(here))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    return threads


def _close_on_signal(trace: Trace) -> None:
    """A thread takes the signals, so that a rank stuck in a collective still writes its closing line."""

    def wait() -> None:
        received = signal.sigwait(ENDINGS)
        trace.close("terminated", signal.Signals(received).name)
        os._exit(TERMINATED)

    threading.Thread(target=wait, name="signals", daemon=True).start()


def compose(
    job: Job, leg_name: str, comm: Comm, trace: Trace, faults: object, stop: Path, threads: int
) -> Leg:
    """Build the leg from the run's names, write the first records, and start the framework."""
    from hpcckpt import data, registry
    from hpcckpt.comm import clock
    from hpcckpt.leg import Leg
    from hpcckpt.restart.spec import saves_or_restores
    from hpcckpt.strategies.base import Topology

    point, settings = job.run.point, job.run.settings
    node = f"virtual{comm.rank // point.ranks_per_node:03d}" if job.virtual_nodes else comm.host
    images = data.load(settings.data, settings.seed)
    model = registry.load("hpcckpt.models", point.model)
    framework = registry.load("hpcckpt.frameworks", point.framework)(model, settings, comm, images, threads)
    framework.determinism = point.determinism
    framework.start()
    strategy = None
    if saves_or_restores(leg_name):
        format_ = registry.load("hpcckpt.formats", point.format)(framework)
        topology = Topology(comm.size, point.ranks_per_node)
        strategy = registry.load("hpcckpt.strategies", point.strategy)(
            framework, format_, comm, topology, point.durable
        )
    leg = Leg(
        run=job.run,
        comm=comm,
        trace=trace,
        faults=faults,  # type: ignore[arg-type]
        framework=framework,
        strategy=strategy,
        root=Path(job.scratch) / leg_name,
        node=node,
        reader=0 if job.site.get("scratch_shared", True) else comm.first_here(),
        stop_requested=stop.exists if comm.rank == 0 else lambda: False,
    )
    _introduce(leg, job, leg_name, images.name, threads, clock())
    return leg


def _introduce(leg: Leg, job: Job, leg_name: str, data_name: str, threads: int, now: int) -> None:
    from hpcckpt.comm import boot_id
    from hpcckpt.records import SCHEMA_VERSION, Start

    comm = leg.comm
    leg.trace.add(
        Start(
            schema_version=SCHEMA_VERSION,
            t_ns=now,
            run_id=job.run.run_id,
            leg=leg_name,
            rank=comm.rank,
            size=comm.size,
            node=leg.node,
            virtual_node=job.virtual_nodes,
            host=comm.host,
            pid=os.getpid(),
            boot_id=boot_id(),
            cores=len(os.sched_getaffinity(0)),
            ranks_on_host=comm.hosts().count(comm.host),
            threads=threads,
            thread_level=comm.thread_level,
            versions=leg.framework.versions(),
            data=data_name,
            parameters=leg.framework.parameter_count(),
            barrier=comm.kind,
        )
    )
    leg.trace.flush()


def measure(leg: Leg, job: Job, leg_name: str, run_dir: RunDir, born: int) -> None:
    """The leg from its preparations to its inventory."""
    from hpcckpt import host
    from hpcckpt.cleanup import remove_tree
    from hpcckpt.comm import clock
    from hpcckpt.restart.begin import Birth
    from hpcckpt.tracing.gpu import Sampler

    comm, trace, settings = leg.comm, leg.trace, job.run.settings
    birth = Birth(born, clock())
    first_here = comm.first_here() == comm.rank
    _align(leg)
    _make_room(leg, job, leg_name, first_here and not _goes_on(job, run_dir.leg(leg_name)), first_here)
    leg.beacon("start")
    _begin(leg, job, leg_name, run_dir, birth)
    gpu = Sampler(comm.hosts()[: comm.rank].count(comm.host))
    gpu.start()
    if leg.first_step <= leg.final_step:
        leg.train()
    leg.finish_background()
    trace.add(gpu.stop())
    if first_here and leg.strategy:
        trace.add(host.drain("after_last_save", settings.drain_limit_s))
    leg.beacon("end")
    _align(leg)
    _list_files(leg, run_dir.leg(leg_name))
    comm.settle()
    if first_here and not (job.site.get("scratch_shared", True) or settings.keep_files or settings.restart):
        remove_tree(leg.root, above=2)  # the driver reaches the disk of its own node only


def _align(leg: Leg) -> None:
    from hpcckpt.comm import clock
    from hpcckpt.records import Clock

    offset, error, method = leg.comm.clock_offset()
    leg.trace.add(Clock(t_ns=clock(), offset_ns=offset, error_ns=error, method=method))


def _goes_on(job: Job, paths: LegDir) -> bool:
    """Whether the leg's checkpoints of an earlier launch are wanted. Legs of a restart test begin anew."""
    return job.run.settings.restart is None and bool(paths.earlier())


def _make_room(leg: Leg, job: Job, leg_name: str, clear: bool, first_here: bool) -> None:
    """The directory of the leg's checkpoints, on a host that is at rest; what is asked once per host is asked here."""
    from hpcckpt import host
    from hpcckpt.restart.spec import restores

    if clear:
        shutil.rmtree(leg.root, ignore_errors=True)  # of a run that ended badly; a node's own disk only nodes can clear
    leg.comm.settle()
    if first_here:
        leg.root.mkdir(parents=True, exist_ok=True)
        if leg_name == job.run.legs[0]:
            leg.trace.add(host.probe(leg.root))
        if not restores(leg_name):  # a restart is timed, and waits for nothing
            leg.trace.add(host.drain("before_leg", job.run.settings.drain_limit_s))
    leg.comm.settle()


def _begin(leg: Leg, job: Job, leg_name: str, run_dir: RunDir, birth: Birth) -> None:
    """Where training begins: at its beginning, or with a checkpoint."""
    from hpcckpt.continuation import go_on
    from hpcckpt.restart.begin import prepare

    if job.run.settings.restart is None:
        go_on(leg, run_dir.leg(leg_name))
    else:
        prepare(leg, job, leg_name, run_dir, birth)


def _list_files(leg: Leg, paths: LegDir) -> None:
    from hpcckpt import inventory

    rows = leg.gather_rows()
    if rows is not None and leg.strategy:
        inventory.write(paths.inventory, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
