"""Run directories to tables. Every run is either taken, or listed as left out with code, file and reason.

Where runs lie, `analysis.locate` says; what one run holds, `analysis.run_rows`; what the tables
hold, `analysis.tables`. Here is only what concerns several runs. A run that cannot be read never
stops the others.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from analysis.locate import bad_ledgers, find_runs, impossible, is_run
from analysis.opened import DUPLICATE, UNREADABLE, LeftOut, opened
from analysis.readers import trace as traces
from analysis.readers.trace import TraceReader
from analysis.restart_rows import restart_frames
from analysis.run_rows import run_rows
from analysis.store import Execution, Frames, Store, Taken, run_key
from analysis.tables import TABLES, Tables, frame
from hpcckpt.records import TRAIN

Progress = Callable[[int, int, Path], None]
"""Called before each run: how many are done, of how many, and which comes next."""


def collect(
    paths: Sequence[Path],
    read_trace: TraceReader = traces.read_trace,
    keep: bool = True,
    progress: Progress | None = None,
) -> Tables:
    """The tables of all runs that `paths` name.

    With `keep`, what a campaign's runs gave is kept beside them, and only what is new or has changed is read.
    """
    parts: dict[str, list[pl.DataFrame]] = {table: [frame(table, [])] for table in TABLES}
    # Another reader of traces may find other things in the same files.
    collector = _Collector(read_trace, keep and read_trace is traces.read_trace)
    runs = find_runs(paths)
    with _no_garbage_collector():
        for number, path in enumerate(runs):
            if progress:
                progress(number, len(runs), path)
            for table, more in collector.taken(path).items():
                parts[table].append(more)
    collector.save()
    parts["impossible"].append(frame("impossible", impossible(paths)))
    ledgers = [
        LeftOut(UNREADABLE, ledger, reason).row(ledger.parent.name, "campaign")
        for ledger, reason in bad_ledgers(paths)
    ]
    parts["left_out"].append(frame("left_out", ledgers))
    found = {table: pl.concat(frames) for table, frames in parts.items()}
    return Tables(**found | {"runs": _flag_overlaps(found["runs"])})


@contextmanager
def _no_garbage_collector() -> Iterator[None]:
    """Records refer to nothing that refers back: to search a million of them for cycles, again and again, is vain."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Collector:
    """Takes runs one by one: from what is kept where nothing has changed, else from their files."""

    def __init__(self, read_trace: TraceReader, keep: bool) -> None:
        self.read_trace, self.keep = read_trace, keep
        self.executions: dict[Execution, Path] = {}
        self.stores: dict[Path, Store] = {}

    def taken(self, path: Path) -> Frames:
        """A run's part of the tables; or of `left_out` alone."""
        # The campaign is where the run lies: a copied run keeps its own name but not its place.
        name = f"{path.absolute().parent.name}/{path.name}"
        try:
            found = self._kept(path, name) if self.keep else self._read(path, name)
            self._refuse_copy(path, found.execution)
        except LeftOut as left:
            return {"left_out": frame("left_out", [left.row(name)])}
        except OSError as error:
            left_out = LeftOut(UNREADABLE, error.filename or path, error.strerror or str(error))
            return {"left_out": frame("left_out", [left_out.row(name)])}
        self.executions[found.execution] = path
        return found.frames

    def _refuse_copy(self, path: Path, execution: Execution) -> None:
        if first := self.executions.get(execution):
            raise LeftOut(DUPLICATE, path, f"the same execution as {first}, which is counted")

    def save(self) -> None:
        """Keep what was read, for the next time."""
        for store in self.stores.values():
            store.save()

    def _kept(self, path: Path, name: str) -> Taken:
        campaign = path.absolute().parent
        store = self.stores.get(campaign) or self.stores.setdefault(campaign, Store(campaign))
        if not store.active or not is_run(path):
            return self._read(path, name)
        key = run_key(path)
        found = store.get(path, name, key)
        if found is None:
            found = self._read(path, name)
            store.put(path, name, key, found)
        return found

    def _read(self, path: Path, name: str) -> Taken:
        run = opened(path)
        restart = run.job.run.settings.restart is not None
        start = run.legs[run.job.run.legs[0] if restart else TRAIN][0].start
        execution = start.run_id, start.t_ns, start.boot_id, start.pid
        self._refuse_copy(path, execution)
        frames = restart_frames(run, name) if restart else run_rows(run, name, self.read_trace)
        return Taken(execution=execution, frames=frames)


def _flag_overlaps(runs: pl.DataFrame) -> pl.DataFrame:
    """Runs of one campaign that ran at the same time disturbed each other: both are flagged."""
    rows = runs.to_dicts()
    timed = [run for run in rows if run["started"] is not None and run["ended"] is not None]
    timed.sort(key=lambda run: (run["campaign"], run["started"]))
    for i, run in enumerate(timed):
        for other in timed[i + 1 :]:
            if other["campaign"] != run["campaign"] or other["started"] >= run["ended"]:
                break
            run["flags"].append(f"overlaps with {other['run_id']}")
            other["flags"].append(f"overlaps with {run['run_id']}")
    return frame("runs", rows)


if __name__ == "__main__":
    import sys

    from analysis.__main__ import main as command

    raise SystemExit(command(["collect", *sys.argv[1:]]))
