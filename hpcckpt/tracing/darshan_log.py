"""Writes genuine .darshan logs through the libdarshan-util that PyPI's `darshan` wheel carries.

Only the binding lives here: record layouts, names, regions. What goes into the counters is the
caller's. The wheel's Python package is never imported (it pulls in pandas); its C library is
loaded by path, and its own counter-name tables are checked against the layouts that are written.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.errors import TraceError

WHEEL_VERSION = "3.5.0"
POSIX, STDIO, DXT_POSIX = 1, 9, 10
MODULE_VERSIONS = {POSIX: 4, STDIO: 2, DXT_POSIX: 1}
SEGMENT = np.dtype([("offset", "<i8"), ("length", "<i8"), ("start_s", "<f8"), ("end_s", "<f8")])
METADATA_BYTES = 1024
EXE_BYTES = 2048
"""What exe and mounts may take; the whole job record is 4096 bytes."""

_EXPECTED_COUNTERS = {"posix_counter_names": 69, "posix_f_counter_names": 17,
                      "stdio_counter_names": 14, "stdio_f_counter_names": 15}  # fmt: skip
_DXT_HEAD = struct.Struct("<Qqq64sqq")
_ZLIB = 0


class _Job(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in ("uid", "start_s", "start_ns", "end_s", "end_ns", "nprocs", "jobid")
        ),
        ("metadata", ctypes.c_char * METADATA_BYTES),
    ]


class _Mount(ctypes.Structure):
    _fields_ = [("type", ctypes.c_char * 3015), ("path", ctypes.c_char * 3015)]


@dataclass(frozen=True)
class Job:
    """What the log says about the process: times in nanoseconds of CLOCK_REALTIME."""

    start_ns: int
    end_ns: int
    jobid: int
    exe: str
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class DarshanUtil:
    """The loaded library and the record types that its counter names give."""

    library: ctypes.CDLL
    posix: np.dtype[np.void]
    stdio: np.dtype[np.void]


def _find_library() -> Path:
    spec = importlib.util.find_spec("darshan")
    where = Path(spec.origin).parent.parent / "darshan.libs" if spec and spec.origin else None
    found = sorted(where.glob("libdarshan-util*.so*")) if where else []
    if not found:
        raise TraceError(
            f"no libdarshan-util beside the Python package darshan; install darshan=={WHEEL_VERSION}"
        )
    version = importlib.metadata.version("darshan")
    if version != WHEEL_VERSION:
        raise TraceError(
            f"darshan {version} is installed, logs are written with {WHEEL_VERSION}; install that one"
        )
    return found[0]


def _counter_names(library: ctypes.CDLL, table: str) -> list[str]:
    """The names in one of the library's tables, which ends with ..._NUM_INDICES."""
    expected = _EXPECTED_COUNTERS[table]
    entries = (ctypes.c_char_p * (expected + 1)).in_dll(library, table)
    names = [(entry or b"").decode("ascii", "replace") for entry in entries]
    last = names.pop()
    if not last.endswith("_NUM_INDICES") or any(name.endswith("_NUM_INDICES") for name in names):
        raise TraceError(
            f"libdarshan-util: {table} has not {expected} names; install darshan=={WHEEL_VERSION}"
        )
    return names


def _record_type(library: ctypes.CDLL, module: str) -> np.dtype[np.void]:
    integers = _counter_names(library, f"{module}_counter_names")
    floats = _counter_names(library, f"{module}_f_counter_names")
    fields: list[Any] = [("id", "<u8"), ("rank", "<i8")]
    return np.dtype(fields + [(name, "<i8") for name in integers] + [(name, "<f8") for name in floats])


