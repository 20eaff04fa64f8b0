"""From a rank's real Darshan log to bytes and calls of a generation, where the log holds no times of writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.readers import trace
from analysis.readers.darshan import Zero, read_log
from hpcckpt.records import Save, Start

LOG = Path(__file__).parent.parent / "data/darshan-logs/edge/npsave_stdio_and_posix.darshan"


def start(pid: int) -> Start:
    return Start(
        schema_version=1, t_ns=0, run_id="r", leg="train", rank=0, size=1, node="n", virtual_node=False, host="h",
        pid=pid, boot_id="b", cores=1, ranks_on_host=1, threads=1, thread_level="multiple", versions={}, data="",
        parameters=0, barrier="poll",
    )  # fmt: skip


def save(directory: Path) -> Save:
    return Save(
        generation=0, step=1, directory=str(directory), arrive_ns=0, begin_ns=0, done_ns=1, end_ns=2, state_bytes=1,
        planned_bytes=1, rss_before_bytes=None, rss_peak_bytes=None, rss_reason="x", write_chars_bytes=None,
        storage_bytes=None, io_reason="x",
    )  # fmt: skip


def test_bytes_through_streams_count_but_their_calls_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy writes its header by write(2) and the data through a C stream, for which Darshan keeps no times."""
    (tmp_path / LOG.name).write_bytes(LOG.read_bytes())
    log = read_log(LOG, 0)
    written = next(Path(path) for path in log.files.path.tolist() if path.endswith(".npy"))
    monkeypatch.setattr(trace, "zero_ns", lambda log, marks: Zero(0, 0, None, 0.0, 0.0))
    found = trace.read_trace(tmp_path, start(log.pid), [], [save(written.parent)])
    assert found.reason is None
    generation = found.generations[0]
    assert generation.bytes == 16_777_216 + 128
    assert generation.calls is None
    assert generation.calls_reason == "calls with times hold 128 of 16777344 bytes"
