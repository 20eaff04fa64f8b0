"""Ranks, barriers and clocks. The only module that imports mpi4py.

Barriers poll: a rank that spins in MPI takes the core away from the rank that writes the
checkpoint, wherever ranks outnumber cores. `Alone` stands in where there is one process and no MPI.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from hpcckpt.errors import RunError

POLL_S = 0.0001
"""Sleep between two looks at a pending collective; with timer slack a look comes at most every 0.2 ms."""
PING_PONGS = 100

BarrierKind = Literal["poll", "spin", "none"]


def clock() -> int:
    """Nanoseconds of this host's CLOCK_MONOTONIC: the clock of every record."""
    return time.monotonic_ns()


def boot_id() -> str:
    """Identity of the running kernel: ranks that share it share the clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"unknown-{socket.gethostname()}"


class Comm:
    """What a rank needs of the others. This base is the single-process stand-in."""

    rank = 0
    size = 1
    thread_level = "none"

    def __init__(self, kind: BarrierKind = "poll") -> None:
        self.kind = kind
        self.host = socket.gethostname()
        self._hosts: list[str] | None = None

    def hosts(self) -> list[str]:
        """Host of every rank, by rank. The first call is a collective of all ranks."""
        if self._hosts is None:
            self._hosts = self.allgather(self.host)
        return self._hosts

    def first_here(self) -> int:
        """The lowest rank on this rank's host. A collective as `hosts` is."""
        return self.hosts().index(self.host)

    def barrier(self) -> None:
        """Return when every rank has called it; waits in the way that `kind` names."""

    def settle(self) -> None:
        """A barrier that is always there, also where the measured ones are left out."""

    def allgather(self, value: Any) -> list[Any]:
        """`value` of every rank, by rank. Not for timed code: it may spin."""
        return [value]

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        """`value` of every rank on `root`, None elsewhere."""
        return [value]

    def gather_within(self, value: Any, root: int, division: str) -> list[Any] | None:
        """`value` of every rank that names the same `root`, on that root; None elsewhere.

        A `division` of the ranks among roots has a name, and is the same in all calls that name it. Its first call is
        a collective of all ranks; later ones are each group's own.
        """
        return [value]

    def bcast(self, value: Any, root: int = 0) -> Any:
        """`value` of `root`, on every rank."""
        return value

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on any rank; polls."""
        return flag

    def mean(self, array: np.ndarray) -> np.ndarray:
        """Mean of `array` over the ranks."""
        return array

    def clock_offset(self) -> tuple[int, int, str]:
        """(offset, error, method): rank 0's time = own time + offset, within +- error; nanoseconds."""
        return 0, 0, "same_boot"

    def leave(self, code: int) -> NoReturn:
        """End this process in good order, without the second that a framework's modules take to be torn down."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def abandon(self, code: int) -> NoReturn:
        """Leave at once; the launcher sees the code and ends the other ranks."""
        os._exit(code)


class MpiComm(Comm):
    """MPI_COMM_WORLD. Asks for THREAD_MULTIPLE, which Horovod's thread needs, and fails if it gets less."""

    def __init__(self, kind: BarrierKind = "poll") -> None:
        super().__init__(kind)
        import mpi4py

        mpi4py.rc.thread_level = "multiple"
        from mpi4py import MPI

        if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
            raise RunError(
                "MPI gives no THREAD_MULTIPLE, which Horovod's thread needs; use an MPI built with threads"
            )
        self._mpi = MPI
        self._world = MPI.COMM_WORLD.Dup()
        self._groups: dict[str, Any] = {}
        self.thread_level = "multiple"
        self.rank = self._world.Get_rank()
        self.size = self._world.Get_size()
        self.host = MPI.Get_processor_name()
        self.library = MPI.Get_library_version().split("\0")[0].split(",")[0].strip()

    def leave(self, code: int) -> NoReturn:
        self._mpi.Finalize()
        super().leave(code)

    def barrier(self) -> None:
        if self.kind == "poll":
            self._wait(self._world.Ibarrier())
        elif self.kind == "spin":
            self._world.Barrier()

    def settle(self) -> None:
        self._wait(self._world.Ibarrier())

    @staticmethod
    def _wait(request: Any) -> None:
        while not request.Test():
            time.sleep(POLL_S)

    def allgather(self, value: Any) -> list[Any]:
        gathered: list[Any] = self._world.allgather(value)
        return gathered

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        gathered: list[Any] | None = self._world.gather(value, root=root)
        return gathered

    def gather_within(self, value: Any, root: int, division: str) -> list[Any] | None:
        if division not in self._groups:
            self._groups[division] = self._world.Split(color=root, key=0 if self.rank == root else 1 + self.rank)
        gathered: list[Any] | None = self._groups[division].gather(value, root=0)
        return gathered

    def bcast(self, value: Any, root: int = 0) -> Any:
        return self._world.bcast(value, root=root)

    def any(self, flag: bool) -> bool:
        mine, total = np.array([flag], dtype=np.int32), np.zeros(1, dtype=np.int32)
        self._wait(self._world.Iallreduce(mine, total, op=self._mpi.MAX))
        return bool(total[0])

    def mean(self, array: np.ndarray) -> np.ndarray:
        total = np.empty_like(array)
        self._world.Allreduce(array, total)
        return total / self.size

    def clock_offset(self) -> tuple[int, int, str]:
        boots = self.allgather(boot_id())
        if len(set(boots)) == 1:
            return 0, 0, "same_boot"
        mine = (0, 0)
        for peer in range(1, self.size):
            if self.rank == 0:
                self._serve(peer)
            elif self.rank == peer:
                mine = self._ask()
            self._world.Barrier()
        return (*mine, "ping_pong")

    def _serve(self, peer: int) -> None:
        for _ in range(PING_PONGS):
            self._world.recv(source=peer)
            self._world.send(clock(), dest=peer)

    def _ask(self) -> tuple[int, int]:
        """The exchange with the shortest round trip bounds the error by half of it."""
        best: tuple[int, int] | None = None
        for _ in range(PING_PONGS):
            sent = clock()
            self._world.send(None, dest=0)
            theirs = self._world.recv(source=0)
            back = clock()
            error = (back - sent + 1) // 2
            if best is None or error < best[1]:
                best = (theirs - (sent + back) // 2, error)
        assert best is not None
        return best


def world(kind: BarrierKind = "poll") -> Comm:
    """The ranks that the launcher started, or the single-process stand-in where none did."""
    launched = any(
        key in os.environ for key in ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
    )
    return MpiComm(kind) if launched else Comm(kind)