@cache
def load() -> DarshanUtil:
    """Loads the library once; TraceError when it is missing or isn't the pinned version."""
    library = ctypes.CDLL(os.fspath(_find_library()))
    pointer, integer, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    library.darshan_log_create.restype = pointer
    signatures = {
        "create": [text, integer, integer],
        "put_job": [pointer, pointer],
        "put_exe": [pointer, text],
        "put_mounts": [pointer, pointer, integer],
        "put_namehash": [pointer, pointer],
        "put_mod": [pointer, integer, pointer, integer, integer],
        "close": [pointer],
    }
    for name, arguments in signatures.items():
        getattr(library, f"darshan_log_{name}").argtypes = arguments
    return DarshanUtil(library, _record_type(library, "posix"), _record_type(library, "stdio"))


def unmeasured(kind: np.dtype[np.void], count: int) -> np.ndarray[Any, np.dtype[np.void]]:
    """`count` records with -1 in every counter, Darshan's own word for what was not measured; rank 0."""
    records = np.zeros(count, kind)
    for name in (kind.names or ())[2:]:
        records[name] = -1
    return records


def dxt_record(record_id: int, hostname: str, writes: np.ndarray[Any, np.dtype[np.void]]) -> bytes:
    """One file's DXT record of rank 0 with write segments (dtype SEGMENT) and no reads."""
    head = _DXT_HEAD.pack(record_id, 0, 0, hostname.encode()[:63], len(writes), 0)
    return head + writes.tobytes()


def _put_name(library: ctypes.CDLL, log: int, record_id: int, name: str) -> int:
    """The library wants a hash table; a lone element with empty links is one."""
    record = ctypes.create_string_buffer(struct.pack("<Q", record_id) + os.fsencode(name) + b"\0")
    element = (ctypes.c_uint64 * 10)(ctypes.addressof(record))
    return int(library.darshan_log_put_namehash(log, element))


def _put_job(library: ctypes.CDLL, log: int, job: Job) -> int:
    metadata = "".join(f"{key}={value}\n" for key, value in job.metadata.items()).encode()
    if len(metadata) >= METADATA_BYTES:
        raise TraceError(f"job metadata of {len(metadata)} bytes; a Darshan log holds {METADATA_BYTES - 1}")
    record = _Job(
        uid=os.getuid(),
        start_s=job.start_ns // 10**9,
        start_ns=job.start_ns % 10**9,
        end_s=job.end_ns // 10**9,
        end_ns=job.end_ns % 10**9,
        nprocs=1,
        jobid=job.jobid,
        metadata=metadata,
    )
    mount = _Mount(type=b"unknown", path=b"/")
    failed = (
        library.darshan_log_put_job(log, ctypes.byref(record))
        or library.darshan_log_put_exe(log, job.exe.encode()[:EXE_BYTES])
        or library.darshan_log_put_mounts(log, ctypes.byref(mount), 1)
    )
    return int(failed)


def _put_all(
    library: ctypes.CDLL, log: int, job: Job, names: Mapping[int, str], modules: Mapping[int, bytes]
) -> bool:
    """The regions in the order in which the format wants them: job, names, modules by rising number."""
    if _put_job(library, log, job) or any(_put_name(library, log, *item) for item in names.items()):
        return False
    return not any(
        library.darshan_log_put_mod(
            log, module, modules[module], len(modules[module]), MODULE_VERSIONS[module]
        )
        for module in sorted(modules)
        if modules[module]
    )


def write_log(
    path: Path, job: Job, names: Mapping[int, str], modules: Mapping[int, bytes], *, partial: bool = False
) -> None:
    """Writes one log, replacing `path` when it is whole. `partial` marks every module as incomplete.

    Raises TraceError when the library refuses (no space, no permission).
    """
    library = load().library
    flags = sum(1 << module for module in modules) if partial else 0
    unfinished = path.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    log = library.darshan_log_create(os.fsencode(unfinished), _ZLIB, flags)
    done = bool(log) and _put_all(library, log, job, names, modules)
    if log:
        library.darshan_log_close(log)
    if not done or not unfinished.is_file():
        unfinished.unlink(missing_ok=True)
        raise TraceError(f"{path}: libdarshan-util could not write the log; check space and permission there")
    unfinished.replace(path)
