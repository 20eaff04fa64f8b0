"""What one rank must be able to do. Run by set-up under mpirun, in the new environment: rank_check.py PART.

Rank 0 prints one JSON line about what was found; any failure is an exception or a wrong exit status.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def loaded_mpi() -> list[str]:
    """Every MPI library in this process: more than one means that two MPIs are mixed."""
    maps = Path("/proc/self/maps").read_text().split()
    return sorted({os.path.realpath(word) for word in maps if Path(word).name.startswith("libmpi.so")})


def describe(hvd: Any, total: list[float]) -> dict[str, Any]:
    return {"sum": total, "size": hvd.size(), "threads": hvd.mpi_threads_supported()}


def torch_part() -> dict[str, Any]:
    import horovod.torch as hvd
    import torch

    hvd.init()
    total = hvd.allreduce(torch.ones(3) * (hvd.rank() + 1), op=hvd.Sum).tolist()
    return {**describe(hvd, total), "torch": torch.__version__}


def tensorflow_part() -> dict[str, Any]:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    total = hvd.allreduce(tf.ones(3) * float(hvd.rank() + 1), op=hvd.Sum).numpy().tolist()
    return {**describe(hvd, total), "tensorflow": tf.__version__}


def chainer_part() -> dict[str, Any]:
    import numpy
    from mpi4py import MPI

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from hpcckpt.frameworks import _chainer_shim

    _chainer_shim.apply()
    import chainer
    import chainermn

    if int(numpy.__version__.partition(".")[0]) < 2:
        raise SystemExit(f"numpy is {numpy.__version__}, 2.x is wanted")
    comm = chainermn.create_communicator("naive")
    total = comm.allreduce_obj(comm.rank + 1)
    return {
        "sum": [float(total)] * 3,
        "size": comm.size,
        "threads": MPI.Query_thread() == MPI.THREAD_MULTIPLE,
        "chainer": chainer.__version__,
        "numpy": numpy.__version__,
        "library": MPI.Get_library_version(),
    }


PARTS = {"torch": torch_part, "tensorflow": tensorflow_part, "chainer": chainer_part}


def main(part: str) -> int:
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or 0)
    found = PARTS[part]()
    found["libmpi"] = loaded_mpi()
    problems = []
    if found["size"] != 2 or found["sum"] != [3.0] * 3:
        problems.append(f"two ranks should sum to 3, got {found['sum']} on {found['size']} ranks")
    if len(found["libmpi"]) != 1:
        problems.append(f"one MPI library should be loaded, found {found['libmpi']}")
    if not found["threads"]:
        problems.append("the MPI does not grant MPI_THREAD_MULTIPLE, which Horovod needs")
    if rank == 0:
        print("RANK-CHECK " + json.dumps({"part": part, "problems": problems, **found}), flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
