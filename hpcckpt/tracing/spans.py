"""One rank's trace file: records are kept in memory and written between the measured parts.

The file always ends with a closing line unless the process is killed outright: an ordinary end,
an exception and a termination signal all write it. Only this module writes the file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcckpt.comm import clock
from hpcckpt.records import End, Record, Span, encode


class Trace:
    """Records of one rank in one leg."""

    def __init__(
        self, path: Path, before_phase: Callable[[str, int | None], None] = lambda phase, generation: None
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self._pending: list[Record] = []
        self._open: list[str] = []
        self._lock = threading.Lock()
        self._closed = False
        self._before_phase = before_phase

    @property
    def inside_now(self) -> tuple[str, ...]:
        """Phases that are open, outermost first."""
        return tuple(self._open)

    def add(self, record: Record) -> None:
        """Keep a record; it reaches the file with the next `flush`."""
        self._pending.append(record)

    @contextmanager
    def phase(self, generation: int, phase: str) -> Iterator[None]:
        """A phase of a save: exclusive wall time, so phases never nest."""
        assert not any(name != "save" for name in self._open), f"{phase} inside {self._open}"
        self._open.append(phase)
        begin = clock()
        try:
            self._before_phase(phase, generation)
            yield
            self.add(Span(generation=generation, phase=phase, begin_ns=begin, end_ns=clock()))
        finally:
            self._open.pop()

    @contextmanager
    def inside(self, what: str) -> Iterator[None]:
        """Name what the rank is doing, for the closing line of a rank that is ended from outside."""
        self._open.append(what)
        yield
        self._open.pop()  # stays where an exception passes: the closing line tells where it came from

    def flush(self) -> None:
        """Write what is pending. Call it where nothing is measured."""
        with self._lock:
            if not self._closed:
                self._write(self._pending)
                self._pending = []

    def close(self, status: str, error: str | None = None) -> None:
        """Write everything and the closing line; later records are dropped. Safe from another thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            end = End(t_ns=clock(), status=status, error=error, inside=list(self._open))
            self._write([*self._pending, end])
            os.close(self._file)

    def _write(self, records: list[Record]) -> None:
        data = b"".join(map(encode, records))
        while data:
            data = data[os.write(self._file, data) :]
