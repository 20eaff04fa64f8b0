"""The bytes of a Darshan log (format 3.41): header, regions, records. No meaning, no judgement.

Logs are read with zlib and NumPy, not with Darshan's C library: that one prints to stderr, asserts
and reads out of bounds on damaged logs, and returns nothing for a DXT version it doesn't know.
Everything that is handed out here lies inside the file and has passed zlib's checksum.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcckpt.errors import TraceError
from hpcckpt.rundir import read_bytes

MODULES = [
    "NULL",
    "POSIX",
    "MPI-IO",
    "H5F",
    "H5D",
    "PNETCDF_FILE",
    "PNETCDF_VAR",
    "BG/Q",
    "LUSTRE",
    "STDIO",
    "DXT_POSIX",
    "DXT_MPIIO",
    "MDHIM",
    "APXC",
    "APMPI",
    "HEATMAP",
    "DFS",
    "DAOS",
]
SEGMENT = np.dtype([("offset", "<i8"), ("length", "<i8"), ("start_s", "<f8"), ("end_s", "<f8")])
_SEGMENT_WITH_THREAD = np.dtype([*SEGMENT.descr, ("thread", "<u8")])
DXT_SEGMENTS = {
    "DXT_POSIX": {1: SEGMENT, 2: _SEGMENT_WITH_THREAD},
    "DXT_MPIIO": {1: SEGMENT, 2: SEGMENT, 3: _SEGMENT_WITH_THREAD},
}
"""By module and version; the versions with threads belong to Darshan releases after 3.5.0."""

_HEADER = struct.Struct("<8sqB7xQ2Q128Q64I")
_MAGIC = 6567223
_JOB = struct.Struct("<7q1024s")
_DXT_HEAD = struct.Struct("<Qqq64sqq")
_ZLIB, _NONE = 0, 2


@dataclass(frozen=True)
class Records:
    """How a module's records are laid out: id, rank, then 64-bit integers, then doubles."""

    version: int
    integers: int
    floats: int
    columns: dict[str, int]
    """Index of each counter that is read; doubles count on behind the integers."""

    @property
    def words(self) -> int:
        return 2 + self.integers + self.floats


COUNTERS = {
    "POSIX": Records(4, 69, 17, {
        "POSIX_OPENS": 0, "POSIX_FILENOS": 1, "POSIX_DUPS": 2, "POSIX_WRITES": 4, "POSIX_MMAPS": 7,
        "POSIX_FSYNCS": 8, "POSIX_FDSYNCS": 9, "POSIX_RENAME_TARGETS": 11, "POSIX_RENAMED_FROM": 12,
        "POSIX_BYTES_WRITTEN": 15,
        "POSIX_F_WRITE_TIME": 69 + 9, "POSIX_F_META_TIME": 69 + 10,
    }),
    "STDIO": Records(2, 14, 15, {
        "STDIO_OPENS": 0, "STDIO_FDOPENS": 1, "STDIO_WRITES": 3, "STDIO_BYTES_WRITTEN": 6,
        "STDIO_F_META_TIME": 14 + 0, "STDIO_F_WRITE_TIME": 14 + 1,
    }),
    "MPI-IO": Records(3, 51, 17, {"MPIIO_BYTES_WRITTEN": 15}),
}  # fmt: skip


@dataclass(frozen=True)
class Region:
    """One compressed part of the file."""

    offset: int
    length: int
    version: int
    partial: bool


class DxtRecord(NamedTuple):
    """One file's segments as one process saw them."""

    file_id: int
    rank: int
    hostname: str
    segments: int
    writes: memoryview
    """Its segments, laid out as DXT_SEGMENTS says."""


@dataclass(frozen=True)
class RawLog:
    """A log's bytes and where its parts lie; each part is unpacked when it is asked for."""

    path: Path
    data: bytes
    compression: int
    job: tuple[int, ...]
    """uid, start s, start ns, end s, end ns, nprocs, jobid."""
    metadata: dict[str, str]
    exe: str
    names_region: Region
    modules: dict[str, Region]

    def unpack(self, region: Region) -> bytes:
        """A region's content; TraceError unless all of it passes its checksum."""
        return _unpack(self.path, self.data, region, self.compression)

    def names(self) -> dict[int, str]:
        """Path of each record id."""
        content, found, at = self.unpack(self.names_region), {}, 0
        while at + 8 < len(content):
            end = content.find(b"\0", at + 8)
            if end < 0:
                raise damaged(self.path, "a file name without an end")
            if end > at + 8:  # an uncompressed log is filled up with zeros
                path = content[at + 8 : end].decode("utf-8", "surrogateescape")  # as os.fsdecode, but faster
                found[int.from_bytes(content[at : at + 8], "little")] = path
            at = end + 1
        return found

    def counters(self, module: str) -> dict[str, np.ndarray[Any, Any]]:
        """Columns id, rank and the counters named in COUNTERS; one entry per record."""
        layout, content = COUNTERS[module], self.unpack(self.modules[module])
        if len(content) % (8 * layout.words):
            raise damaged(self.path, f"module {module} is no whole number of records")
        integers = np.frombuffer(content, "<i8").reshape(-1, layout.words)
        used = integers[:, 0] != 0  # likewise filled up
        integers = integers[used]
        doubles = integers.view("<f8")
        columns = {"id": integers[:, 0].view("<u8"), "rank": integers[:, 1]}
        for name, index in layout.columns.items():
            columns[name] = (integers if index < layout.integers else doubles)[:, 2 + index]
        return columns

    def dxt(self, module: str) -> Iterator[DxtRecord]:
        """The records of a DXT module whose version is in DXT_SEGMENTS; their write segments only."""
        region = self.modules[module]
        content, size, at = memoryview(self.unpack(region)), DXT_SEGMENTS[module][region.version].itemsize, 0
        while at < len(content):
            if at + _DXT_HEAD.size > len(content):
                raise damaged(self.path, f"module {module} ends within a record")
            file_id, rank, _, hostname, writes, reads = _DXT_HEAD.unpack_from(content, at)
            at += _DXT_HEAD.size
            end = at + (writes + reads) * size
            if writes < 0 or reads < 0 or end > len(content):
                raise damaged(self.path, f"module {module} announces more segments than it has")
            yield DxtRecord(file_id, rank, _text(hostname), writes, content[at : at + writes * size])
            at = end


