"""Every file name of a run directory, atomic writes, and the states a run goes through.

runs/CAMPAIGN/campaign.json                the ledger: experiment, site, runs in their order
runs/CAMPAIGN/RUN_ID/run.json              the resolved run and site
                     manifest.json         code, versions, host, MPI, file system
                     job.sh                the exact script
                     state.json            queued, running, done, failed, interrupted
                     stop                  its presence asks the run to stop
                     submission.json       the batch system's job, where there is one
                     restart.json          what a test of restart found
                     log/                  output of the driver and of the launcher
                     legs/LEG/ranks/00000.jsonl
                              darshan/rank00000/*.darshan
                              inventory.parquet
                              launches/0/...        earlier launches of a leg that was cut off and went on
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcckpt.errors import RunError, TraceError
from hpcckpt.records import SCHEMA_VERSION

QUEUED, RUNNING, DONE, FAILED, INTERRUPTED = "queued", "running", "done", "failed", "interrupted"
TRANSITIONS: dict[str, frozenset[str]] = {
    QUEUED: frozenset({QUEUED, RUNNING, FAILED, INTERRUPTED}),
    RUNNING: frozenset({QUEUED, RUNNING, DONE, FAILED, INTERRUPTED}),
    FAILED: frozenset({QUEUED, FAILED}),
    INTERRUPTED: frozenset({QUEUED, INTERRUPTED}),  # by a new submission, or by the batch system's own requeue
    DONE: frozenset({QUEUED, DONE}),  # again where its closing lines are gone
}


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What `state.json` says. `reason` names rank, node and signal or exception where a run failed."""

    state: str
    reason: str | None = None
    rank: int | None = None
    node: str | None = None
    cause: str | None = None
    """Signal name, exception type, `hung`, or `refused`."""
    job_id: str | None = None
    driver_pid: int | None = None
    driver_host: str | None = None
    driver_start: float | None = None
    """When that process started, by its host's clock: tells a reused process number."""
    leg: str | None = None
    updated: float = 0.0
    """Unix time of this state."""
    started: float | None = None
    ended: float | None = None
    timings_s: dict[str, float] = {}
    """Where the run's wall time went, by the driver's own clock."""
    attempts: int = 0
    progress: str | None = None
    """How far the last start came that a batch system cut off: leg and newest generation."""
    standstill: int = 0
    """Starts in a row that came no further."""


class LegDir:
    """Paths of one launch of all ranks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ranks = path / "ranks"
        self.darshan = path / "darshan"
        self.inventory = path / "inventory.parquet"
        self.rank_script = path / "rank.sh"
        self.output = path / "output.log"
        self.launches = path / "launches"
        self.death = path / "death"

    def earlier(self) -> list[LegDir]:
        """The launches of this leg that were cut off, oldest first."""
        found = [path for path in self.launches.iterdir() if path.name.isdigit()] if self.launches.is_dir() else []
        return [LegDir(path) for path in sorted(found, key=lambda path: int(path.name))]

    def mark_death(self, inside: Sequence[str]) -> None:
        """Leave the time, by CLOCK_MONOTONIC and the host's boot: what happens next cannot be written any more.

        `inside`: phases that are open, outermost first.
        """
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.death.write_text(f"{time.monotonic_ns()} {boot} {','.join(inside)}")

    def read_death(self) -> tuple[int, str, list[str]] | None:
        """(time, boot, phases that were open) of a planned death; None where it has not come."""
        try:
            at, boot, inside = self.death.read_text().split(" ")
        except (OSError, ValueError):
            return None
        return int(at), boot, [phase for phase in inside.split(",") if phase]

    def set_aside(self) -> None:
        """Keep what a launch left that was cut off, and make room for the next one."""
        kept = self.launches / str(len(self.earlier()))
        kept.mkdir(parents=True)
        for path in list(self.path.iterdir()):
            if path != self.launches:
                path.rename(kept / path.name)

    @property
    def name(self) -> str:
        return self.path.name

    def rank_file(self, rank: int) -> Path:
        return self.ranks / f"{rank:05d}.jsonl"

    def rank_darshan(self, rank: int) -> Path:
        return self.darshan / f"rank{rank:05d}"


class RunDir:
    """Paths of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.run = self.path / "run.json"
        self.manifest = self.path / "manifest.json"
        self.script = self.path / "job.sh"
        self.state = self.path / "state.json"
        self.stop = self.path / "stop"
        self.submission = self.path / "submission.json"
        self.restart = self.path / "restart.json"
        self.log = self.path / "log"
        self.legs = self.path / "legs"

    def leg(self, name: str) -> LegDir:
        return LegDir(self.legs / name)

    def read_state(self) -> State:
        """The state; a run without a state file is queued. Raises RunError for an unreadable one."""
        try:
            found = msgspec.json.decode(read_bytes(self.state), type=State)
        except FileNotFoundError:
            return State(state=QUEUED)
        except OSError as error:
            raise self._unreadable(error.strerror or str(error)) from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._unreadable(str(error)) from error
        if found.state not in TRANSITIONS:
            raise self._unreadable(f"unknown state {found.state!r}")
        return found

    def _unreadable(self, why: str) -> RunError:
        return RunError(f"{self.state}: not a state file ({why}); remove the run directory to repeat it")

    def write_state(self, known: State | None = None, **changes: Any) -> State:
        """Move to another state, or change its fields. Raises RunError for a move that is not allowed.

        `known` is the state that its owner wrote last: a file that was lost meanwhile does not matter then.
        """
        old = known or self.read_state()
        target = changes.get("state", old.state)
        if target not in TRANSITIONS[old.state]:
            raise RunError(f"{self.state}: a run that is {old.state} cannot become {target}")
        new = msgspec.structs.replace(old, updated=time.time(), **changes)
        write_json(self.state, new)
        return new


class CampaignDir:
    """Paths of one campaign."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.ledger = self.path / "campaign.json"
        self.lock = self.path / "lock"
        self.log = self.path / "submit.log"

    def run(self, run_id: str) -> RunDir:
        return RunDir(self.path / run_id)


NOT_REGULAR = "not a regular file"


def write_bytes(path: Path, data: bytes) -> None:
    """Write so that a reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def read_bytes(path: Path) -> bytes:
    """All of a regular file. Raises OSError for anything else: a pipe would wait forever, a device never end."""
    # Without O_NONBLOCK the opening of a pipe waits already.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            code, why = (errno.EISDIR, os.strerror(errno.EISDIR)) if stat.S_ISDIR(mode) else (errno.EINVAL, NOT_REGULAR)
            raise OSError(code, why, str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Atomically write a record or plain value as indented JSON that carries the schema version."""
    plain = msgspec.to_builtins(value)
    if isinstance(plain, dict):
        plain = {"schema_version": SCHEMA_VERSION, **plain}
    write_bytes(path, msgspec.json.format(msgspec.json.encode(plain), indent=2) + b"\n")


def read_json(path: Path, kind: type[Any] = dict) -> Any:
    """Read what `write_json` wrote. Raises TraceError for another schema version, broken or no content."""
    try:
        plain = msgspec.json.decode(read_bytes(path))
        version = plain.get("schema_version") if isinstance(plain, dict) else None
        if version != SCHEMA_VERSION:
            raise TraceError(f"{path}: schema version {version}, this release reads {SCHEMA_VERSION}")
        return msgspec.convert(plain, kind)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: not a valid {kind.__name__} ({error})") from error
