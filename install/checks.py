"""What a machine must bring before set-up: found out at once, and named all together."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path

from install.errors import SetupError

PYTHONS = ((3, 12), (3, 11))
NEEDED_BYTES = 6 * 1024**3
"""The environment itself (3.5 GB with CPU builds of PyTorch), pip's downloads and Horovod's build tree."""

CXX20_TEST = """\
#include <bit>
#include <concepts>
template <std::integral T> T same(T x) { return x; }
int main() { return same(0); }
"""


def python_for(version: tuple[int, int], which: Callable[[str], str | None] = shutil.which) -> str | None:
    """The interpreter to go on with: None when this one is right. Raises SetupError if there is none."""
    if version in PYTHONS:
        return None
    for major, minor in PYTHONS:
        found = which(f"python{major}.{minor}")
        if found:
            return found
    raise SetupError(
        f"Python 3.11 or 3.12 is needed; this is Python {version[0]}.{version[1]} and there is no python3.12 "
        "or python3.11 on PATH: install one, or name one by `make setup PYTHON=/path/to/python3.11`",
        exit_code=2,
    )


def python_package() -> str:
    """Stem of the Debian packages of this interpreter: python3, or python3.12 where it is not the default."""
    default = Path("/usr/bin/python3")
    same = default.exists() and default.resolve() == Path(sys.executable).resolve()
    return "python3" if same or sys.base_prefix != "/usr" else f"python3.{sys.version_info.minor}"


def missing_tools(
    which: Callable[[str], str | None] = shutil.which,
    has_module: Callable[[str], bool] = lambda name: importlib.util.find_spec(name) is not None,
    include: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> list[str]:
    """What a build needs and this machine lacks, in words."""
    compiler = environ.get("CXX", "g++")
    header = Path(include or sysconfig.get_path("include")) / "Python.h"
    version = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    found = {
        "make": which("make") is not None,
        compiler: which(compiler.split()[0]) is not None,
        f"the venv module of {version} (venv, ensurepip)": has_module("venv") and has_module("ensurepip"),
        f"Python.h of {version}": header.is_file(),
    }
    return [what for what, present in found.items() if not present]


def apt_line() -> str:
    """The one line that a bare Debian machine needs before set-up."""
    stem = python_package()
    return f"apt-get install -y make g++ {stem}-venv {stem}-dev"


def require_tools(missing: list[str]) -> None:
    """Raise SetupError naming everything that is missing, and the line that brings it."""
    if missing:
        raise SetupError(
            f"missing: {', '.join(missing)}. On Debian or Ubuntu, as root: {apt_line()}. "
            "Elsewhere load or ask for the same tools; then run the command again.",
            exit_code=2,
        )


def require_cxx20(compiler: str) -> None:
    """Raise SetupError unless the compiler takes C++20, which PyTorch's headers are written in."""
    command = [*compiler.split(), "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    result = subprocess.run(command, input=CXX20_TEST, text=True, capture_output=True)
    if result.returncode:
        raise SetupError(f"{compiler}: cannot compile C++20 (GCC 11 can); name another compiler by CXX=", 2)


def require_space(place: Path, free_bytes: int | None = None, needed_bytes: int = NEEDED_BYTES) -> None:
    """Raise SetupError unless there is room for the environment."""
    free = shutil.disk_usage(place).free if free_bytes is None else free_bytes
    if free < needed_bytes:
        raise SetupError(
            f"{place}: set-up needs about {needed_bytes} bytes, {free} are free; make room, "
            "or put the environment elsewhere with HPCCKPT_VENV=DIR",
            exit_code=2,
        )
