"""The one reader of Darshan logs, of the site's Darshan and of the suite's recorder alike.

`read_log` gives a log's facts, its files and its write segments; `traced_bytes` who wrote how much
below a directory; `zero_ns` where the log's time zero lies on the rank's clock. Warnings are
sentences that begin with a stable code and a colon. In every column -1 means not measured.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from analysis.readers.darshan_layout import COUNTERS, DXT_SEGMENTS, RawLog, read_raw
from analysis.readers.darshan_tables import DarshanLog, read_files, read_segments
from analysis.readers.darshan_traced import TracedBytes, Zero, traced_below, traced_bytes, zero_ns

__all__ = ["DarshanLog", "TracedBytes", "Zero", "read_log", "traced_below", "traced_bytes", "zero_ns"]

_PID = re.compile(r"_id\d+-(\d+)_")
_MMAP_LOG = re.compile(r"_id(\d+)_mmap-log-")


def read_log(path: Path, rank: int | None = None) -> DarshanLog:
    """Reads a log. `rank` names the rank of a log of one process, which calls itself rank 0.

    Raises TraceError for a file that is empty, truncated, damaged, foreign or of a version whose
    counters cannot be read; what can be read with less trust is in `warnings`.
    """
    raw = read_raw(path)
    start_s, start_ns, end_s, end_ns, nprocs, jobid = raw.job[1:]
    names = raw.names()
    only_rank = rank if nprocs == 1 else None
    segments = read_segments(raw, "DXT_POSIX", names, only_rank)
    log = DarshanLog(
        source=path,
        nprocs=nprocs,
        jobid=jobid,
        pid=_pid(path),
        lib_ver=raw.metadata.get("lib_ver", "unknown"),
        tracer=raw.metadata.get("tracer", "darshan"),
        hostname=",".join(sorted(segments.hosts)) or raw.metadata.get("hostname", ""),
        exe=raw.exe,
        run_time_s=(end_s - start_s) + (end_ns - start_ns) / 1e9,
        metadata=raw.metadata,
        files=read_files(raw, names, only_rank),
        segments=segments,
        mpiio_segments=read_segments(raw, "DXT_MPIIO", names, only_rank),
    )
    log.warnings.extend([*_module_warnings(raw), *_record_warnings(log), *_dxt_warnings(log)])
    return log


def _pid(path: Path) -> int:
    found = _PID.search(path.name) or _MMAP_LOG.search(path.name)
    return int(found[1]) if found else -1


def _module_warnings(raw: RawLog) -> list[str]:
    warnings = [
        f"partial-module: {name} is incomplete, records or segments were lost; coverage tells how much"
        for name, region in raw.modules.items()
        if region.partial
    ]
    for name, layouts in DXT_SEGMENTS.items():
        version = raw.modules[name].version if name in raw.modules else 1
        if version not in layouts:
            warnings.append(
                f"dxt-version: {name} version {version} is not known; its segments are not measured"
            )
        elif name == "DXT_POSIX" and version > 1:
            warnings.append(
                f"dxt-version: {name} version {version}, newer than Darshan 3.5.0; read by its source"
            )
    mpiio = raw.modules.get("MPI-IO")
    if mpiio and mpiio.version != COUNTERS["MPI-IO"].version:
        warnings.append(
            f"module-version: MPI-IO version {mpiio.version} is not read; its bytes are not measured"
        )
    lost = [raw.metadata.get(key, "0") for key in ("dropped", "unnamed")]
    if any(count != "0" for count in lost):
        warnings.append(f"dropped-events: the recorder lost {lost[0]} events and {lost[1]} opens")
    return warnings


def _record_warnings(log: DarshanLog) -> list[str]:
    warnings = []
    if log.run_time_s < 0:
        warnings.append("negative-run-time: the process was killed before it wrote its end time")
    if np.any(log.files.rank == -1):
        warnings.append(
            "shared-record: ranks were reduced to one record (rank -1); only DXT has each rank's bytes"
        )
    nameless = sum(path.startswith("unknown:") for path in log.files.path)
    if nameless:
        warnings.append(f"name-missing: {nameless} records have no file name; the name memory was full")
    return warnings


def _dxt_warnings(log: DarshanLog) -> list[str]:
    """DXT must hold the bytes of the counters; where it doesn't, its times speak of fewer writes."""
    counted: dict[str, int] = defaultdict(int)
    traced: dict[str, int] = defaultdict(int)
    both = "stdio" in log.metadata.get("dxt", "")
    per_row = log.files.posix_bytes_written + both * log.files.stdio_bytes_written
    for path, written in zip(log.files.path, per_row.tolist(), strict=True):
        counted[path] += written
    for record in log.segments.records:
        traced[record.path] += record.bytes
    streams = 0 if both else int(log.files.stdio_bytes_written.sum())
    warnings = []
    if streams:
        warnings.append(
            f"stdio-without-dxt: {streams} bytes were written through streams, which DXT leaves out; "
            "the time of each of those writes is not measured"
        )
    if any(counted.values()) and not len(log.segments):
        return [*warnings, "no-dxt: the log has no write segments; the time of each write is not measured"]
    return warnings + [
        f"dxt-disagrees: {path}: {traced[path]} bytes in DXT, {counted[path]} in the counters"
        for path in sorted(counted.keys() | traced.keys())
        if traced[path] != counted[path]
    ]
