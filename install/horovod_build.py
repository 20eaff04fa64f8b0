"""Horovod: built from PyPI's unmodified source with our compiler settings, checked, and kept."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

from install import progress, sources
from install.context import Context, compiler_tag, machine_tag, python_tag
from install.errors import SetupError
from install.mpi import MACHINE

RECIPE = ("horovod.cmake", "FindPytorch.cmake", "cmake-for-horovod")
BYTES_PER_JOB = 2 * 1024**3
"""Memory that one compiler process may take."""
SYSTEM_LIBRARIES = ("/lib", "/usr/lib")


def recipe_digest(root: Path) -> str:
    content = b"".join((root / "install" / name).read_bytes() for name in RECIPE)
    return hashlib.sha256(content).hexdigest()[:8]


def key_of(context: Context) -> sources.Key:
    return sources.Key(
        package=f"horovod-{context.pins['horovod']}",
        python=python_tag(),
        machine=machine_tag(),
        compiler=compiler_tag(os.environ),
        mpi=context.mpi.identity(),
        torch=sources.installed_version(context, "torch"),
        tensorflow=sources.installed_version(context, "tensorflow-cpu"),
        recipe=recipe_digest(context.root),
    )


def available_bytes(meminfo: str) -> int:
    """Memory that may be used without swapping; enough for one job where the kernel does not say."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(match.group(1)) * 1024 if match else BYTES_PER_JOB


def build_jobs(cores: int, free_bytes: int) -> int:
    return max(1, min(cores, free_bytes // BYTES_PER_JOB))


def build_environ(context: Context) -> dict[str, str]:
    """Switches of Horovod's own build: MPI only, PyTorch and TensorFlow, on CPUs."""
    jobs = build_jobs(len(os.sched_getaffinity(0)), available_bytes(Path("/proc/meminfo").read_text()))
    library = Path(sources.probe_mpi(context)[0]).parent
    fixed_place = context.mpi.kind == MACHINE and not str(library).startswith(SYSTEM_LIBRARIES)
    return {
        **context.environ(),
        "MAKEFLAGS": f"-j{jobs}",
        "HOROVOD_CMAKE": str(context.root / "install" / "cmake-for-horovod"),
        "HPCCKPT_MPICXX": context.mpi.mpicxx,
        "HPCCKPT_MPI_RPATH": str(library) if fixed_place else "",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITHOUT_GLOO": "1",
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITHOUT_NVTX": "1",
    }


def missing_libraries(wheel: Path) -> list[str]:
    """Which of Horovod's two libraries the wheel lacks: its setup.py drops a part without an error."""
    names = zipfile.ZipFile(wheel).namelist()
    parts = ("torch", "tensorflow")
    return [p for p in parts if not any(n.startswith(f"horovod/{p}/") and n.endswith(".so") for n in names)]


def install(context: Context) -> sources.Key:
    """Install Horovod from the cache or from its source. A kept wheel that does not load is built again."""
    key = key_of(context)
    wheel = sources.cached(context, key)
    if wheel is not None:
        print(f"  horovod: wheel from {wheel.parent}")
        sources.install_wheel(context, wheel)
        if not _load_errors(context):
            return key
        print("  horovod: the kept wheel does not load; building it again")
        shutil.rmtree(wheel.parent)
    options = ["-v", "--no-build-isolation", "--no-cache-dir"]
    wheel = sources.build(context, key, options, build_environ(context), progress.watch_cmake)
    missing = missing_libraries(wheel)
    if missing:
        shutil.rmtree(wheel.parent)
        log = context.logs / "build-horovod.log"
        raise SetupError(f"horovod: built without {' and '.join(missing)}; see {log}")
    sources.install_wheel(context, wheel)
    errors = _load_errors(context)
    if errors:
        raise SetupError(f"horovod: built, but does not load:\n{errors}")
    return key


def _load_errors(context: Context) -> str:
    """Empty, or the end of what Python says when Horovod's libraries are loaded."""
    for part in ("horovod.torch", "horovod.tensorflow"):
        environ = {**context.environ(), "TF_CPP_MIN_LOG_LEVEL": "3"}
        result = subprocess.run(
            [str(context.python), "-c", f"import {part}"], capture_output=True, text=True, env=environ
        )
        if result.returncode:
            return f"{part}: {result.stderr[-800:]}"
    return ""
