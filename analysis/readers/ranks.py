"""A rank's JSONL file: every record of a leg, or the reason why the file cannot be used.

Nothing is repaired. A file whose last line is cut is still read up to there, so that a person can
see how far the rank came, but it says so and never counts as complete.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from analysis.readers.plausible import impossible, possible
from hpcckpt import records
from hpcckpt.records import End, Record, Start
from hpcckpt.rundir import read_bytes

_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(records.LINES)
R = TypeVar("R", bound=Record)

# Stable codes of what can be wrong with a rank's file.
NO_FILE = "no_rank_file"
EMPTY = "empty_rank_file"
HALF_LINE = "half_line"
BAD_LINE = "bad_line"
OTHER_SCHEMA = "other_schema"
NO_CLOSING_LINE = "no_closing_line"
ENDED_BADLY = "ended_badly"
IMPOSSIBLE_RECORD = "impossible_record"


class RankFile(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What a rank's file holds. `code` is None only for a complete file that ended with status ok."""

    path: str
    records: list[Record]
    code: str | None = None
    reason: str | None = None

    def all(self, kind: type[R]) -> list[R]:
        """The records of one type, in the order in which they were written."""
        return self.by_type.get(kind, [])  # type: ignore[return-value]

    @cached_property
    def by_type(self) -> dict[type[Record], list[Record]]:
        """The records by their type, sorted once: a file is asked for each of them, many times."""
        found: dict[type[Record], list[Record]] = defaultdict(list)
        for record in self.records:
            found[type(record)].append(record)
        return dict(found)

    @property
    def start(self) -> Start:
        """The opening line; only a file without a code is sure to have one."""
        return self.all(Start)[0]


def read_rank(path: Path) -> RankFile:
    """All records of the file at `path`. Never raises for what the file holds."""
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        return _refused(path, NO_FILE, "the rank left no file")
    except OSError as error:
        return _refused(path, NO_FILE, f"the file cannot be read ({error.strerror})")
    if not data:
        return _refused(path, EMPTY, "the file is empty")
    version = _schema_version(data)
    if version is not None and version != records.SCHEMA_VERSION:
        return _refused(
            path, OTHER_SCHEMA, f"schema version {version}, this release reads {records.SCHEMA_VERSION}"
        )
    whole, _, rest = data.rpartition(b"\n")
    try:
        found = _decoder.decode_lines(whole)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _first_bad_line(path, whole)
    if rest:
        # The newline belongs to the line: without it the write may have been cut anywhere.
        reason = f"line {len(found) + 1}, the last one, is cut after {len(rest)} bytes"
        return RankFile(path=str(path), records=found, code=HALF_LINE, reason=reason)
    return _judged(path, found)


def _refused(path: Path, code: str, reason: str) -> RankFile:
    return RankFile(path=str(path), records=[], code=code, reason=reason)


def _schema_version(data: bytes) -> Any:
    """What the first line gives as its schema version, None where it gives none."""
    try:
        first = msgspec.json.decode(data.partition(b"\n")[0])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return first.get("schema_version") if isinstance(first, dict) else None


def _first_bad_line(path: Path, data: bytes) -> RankFile:
    found: list[Record] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        try:
            found.append(_decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return RankFile(path=str(path), records=found, code=BAD_LINE, reason=f"line {number}: {error}")
    return RankFile(path=str(path), records=found, code=BAD_LINE, reason="not lines of JSON")


def _judged(path: Path, found: list[Record]) -> RankFile:
    code, reason = None, None
    file = RankFile(path=str(path), records=found)
    last = found[-1] if found else None
    if not found or not isinstance(found[0], Start):
        code, reason = BAD_LINE, "line 1 is not the opening line"
    elif not isinstance(last, End):
        code, reason = (
            NO_CLOSING_LINE,
            f"ends with a {type(last).__name__.lower()} line: the rank died or still runs",
        )
    elif last.status != "ok":
        inside = f" inside {' > '.join(last.inside)}" if last.inside else ""
        code, reason = (
            ENDED_BADLY,
            f"the rank ended as {last.status}{inside}: {last.error or 'no cause recorded'}",
        )
    elif not possible(file.by_type, len(found)):
        code, reason = IMPOSSIBLE_RECORD, impossible(found)
    return file if code is None else RankFile(path=str(path), records=found, code=code, reason=reason)
