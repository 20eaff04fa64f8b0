"""The packages that are built here from PyPI's sources, and the cache that keeps their wheels.

A wheel is found again by a key that names all that its binary depends on; a build goes to a
temporary folder first, so an interrupted one leaves nothing behind that could be taken for a wheel.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from install import progress
from install.context import Context, machine_tag, python_tag
from install.errors import SetupError

PROBE = """\
#include <mpi.h>
#include <stdio.h>
#include <string.h>
int main(void) {
  char text[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "", line[4096];
  int length = 0;
  MPI_Get_library_version(text, &length);
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps))
    if (strstr(line, "/libmpi.so")) { printf("%s", strchr(line, '/')); break; }
  printf("%s\\n", text);
  return 0;
}
"""
ASK_MPI4PY = """\
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version())
"""


@dataclass(frozen=True)
class Key:
    """All that a wheel built here depends on."""

    package: str
    python: str
    machine: str
    compiler: str = ""
    mpi: str = ""
    torch: str = ""
    tensorflow: str = ""
    recipe: str = ""

    def folder(self) -> str:
        parts = {"": self.package, "mpi-": self.mpi, "torch-": self.torch, "tf-": self.tensorflow}
        tail = {"": self.python, "cxx-": self.compiler, "recipe-": self.recipe}
        words = [prefix + value for table in (parts, tail) for prefix, value in table.items() if value]
        return "_".join([*words, self.machine]).replace("/", "-")


def installed_version(context: Context, package: str) -> str:
    """The version that lies in the environment, build label included (torch 2.13.0+cpu)."""
    pattern = f"{package.replace('-', '_')}-*.dist-info"
    for found in sorted(context.venv.glob(f"lib/python3*/site-packages/{pattern}")):
        return found.name.removesuffix(".dist-info").rpartition("-")[2]
    raise SetupError(f"{package}: not in {context.venv}; remove that folder and run set-up again")


def cached(context: Context, key: Key) -> Path | None:
    return next(iter(sorted((context.cache / key.folder()).glob("*.whl"))), None)


def build(
    context: Context, key: Key, options: list[str], environ: Mapping[str, str], watch: progress.Watch
) -> Path:
    """Build one package from its source and keep the wheel. Raises SetupError naming the log."""
    name, _, version = key.package.partition("-")
    context.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=context.cache, prefix=".building-") as folder:
        what = ["--no-deps", "--no-binary", name, f"{name}=={version}"]
        command = context.pip("wheel", "-w", folder, *options, *what)
        log = context.logs / f"build-{name}.log"
        progress.run(command, f"{name} {version}: building", log, environ, watch)
        built = next(Path(folder).glob("*.whl"))
        kept = context.cache / key.folder() / built.name
        kept.parent.mkdir(parents=True, exist_ok=True)
        os.replace(built, kept)
    return kept


def install_wheel(context: Context, wheel: Path) -> None:
    name = wheel.name.partition("-")[0]
    command = context.pip("install", "--no-deps", "--force-reinstall", str(wheel))
    progress.run(command, f"{name}: installing", context.logs / f"install-{name}.log", context.environ())


def install_chainer(context: Context) -> None:
    key = Key(f"chainer-{context.pins['chainer']}", python_tag(), machine_tag())
    wheel = cached(context, key)
    if wheel is None:
        wheel = build(context, key, ["--no-build-isolation"], context.environ(), lambda line: None)
    install_wheel(context, wheel)


def probe_mpi(context: Context) -> tuple[str, str]:
    """What the chosen mpicc links: path of the MPI library, and what the library says of itself."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "probe.c", Path(folder) / "probe"
        source.write_text(PROBE)
        for command in ([context.mpi.mpicc, str(source), "-o", str(program)], [str(program)]):
            result = subprocess.run(command, capture_output=True, text=True, env=context.environ())
            if result.returncode:
                raise SetupError(
                    f"{context.mpi.mpicc}: a three-line MPI program cannot be built and run: "
                    f"{(result.stderr or result.stdout).strip()[-400:]}",
                    2,
                )
    path, _, version = result.stdout.partition("\n")
    return path, version.strip("\0\n ")


def fit_mpi4py(context: Context) -> None:
    """Make sure that mpi4py uses the chosen MPI: its wheel where that one does, else built against it."""
    _, wanted = probe_mpi(context)
    if _mpi4py_library(context) == wanted:
        return
    key = Key(f"mpi4py-{context.pins['mpi4py']}", python_tag(), machine_tag(), mpi=context.mpi.identity())
    wheel = cached(context, key)
    if wheel is None:
        environ = {**context.environ(), "MPICC": context.mpi.mpicc}
        wheel = build(context, key, ["--no-cache-dir"], environ, lambda line: None)
    install_wheel(context, wheel)
    found = _mpi4py_library(context)
    if found != wanted:
        raise SetupError(
            f"mpi4py uses {found!r}, the chosen MPI is {wanted!r}; unset MPI4PY_LIBMPI and MPI4PY_MPIABI"
        )


def _mpi4py_library(context: Context) -> str:
    command = [str(context.python), "-c", ASK_MPI4PY]
    result = subprocess.run(command, capture_output=True, text=True, env=context.environ())
    return result.stdout.strip("\0\n ")