def damaged(path: Path, what: str) -> TraceError:
    """The error of a log that cannot be trusted."""
    return TraceError(
        f"{path}: damaged Darshan log: {what}; leave it out, or copy it again from where it was written"
    )


@lru_cache(maxsize=1024)  # a log says its host with each file
def _text(field: bytes) -> str:
    return field.split(b"\0")[0].decode("utf-8", "replace")


def _unpack(path: Path, data: bytes, region: Region, compression: int) -> bytes:
    """Ranks of one MPI job each append a stream of their own, so a region may hold several."""
    packed = data[region.offset : region.offset + region.length]
    if compression == _NONE:
        return packed
    parts = []
    try:
        while packed:
            stream = zlib.decompressobj()
            parts.append(stream.decompress(packed))
            if not stream.eof:
                raise damaged(path, "compressed data end too early")
            packed = stream.unused_data
    except zlib.error as error:
        raise damaged(path, f"compressed data fail their checksum ({error})") from error
    return b"".join(parts)


def _header(path: Path, data: bytes) -> tuple[Any, ...]:
    if len(data) < _HEADER.size:
        what = "empty file" if not data else f"only {len(data)} bytes"
        raise TraceError(
            f"{path}: no Darshan log: {what}; its process was probably killed while it wrote; leave it out"
        )
    fields = _HEADER.unpack_from(data)
    version, magic, compression = fields[:3]
    if magic != _MAGIC:
        raise TraceError(f"{path}: no Darshan log of this byte order (magic number {magic}); leave it out")
    if version != b"3.41".ljust(8, b"\0"):
        raise TraceError(
            f"{path}: log format {_text(version)!r}, only 3.41 (Darshan 3.4.1 and later) is read; "
            "rewrite it with darshan-convert of darshan-util 3.5.0"
        )
    if compression not in (_ZLIB, _NONE):
        raise TraceError(f"{path}: compression {compression} is not read; rewrite it with darshan-convert")
    return fields


def _check_tiling(path: Path, size: int, regions: list[Region], compression: int) -> None:
    """Parts must follow each other without gap or overlap, or one was lost or is read as another.

    An uncompressed (memory-mapped) log has room between its parts.
    """
    at = _HEADER.size
    for region in sorted(regions, key=lambda region: region.offset):
        gap = region.offset - at
        if gap < 0 or region.offset + region.length > size or (gap and compression == _ZLIB):
            raise damaged(path, "its parts overlap, leave gaps or lie beyond its end")
        at = region.offset + region.length
    if at != size and compression == _ZLIB:
        raise damaged(path, f"{size - at} bytes that belong to no part")


def _job_region(size: int, others: list[Region]) -> Region:
    """The job record has no entry in the header: it fills what lies before the first other part."""
    end = min((region.offset for region in others), default=size)
    return Region(_HEADER.size, max(0, end - _HEADER.size), 0, False)


def _metadata(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def read_raw(path: Path) -> RawLog:
    """Reads a log's header and job record.

    Raises TraceError for a file that is empty, truncated, damaged, foreign or of another format.
    """
    try:
        data = read_bytes(path)
    except OSError as error:
        raise TraceError(
            f"{path}: cannot be read ({error.strerror}); check that it exists and is yours"
        ) from error
    fields = _header(path, data)
    compression, flags, maps, versions = fields[2], fields[3], fields[4:134], fields[134:]
    spans = [(maps[at], maps[at + 1]) for at in range(0, len(maps), 2)]
    regions = {}
    for number, (offset, length) in enumerate(spans[1:]):
        if length or (offset and compression == _ZLIB):
            name = MODULES[number] if number < len(MODULES) else f"module {number}"
            regions[name] = Region(offset, length, versions[number], bool(flags >> number & 1))
    names = Region(*spans[0], 0, False)
    others = [region for region in (names, *regions.values()) if region.offset]
    job_region = _job_region(len(data), others)
    _check_tiling(path, len(data), [job_region, *others], compression)
    content = _unpack(path, data, job_region, compression)
    if len(content) < _JOB.size:
        raise damaged(path, "no whole job record")
    *job, metadata = _JOB.unpack_from(content)
    exe = _text(content[_JOB.size :]).partition("\n")[0].strip()
    return RawLog(path, data, compression, tuple(job), _metadata(_text(metadata)), exe, names, regions)
