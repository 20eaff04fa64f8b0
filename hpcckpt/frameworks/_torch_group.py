"""torch's process groups over the ranks that MPI started. No fixed port, no address from outside."""

from __future__ import annotations

import os
from typing import Any

from hpcckpt.comm import Comm

_checkpoints: list[Any] = []
"""The group of its own for checkpoints, once it is open."""


def open_group(comm: Comm, device: Any) -> None:
    """Open the default group, unless it is open: gloo, and NCCL for tensors on GPUs."""
    import torch.distributed as dist

    if dist.is_initialized():
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=_store(comm), rank=comm.rank, world_size=comm.size)


def _store(comm: Comm) -> Any:
    """Rank 0 listens on a port that the system chose; the others hear of it over MPI."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    one_host = len(set(comm.hosts())) == 1
    if one_host:  # gloo looks its own address up by host name, which not every machine can
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    host = "127.0.0.1" if one_host else comm.bcast(comm.host)
    if comm.rank == 0:
        store = TCPStore(host, 0, comm.size, is_master=True, wait_for_workers=False)
        comm.bcast(store.port)
        return store
    return TCPStore(host, comm.bcast(None), comm.size, is_master=False)


def checkpoint_group(comm: Comm, device: Any) -> Any:
    """A gloo group beside the default one: a save behind the training must not mix with its collectives."""
    import torch.distributed as dist

    open_group(comm, device)
    if not _checkpoints:
        _checkpoints.append(dist.new_group(backend="gloo"))
    return _checkpoints[0]


def equalise(module: Any) -> None:
    """Rank 0's parameters and buffers, on every rank."""
    import torch.distributed as dist

    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.detach(), src=0)


def close_group(comm: Comm) -> None:
    """Leave together: rank 0 holds the store that the others still look at."""
    import torch.distributed as dist

    if dist.is_initialized():
        _checkpoints.clear()
        comm.settle()
        dist.destroy_process_group()
