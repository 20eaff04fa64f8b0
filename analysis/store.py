"""What was collected from a campaign's runs, kept beside them, so that only new and changed runs are read again.

`CAMPAIGN/collected.zip` holds each table as Parquet, and for each run a key of all that it was made
from: the files of the run by size and time, and this code. The file is a convenience: where it is
missing, damaged, foreign or cannot be written, runs are read as if it had never been there.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import polars as pl

from analysis.tables import TABLES
from hpcckpt import rundir
from hpcckpt.rundir import CampaignDir, RunDir, read_bytes, write_bytes

FILE = "collected.zip"
_KEYS = "keys.json"
_NOT_OF_A_RUN = ("impossible",)
_ANALYSIS, _HPCCKPT = Path(__file__).parent, Path(rundir.__file__).parent
_CODE = ((_ANALYSIS, "**/*.py"), (_HPCCKPT, "*.py"), (_HPCCKPT, "strategies/*.py"))
"""Code that decides what a table holds."""

Frames = dict[str, pl.DataFrame]
Execution = tuple[str, int, str, int]
"""What no two executions share: run, and rank 0's start, boot and process."""


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A run's part of the tables."""

    execution: Execution
    frames: Frames
    """Tables that the run has no part in may be missing."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says of one run beside its tables."""

    key: str
    path: str
    """The run's directory as it was named then: it stands in the tables."""
    execution: Execution


class _Keys(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    runs: dict[str, _Entry]


SUM_BYTES = 16
"""The file begins with a digest of all that follows: an archive that can be unpacked."""


class Store:
    """The kept tables of one campaign. A directory that is no campaign keeps nothing."""

    def __init__(self, campaign: Path) -> None:
        self.path = campaign / FILE
        self.active = CampaignDir(campaign).ledger.is_file()
        self._entries: dict[str, _Entry] = {}
        self._parts: dict[str, Frames] = {}
        self._changed = False
        if self.active:
            self._load()

    def get(self, path: Path, name: str, key: str) -> Taken | None:
        """What was collected from the run, if nothing of it has changed since."""
        entry = self._entries.get(name)
        if entry is None or entry.key != key:
            return None
        frames = self._parts[name]
        if entry.path != str(path):
            frames = {table: _moved(found, entry.path, str(path)) for table, found in frames.items()}
        return Taken(execution=entry.execution, frames=frames)

    def put(self, path: Path, name: str, key: str, taken: Taken) -> None:
        """Keep what was collected from the run; `key` is from before it was read."""
        if self.active:
            self._entries[name] = _Entry(key=key, path=str(path), execution=taken.execution)
            self._parts[name] = {table: found for table, found in taken.frames.items() if found.height}
            self._changed = True

    def save(self) -> None:
        """Write the file where it has changed and can be written."""
        gone = [name for name in self._entries if not (self.path.parent / name.partition("/")[2]).is_dir()]
        for name in gone:
            del self._entries[name], self._parts[name]
        if not self._changed and not gone:
            return
        try:
            write_bytes(self.path, self._packed())
        except OSError:
            return  # somebody else's campaign, or a full disk: next time the runs are read again

    def _packed(self) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(_KEYS, msgspec.json.encode(_Keys(code=code_digest(), runs=self._entries)))
            for table in _tables():
                parts = [part[table] for part in self._parts.values() if table in part]
                if parts:
                    content = io.BytesIO()
                    pl.concat(parts).write_parquet(content)
                    archive.writestr(f"{table}.parquet", content.getvalue())
        return _sum(buffer.getvalue()) + buffer.getvalue()

    def _load(self) -> None:
        try:
            content = read_bytes(self.path)
            if content[:SUM_BYTES] != _sum(content[SUM_BYTES:]):
                return  # the archive's own sums do not cover its members' names
            with zipfile.ZipFile(io.BytesIO(content[SUM_BYTES:])) as archive:
                keys = msgspec.json.decode(archive.read(_KEYS), type=_Keys)
                if keys.code == code_digest():
                    self._parts = _parts(archive, keys)
                    self._entries = keys.runs
        except (Exception, pl.exceptions.PanicException):  # whatever a damaged file causes, it only costs time
            self._entries, self._parts = {}, {}


def _sum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=SUM_BYTES).digest()


def run_key(path: Path) -> str:
    """A digest of the names, sizes and times of all files that a run's tables are made from, and of its place."""
    run = RunDir(path.absolute())
    digest = hashlib.blake2b(os.fsencode(run.path), digest_size=16)
    single = map(_file, map(str, (run.run, run.manifest, run.state, run.restart)))
    for name, size, time in sorted((*single, *_files(run.legs))):
        digest.update(f"{name} {size} {time}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _files(directory: Path) -> Iterator[tuple[str, int, int]]:
    """All files below, through links too; whether they are the right ones, and can be read, others say."""
    waiting = [str(directory)]
    seen: set[tuple[int, int]] = set()
    while waiting:
        place = waiting.pop()
        try:
            status = os.stat(place)  # noqa: PTH116  (thousands of them)
            with os.scandir(place) as entries:
                found = [(entry.path, entry.is_dir()) for entry in entries]
        except OSError:
            yield place, -1, 0
            continue
        if (identity := (status.st_dev, status.st_ino)) not in seen:  # a link may lead back
            seen.add(identity)
            waiting += [path for path, is_directory in found if is_directory]
            yield from (_file(path) for path, is_directory in found if not is_directory)


def _file(path: str) -> tuple[str, int, int]:
    try:
        found = os.stat(path)  # noqa: PTH116  (thousands of them)
    except OSError:
        return path, -1, 0
    return path, found.st_size, found.st_mtime_ns


@cache
def code_digest() -> str:
    """A digest of the code that decides what the tables hold: another release, or an edit, reads all runs again."""
    digest = hashlib.blake2b(pl.__version__.encode(), digest_size=16)
    for root, pattern in _CODE:
        for file in sorted(root.glob(pattern)):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _tables() -> list[str]:
    return [table for table in TABLES if table not in _NOT_OF_A_RUN]


def _parts(archive: zipfile.ZipFile, keys: _Keys) -> dict[str, Frames]:
    """Each run's part of each table. Raises for a file that lacks any or has other columns."""
    found: dict[str, Frames] = {name: {} for name in keys.runs}
    present = set(archive.namelist())
    for table in _tables():
        if f"{table}.parquet" not in present:
            continue
        frame = pl.read_parquet(archive.read(f"{table}.parquet"))
        if dict(frame.schema) != {column: kind for column, (kind, _) in TABLES[table].items()}:
            raise ValueError(f"{table} has other columns")
        for (name,), part in frame.partition_by("run", as_dict=True, maintain_order=True).items():
            found[str(name)][table] = part
    if not all("runs" in part or "restarts" in part for part in found.values()):
        raise ValueError("a run without its row")
    return found


def _moved(frame: pl.DataFrame, old: str, new: str) -> pl.DataFrame:
    """The table with a run's directory named as it is now. Only these columns name files."""
    for column in {"path", "file"} & set(frame.columns):
        text = pl.col(column)
        inside = (text == old) | text.str.starts_with(f"{old}/")
        moved = pl.lit(new) + text.str.slice(len(old))
        frame = frame.with_columns(pl.when(inside).then(moved).otherwise(text).alias(column))
    return frame
