"""The suite's own preload recorder, for machines without Darshan.

Its events become a genuine, labelled .darshan log when the rank has ended; the raw events stay.
"""

from __future__ import annotations

import importlib.machinery
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from hpcckpt.errors import TraceError
from hpcckpt.tracing import iotrace_convert, iotrace_events
from hpcckpt.tracing.io.base import LOG_DIR, Absent, IoTracer, preload, set_aside

_PACKAGE = Path(__file__).resolve().parent.parent
_RAW_NAME = re.compile(r"\.(\d+)\.iotrace$")


class IotraceTracer(IoTracer):
    """Preloads the library that setup.py builds from iotrace.c."""

    name = "iotrace"
    preference = 1

    def __init__(self, library: Path, environ: Mapping[str, str]) -> None:
        self._library = library
        self._preload = preload(library, environ)

    @classmethod
    def find(cls, option: str | None, environ: Mapping[str, str]) -> IotraceTracer | Absent:
        """`option` is Darshan's alone; the recorder lies beside the package."""
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            library = _PACKAGE / f"_iotrace{suffix}"
            if library.is_file():
                return cls(library, environ)
        return Absent(f"the preload recorder is not built: no _iotrace*.so in {_PACKAGE}; run `make setup`")

    def describe(self) -> dict[str, str]:
        version = str(iotrace_events.LAYOUT_VERSION)
        return {"tracer": iotrace_convert.TRACER, "library": str(self._library), "version": version}

    def prepare(self, leg_dir: Path, watched: Path) -> dict[str, str]:
        """Watches the directory under the name it has here and under its real one."""
        names = dict.fromkeys((str(watched.absolute()), str(watched.resolve())))
        if any(":" in name for name in names):
            raise TraceError(f"{watched}: the recorder can't watch a path with ':'; choose another directory")
        return {
            "LD_PRELOAD": self._preload,
            "HPCCKPT_IOTRACE_DIR": LOG_DIR,
            "HPCCKPT_IOTRACE_PATHS": ":".join(names),
        }

    def finish(self, log_dir: Path, rank: int, hostname: str, pid: int) -> list[str]:
        by_pid = {int(m[1]): path for path in log_dir.glob("*.iotrace") if (m := _RAW_NAME.search(path.name))}
        if pid <= 0 and len(by_pid) == 1:
            pid = next(iter(by_pid))
        own = by_pid.pop(pid, None)
        notes = _shrink_all(by_pid.values()) + set_aside(log_dir, by_pid.values())
        if own is None:
            return [*notes, f"rank {rank}: no event file of process {pid} of {hostname} in {log_dir}"]
        try:
            return notes + _convert(own, rank)
        except (TraceError, OSError) as error:
            return [*notes, f"rank {rank}: no log: {error}"]


def _shrink_all(paths: Iterable[Path]) -> list[str]:
    notes = []
    for path in paths:
        try:
            iotrace_events.shrink(path)
        except (TraceError, OSError) as error:
            notes.append(str(error))
    return notes


def _convert(raw: Path, rank: int) -> list[str]:
    """Writes the log beside the raw events, under a name of Darshan's form, and shrinks the events."""
    iotrace_events.shrink(raw)
    events = iotrace_events.read_events(raw)
    program = re.sub(r"[^A-Za-z0-9.-]", "-", events.program) or "unknown"
    log = raw.with_name(f"hpcckpt_{program}_id{events.pid}-{events.pid}_{events.monotonic_ns}_1.darshan")
    iotrace_convert.convert(events, log, rank)
    iotrace_convert.write_fsyncs(events, raw.with_suffix(".fsyncs.csv"))
    return events.notes()
