"""The site's Darshan: libdarshan.so preloaded in non-MPI mode, DXT on, one log directory per rank.

Non-MPI mode is used with MPI builds too: a log then needs no MPI_Finalize and each rank has its own.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcckpt.errors import TraceError
from hpcckpt.tracing.io.base import LOG_DIR, Absent, IoTracer, preload, set_aside

_LIBRARY = "libdarshan.so"
_PREFIXES = ("DARSHAN_RUNTIME_DIR", "DARSHAN_ROOT", "DARSHAN_DIR", "DARSHAN_BASE_PATH")
_LOG_NAME = re.compile(r"_id\d+-(\d+)_")
_MMAP_NAME = re.compile(r"_id(\d+)_mmap-log-")
_JOB_AT, _JOB = 1328, struct.Struct("<7q")
"""Where a log's job record starts, and its fields up to the job id."""
_NO_JOBID = "HPCCKPT_NOT_A_JOBID"
"""Names a variable that nobody sets: Darshan then takes the PID as job id, in mmap logs' names too."""

_CONFIG = """\
# Only the watched directory: what importing a framework opens would fill Darshan's memory.
NAME_EXCLUDE .* *
NAME_INCLUDE ^{watched}/,^heatmap: *
# Room for many checkpoints; more records without more memory loses data without a flag.
MAX_RECORDS 16384 POSIX,STDIO,DXT_POSIX
MODMEM 64
NAMEMEM 8
"""


class DarshanTracer(IoTracer):
    """Found where the user, the environment or the system has it."""

    name = "darshan"
    preference = 0

    def __init__(self, library: Path, environ: Mapping[str, str]) -> None:
        self._library = library
        self._preload = preload(library, environ)
        self._version = _config(library, "--version") or _version_in(library)
        self._log_variable = _config(library, "--log-path-by-env").split(",")[0].strip()

    @classmethod
    def find(cls, option: str | None, environ: Mapping[str, str]) -> DarshanTracer | Absent:
        asked = {
            "the Darshan library option": option,
            "HPCCKPT_DARSHAN_LIB": environ.get("HPCCKPT_DARSHAN_LIB"),
        }
        for source, value in asked.items():
            if value:
                return cls(_asked_for(source, value), environ)
        for library in _places(environ):
            if library.is_file():
                return cls(library.resolve(), environ)
        return Absent(
            f"no {_LIBRARY} found; name it with HPCCKPT_DARSHAN_LIB or load the site's Darshan module"
        )

    def describe(self) -> dict[str, str]:
        return {
            "tracer": self.name,
            "library": str(self._library),
            "version": self._version,
            "log_variable": self._log_variable or "DARSHAN_LOGFILE",
        }

    def prepare(self, leg_dir: Path, watched: Path) -> dict[str, str]:
        config = leg_dir / "darshan.conf"
        names = dict.fromkeys(_as_pattern(path) for path in (watched.absolute(), watched.resolve()))
        config.write_text(_CONFIG.format(watched="/,^".join(names)))
        # A build without a log variable gets a file name. A forked child that ends first can take it
        # (`finish` says so); a directory can't be lost that way.
        where = (
            {self._log_variable: LOG_DIR}
            if self._log_variable
            else {"DARSHAN_LOGFILE": f"{LOG_DIR}/rank.darshan"}
        )
        return where | {
            "LD_PRELOAD": self._preload,
            "DARSHAN_ENABLE_NONMPI": "1",
            "DXT_ENABLE_IO_TRACE": "1",
            "DARSHAN_CONFIG_PATH": str(config.absolute()),
            "DARSHAN_MMAP_LOGPATH": LOG_DIR,
            "DARSHAN_JOBID": _NO_JOBID,
        }

    def finish(self, log_dir: Path, rank: int, hostname: str, pid: int) -> list[str]:
        logs = {path: _pid_of(path) for path in log_dir.glob("*.darshan")}
        if pid <= 0 and len(logs) == 1:
            pid = next(iter(logs.values()))
        own = sorted(path for path, owner in logs.items() if owner == pid)
        notes = set_aside(log_dir, logs.keys() - set(own))
        if not own:
            return [*notes, f"rank {rank}: no Darshan log of process {pid} of {hostname} in {log_dir}"]
        return notes + [note for path in own for note in _about(path)]


def _pid_of(path: Path) -> int:
    """From the name, else from the log's job id, which `prepare` makes the PID; 0 when neither says."""
    found = _LOG_NAME.search(path.name) or _MMAP_NAME.search(path.name)
    if found:
        return int(found[1])
    data = path.read_bytes()
    try:
        job = zlib.decompressobj().decompress(data[_JOB_AT:], _JOB.size)
    except zlib.error:
        return 0
    return int(_JOB.unpack(job)[-1]) if len(job) == _JOB.size else 0


def _about(path: Path) -> list[str]:
    if path.stat().st_size == 0:
        return [f"{path.name}: empty; the process ended while Darshan wrote it"]
    if _MMAP_NAME.search(path.name):
        return [f"{path.name}: only the memory-mapped log of a killed process; it has no DXT and no end time"]
    return []


def _asked_for(source: str, value: str) -> Path:
    library = Path(value).expanduser()
    if not library.is_file():
        raise TraceError(
            f"{source}: no file {value}; give the path of {_LIBRARY}, or leave it out to have it searched"
        )
    if not _is_darshan(library):
        raise TraceError(
            f"{source}: {value} is no Darshan library; give the path of the runtime's own {_LIBRARY}"
        )
    return library.resolve()


def _is_darshan(library: Path) -> bool:
    """Whether a file is a shared object that holds the runtime's own symbols."""
    try:
        data = library.read_bytes()
    except OSError:
        return False
    return data.startswith(b"\x7fELF") and b"darshan_core" in data


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    """Where to look without being told, best first."""
    for entry in environ.get("LD_PRELOAD", "").replace(":", " ").split():
        if Path(entry).name.startswith("libdarshan.so"):
            yield Path(entry)
    for variable in _PREFIXES:
        if environ.get(variable):
            yield from (Path(environ[variable], directory, _LIBRARY) for directory in ("lib", "lib64"))
    tool = shutil.which("darshan-config", path=environ.get("PATH", ""))
    if tool:
        yield from (
            Path(tool).resolve().parent.parent / directory / _LIBRARY for directory in ("lib", "lib64")
        )
    if environ.get("CONDA_PREFIX"):
        yield Path(environ["CONDA_PREFIX"], "lib", _LIBRARY)
    linker = shutil.which("ldconfig", path=environ.get("PATH", "") + ":/sbin:/usr/sbin")
    for line in _output([linker, "-p"]).splitlines() if linker else ():
        if line.strip().startswith("libdarshan.so"):
            yield Path(line.rpartition("=> ")[2].strip())


def _output(command: list[str]) -> str:
    """What a short command prints; "" when it fails in any way."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout.strip()


def _config(library: Path, option: str) -> str:
    """What the library's own darshan-config says; "" without one or when it has no such option."""
    tool = library.parent.parent / "bin" / "darshan-config"
    said = _output([str(tool), option]) if tool.is_file() else ""
    return "" if "usage" in said.lower() else said.split()[-1] if said else ""


def _version_in(library: Path) -> str:
    """The version string compiled into the library."""
    found = re.search(rb"\0(3\.\d+\.\d+(?:-\w+)?)\0", library.read_bytes())
    return found[1].decode() if found else "unknown"


def _as_pattern(path: Path) -> str:
    """A regular expression for the path; characters with a meaning there or in the file become `.`."""
    return re.sub(r"[^A-Za-z0-9_/-]", ".", str(path))
