"""The steps of a set-up, each done once: a stamp of what a step depends on tells whether it is done.

A step's stamp includes the stamps before it. Stamps are written after each step, so a set-up that
was interrupted goes on where it stopped.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from install import checks, horovod_build, lockfile, steps
from install.context import Context, python_tag
from install.errors import SetupError

RECORD_VERSION = 1
PROJECT_FILES = ("setup.py", "pyproject.toml", "hpcckpt/tracing/*.[ch]")
CHECK_FILES = ("install/rank_check.py", "hpcckpt/frameworks/_chainer_shim.py")


class Stage(NamedTuple):
    """One step: what it depends on, and how it is done."""

    name: str
    inputs: Callable[[Context], list[str]]
    run: Callable[[Context], dict[str, Any] | None]
    """Returns what is worth recording."""


def _digest(context: Context, patterns: tuple[str, ...]) -> list[str]:
    files = sorted({file for pattern in patterns for file in context.root.glob(pattern)})
    return [f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]


def _interpreter() -> list[str]:
    return [os.path.realpath(sys.executable), sys.version]


STAGES = (
    Stage("venv", lambda c: [*_interpreter(), str(c.venv), c.mpi.identity()], steps.make_venv),
    Stage("packages", lambda c: [lockfile.render(c.pins, c.mpi.kind)], steps.install_packages),
    Stage("sources", lambda c: [python_tag()], steps.install_sources),
    Stage("horovod", lambda c: [horovod_build.recipe_digest(c.root)], steps.install_horovod),
    Stage("ranks", lambda c: _digest(c, CHECK_FILES), steps.check_ranks),
    Stage("project", lambda c: [*_digest(c, PROJECT_FILES), str(c.root)], steps.install_project),
)


def stamps(context: Context, stages: tuple[Stage, ...] = STAGES) -> dict[str, str]:
    """The stamp that each stage has when it is done."""
    result, before = {}, ""
    for stage in stages:
        before = hashlib.sha256(json.dumps([before, *stage.inputs(context)]).encode()).hexdigest()
        result[stage.name] = before
    return result


def read_record(path: Path) -> dict[str, Any]:
    """The record of an environment; empty where there is none that can be read."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return dict(record) if isinstance(record, dict) and record.get("record_version") == RECORD_VERSION else {}


def write_record(path: Path, record: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(record, indent=2) + "\n")
    os.replace(temporary, path)


def pending(context: Context, stages: tuple[Stage, ...] = STAGES) -> tuple[Stage, ...]:
    """The stages that are still to do: the first whose stamp differs, and all behind it."""
    done = read_record(context.record).get("stages", {})
    if not context.python.exists():
        return stages
    wanted = stamps(context, stages)
    for index, stage in enumerate(stages):
        if done.get(stage.name) != wanted[stage.name]:
            return stages[index:]
    return () if steps.recorder(context).exists() else stages[-1:]


@contextmanager
def alone(context: Context) -> Iterator[None]:
    """One set-up of an environment at a time; a second one waits."""
    context.venv.parent.mkdir(parents=True, exist_ok=True)
    with lock_file(context).open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another set-up of {context.venv} is running: waiting for it", flush=True)
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def lock_file(context: Context) -> Path:
    return context.venv.with_name(f".{context.venv.name.lstrip('.')}.lock")


def refuse_foreign(context: Context) -> None:
    """Raise SetupError rather than clear a folder that set-up did not make."""
    filled = context.venv.exists() and any(context.venv.iterdir())
    if filled and not context.record.exists() and not lock_file(context).exists():
        raise SetupError(f"{context.venv}: not made by set-up; name another folder in HPCCKPT_VENV", 2)


def run(context: Context) -> bool:
    """Do what is still to do. False: nothing was."""
    if not pending(context):
        return False
    checks.require_tools(checks.missing_tools())
    checks.require_cxx20(os.environ.get("CXX", "g++"))
    refuse_foreign(context)
    with alone(context):
        todo = pending(context)
        if todo and todo[0].name in ("venv", "packages"):
            checks.require_space(context.venv.parent)
        print(f"MPI: {context.mpi.describe()}", flush=True)
        wanted = stamps(context)  # before the work: a file that changes meanwhile is seen next time
        for stage in todo:
            _do(context, stage, wanted[stage.name])
    return True


def _do(context: Context, stage: Stage, stamp: str) -> None:
    started = time.monotonic()
    found = stage.run(context) or {}
    record = read_record(context.record)
    done = {**record.get("stages", {}), stage.name: stamp}
    seconds = {**record.get("seconds", {}), stage.name: round(time.monotonic() - started, 1)}
    head = {
        "record_version": RECORD_VERSION,
        "python": {"executable": str(context.python), "version": sys.version.split()[0]},
        "mpi": context.mpi.record(),
        "packages": dict(context.pins),
    }
    write_record(context.record, {**record, **head, **found, "stages": done, "seconds": seconds})
