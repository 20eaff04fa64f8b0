"""The Darshan reader: every log of tests/data/darshan-logs to its truth, and damaged logs to an error.

The truths are those of the README beside the logs.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.readers import darshan_layout
from analysis.readers.darshan import DarshanLog, read_log, traced_below, traced_bytes, zero_ns
from analysis.readers.darshan_tables import FileSegments, Segments
from hpcckpt.errors import TraceError
from hpcckpt.tracing import darshan_log, iotrace_convert
from hpcckpt.tracing.iotrace_events import EVENT as EVENT_TYPE
from hpcckpt.tracing.iotrace_events import Events, Op

LOGS = Path(__file__).parent.parent / "data" / "darshan-logs"
EDGE = LOGS / "edge"
PAYLOAD = 16_777_216
ALL = sorted(LOGS.rglob("*.darshan"))


def rank_logs(run: str) -> list[DarshanLog]:
    """The four logs of a run in which each rank wrote its own."""
    return [
        read_log(next((LOGS / f"nonmpi_{run}" / f"rank{rank:04d}").glob("*.darshan")), rank)
        for rank in range(4)
    ]


def marks(run: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((LOGS / f"nonmpi_{run}.marks.json").read_text())
    return found


def sizes(path: Path) -> dict[str, int]:
    lines = (line.rsplit(" ", 1) for line in path.read_text().splitlines() if line)
    return {name: int(size) for name, size in lines}


def codes(warnings: list[str]) -> set[str]:
    return {warning.split(":")[0] for warning in warnings}


def edge(name: str, directory: str) -> tuple[DarshanLog, dict[str, int]]:
    """An edge case's log, and its sizes on disk by full path."""
    on_disk = EDGE / f"{name}.sizes"
    found = sizes(on_disk) if on_disk.exists() else {}
    return read_log(EDGE / f"{name}.darshan"), {
        f"/scratch/ckpt/{directory}/{each}": n for each, n in found.items()
    }


def row(log: DarshanLog, path: str) -> int:
    (found,) = np.flatnonzero(log.files.path == path)
    return int(found)


# ---- one log per rank


@pytest.mark.parametrize("run", ["single", "copies", "shards"])
def test_bytes_per_file_and_rank(run: str) -> None:
    expected = {
        "single": [8_391_578, 0, 0, 0],
        "copies": [8_391_790] * 4,
        "shards": [2_100_390] * 4,
    }[run]
    per_file: Counter[str] = Counter()
    for rank, log in enumerate(rank_logs(run)):
        traced = traced_bytes(log, f"/scratch/ckpt/{run}")
        assert traced.by_rank == {rank: expected[rank] + 1}, "the checkpoints and one byte of beacon"
        for (path, each), count in traced.by_final_name.items():
            assert each == rank
            per_file[Path(path).name] += count
    on_disk = sizes(LOGS / f"nonmpi_{run}.sizes")
    assert {name: per_file[name] for name in on_disk} == on_disk
    assert sum(on_disk.values()) == sum(expected)


@pytest.mark.parametrize("run", ["single", "copies", "shards"])
def test_facts_of_a_rank_log(run: str) -> None:
    for mark, log in zip(marks(run), rank_logs(run), strict=True):
        assert (log.pid, log.nprocs, log.hostname, log.lib_ver) == (mark["pid"], 1, "vm", "3.5.0")
        assert (log.tracer, log.warnings) == ("darshan", [])
        assert log.exe.startswith("python gen.py")
        assert set(log.files.rank) <= {mark["rank"]}
        assert set(log.segments.rank) <= {mark["rank"]}
        saved = np.array([path.endswith(".pt") for path in log.files.path], bool)
        assert np.all(log.files.opens[saved] == 1), "Darshan's own number, with its fileno calls, is 5"


@pytest.mark.parametrize("run", ["single", "copies", "shards"])
def test_beacons_place_every_write_inside_its_save(run: str) -> None:
    for mark, log in zip(marks(run), rank_logs(run), strict=True):
        before, after = (round(second * 1e9) for second in mark["beacon"])
        zero = zero_ns(log, [(f"/scratch/ckpt/{run}/.beacon.rank{mark['rank']}", before, after)])
        assert zero.drift_ns is None
        assert zero.error_ns == (after - before) // 2
        segments = log.segments
        for generation, begin, end, _ in mark["ck"]:
            mine = np.array([f"/ck{generation}" in path for path in segments.path])
            assert np.all(zero.on_clock(segments.start_s[mine]) >= begin * 1e9 - zero.error_ns)
            assert np.all(zero.on_clock(segments.end_s[mine]) <= end * 1e9 + zero.error_ns)


def test_two_beacons_tell_the_drift() -> None:
    log = rank_logs("copies")[1]
    path = "/scratch/ckpt/copies/.beacon.rank1"
    at = (
        float(
            log.segments.start_s[log.segments.path == path][0]
            + log.segments.end_s[log.segments.path == path][0]
        )
        / 2
    )
    both = replace(log, segments=one_byte_writes(path, [at, at + 100]))
    zero = zero_ns(both, [(path, 5_000_000_000, 5_000_000_100), (path, 105_000_000_700, 105_000_001_000)])
    assert (zero.drift_ns, zero.error_ns) == (800, 150)
    assert zero.on_clock(np.array([at, at + 50, at + 100])).tolist() == [
        5_000_000_050,
        55_000_000_450,
        105_000_000_850,
    ]


def one_byte_writes(path: str, times: list[float]) -> Segments:
    at = np.array(times)
    record = FileSegments(path, 0, "vm", 0, len(times), len(times))
    return Segments((record,), np.zeros(len(times), int), np.ones(len(times), int), at, at)


def test_a_log_without_the_beacon_is_an_error() -> None:
    with pytest.raises(TraceError, match="none of the 1 beacon writes"):
        zero_ns(rank_logs("single")[0], [("/scratch/ckpt/elsewhere", 1, 2)])


# ---- edge cases


def test_one_mpi_log_of_four_ranks() -> None:
    log, _ = edge("mpi_single", "m_single")
    traced = traced_bytes(log, "/scratch/ckpt/m_single")
    assert (log.nprocs, log.pid, log.warnings) == (4, -1, [])
    assert traced.by_rank == {0: 8_391_579, 1: 1, 2: 1, 3: 1}


def test_a_shared_file_is_divided_by_dxt() -> None:
    log, _ = edge("mpi_sharedfile", "m_sharedfile")
    traced = traced_bytes(log, "/scratch/ckpt/m_sharedfile")
    assert codes(log.warnings) == {"shared-record"}
    assert traced.by_rank == dict.fromkeys(range(4), 2 * 1_048_576 + 1)
    assert traced.by_written_name["/scratch/ckpt/m_sharedfile/ck1.bin", 3] == 1_048_576
    assert traced.warnings == []
    assert log.files.posix_bytes_written[row(log, "/scratch/ckpt/m_sharedfile/ck0.bin")] == 4 * 1_048_576


def test_a_shared_file_without_dxt_stays_undivided() -> None:
    log, _ = edge("mpi_sharedfile", "m_sharedfile")
    bare = replace(log, segments=replace(log.segments, records=()))
    traced = traced_bytes(bare, "/scratch/ckpt/m_sharedfile")
    assert traced.by_rank[-1] == 8 * 1_048_576
    assert codes(traced.warnings) == {"shared-record"}


def test_collective_writes_show_the_aggregator_and_each_rank() -> None:
    log, _ = edge("mpi_mpiio", "m_mpiio")
    traced = traced_bytes(log, "/scratch/ckpt/m_mpiio")
    assert traced.by_rank == {0: 2 * 4_194_304 + 1, 1: 1, 2: 1, 3: 1}
    per_rank: Counter[int] = Counter()
    for rank, length in zip(
        log.mpiio_segments.rank.tolist(), log.mpiio_segments.length.tolist(), strict=True
    ):
        per_rank[rank] += length
    assert per_rank == dict.fromkeys(range(4), 2 * 1_048_576)
    assert log.files.mpiio_bytes_written[row(log, "/scratch/ckpt/m_mpiio/ck0.mpi")] == 4_194_304


def test_npsave_is_the_sum_of_posix_and_stdio() -> None:
    log, on_disk = edge("npsave_stdio_and_posix", "npy")
    assert (log.files.posix_bytes_written.tolist(), log.files.stdio_bytes_written.tolist()) == (
        [128],
        [PAYLOAD],
    )
    assert log.segments.length.tolist() == [128]
    traced = traced_bytes(log, "/scratch/ckpt/npy", on_disk)
    assert traced.by_rank == {0: PAYLOAD + 128}
    assert codes(log.warnings) == {"stdio-without-dxt"}
    assert traced.warnings == []
    assert log.files.opens.tolist() == [1]


def test_renamed_bytes_count_under_the_final_name() -> None:
    log, on_disk = edge("rename_tmp_then_final", "rename")
    traced = traced_bytes(log, "/scratch/ckpt/rename", on_disk)
    final, temporary = "/scratch/ckpt/rename/a.pt", "/scratch/ckpt/rename/a.pt.tmp"
    assert traced.by_final_name == {(final, 0): 16_778_708}
    assert traced.by_written_name == {(temporary, 0): 16_778_708, (final, 0): 0}
    assert traced.by_rank == {0: 16_778_708}
    assert traced.warnings == []
    assert log.files.renamed_from[row(log, final)] == temporary


def test_rewritten_headers_are_more_than_the_file() -> None:
    log, on_disk = edge("h5py_rewrites", "h5")
    traced = traced_bytes(log, "/scratch/ckpt/h5", on_disk)
    assert (traced.by_rank, list(on_disk.values())) == ({0: 16_783_752}, [16_783_688])
    assert traced.warnings == []


@pytest.mark.parametrize(
    ("name", "directory", "file", "seen"),
    [("copy_file_range_unseen", "cfr", "dst.bin", 0), ("memmap_unseen", "mmap", "a.mm", 1)],
)
def test_unseen_bytes_are_warned_of(name: str, directory: str, file: str, seen: int) -> None:
    log, on_disk = edge(name, directory)
    traced = traced_bytes(log, f"/scratch/ckpt/{directory}", on_disk)
    path = f"/scratch/ckpt/{directory}/{file}"
    assert traced.by_final_name[path, 0] == seen
    assert len(traced.warnings) == 1
    assert traced.warnings[0].startswith(f"unseen-bytes: {path}: {seen} of {PAYLOAD} bytes")


def test_dxt_version_2_is_read_and_named() -> None:
    log, _ = edge("dxt_v2", "torch")
    assert codes(log.warnings) == {"dxt-version"}
    assert (len(log.segments), log.segments.length.sum()) == (5, 16_779_105)
    assert np.all(log.segments.end_s >= log.segments.start_s)


def test_a_later_dxt_version_is_not_measured(tmp_path: Path) -> None:
    data = bytearray((EDGE / "mpi_single.darshan").read_bytes())
    data[8 + 8 + 8 + 8 + 130 * 8 + 4 * darshan_layout.MODULES.index("DXT_POSIX")] = 7
    log = read_log(written(tmp_path, data))
    assert codes(log.warnings) == {"dxt-version", "no-dxt"}
    assert len(log.segments) == 0


def test_a_partial_module_is_warned_of(tmp_path: Path) -> None:
    data = bytearray((EDGE / "mpi_single.darshan").read_bytes())
    data[24] = 1 << darshan_layout.MODULES.index("POSIX")
    assert codes(read_log(written(tmp_path, data)).warnings) == {"partial-module"}


# ---- the layout, and what isn't a log


def test_counters_stand_where_the_library_has_them() -> None:
    library = darshan_log.load()
    for module, kind in (("POSIX", library.posix), ("STDIO", library.stdio)):
        layout = darshan_layout.COUNTERS[module]
        names = (kind.names or ())[2:]
        assert len(names) == layout.integers + layout.floats
        assert {name: names[index] for name, index in layout.columns.items()} == {
            name: name for name in layout.columns
        }
    assert darshan_layout.SEGMENT == darshan_log.SEGMENT


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem[:30])
def test_the_librarys_own_reader_agrees(path: Path) -> None:
    """PyDarshan counts the same bytes and segments (it cannot read DXT version 2)."""
    report = pytest.importorskip("darshan").DarshanReport(str(path), read_all=False)
    log = read_log(path)
    for module, ours in (("POSIX", log.files.posix_bytes_written), ("STDIO", log.files.stdio_bytes_written)):
        if module in report.modules and ours.sum():
            report.mod_read_all_records(module)
            theirs = report.records[module].to_df()["counters"][f"{module}_BYTES_WRITTEN"]
            assert theirs.sum() == ours.sum()
    if path.stem != "dxt_v2":
        report.mod_read_all_dxt_records("DXT_POSIX", dtype="dict")
        lengths = [
            each["length"] for record in report.records["DXT_POSIX"] for each in record["write_segments"]
        ]
        assert sorted(lengths) == sorted(log.segments.length.tolist())


@pytest.mark.parametrize(
    "content", [b"", b"x", b"PK\x03\x04" * 1000, bytes(5000)], ids=["empty", "short", "zip", "zeros"]
)
def test_foreign_files_are_errors_that_say_so(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no Darshan log.*leave it out"):
        read_log(written(tmp_path, content))


def test_a_missing_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_log(tmp_path / "none.darshan")


@pytest.mark.parametrize("version", [b"3.21", b"9.99"])
def test_another_log_format_names_the_converter(version: bytes, tmp_path: Path) -> None:
    data = bytearray(ALL[0].read_bytes())
    data[:4] = version
    with pytest.raises(TraceError, match="darshan-convert"):
        read_log(written(tmp_path, data))


def written(directory: Path, content: bytes | bytearray) -> Path:
    path = directory / "log.darshan"
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@given(source=st.sampled_from(ALL), share=st.floats(0, 1, exclude_max=True))
@settings(max_examples=300, deadline=None)
def test_a_log_cut_anywhere_is_an_error(source: Path, share: float, scratch: Path) -> None:
    data = source.read_bytes()
    with pytest.raises(TraceError):
        read_log(written(scratch, data[: int(share * len(data))]))


@given(source=st.sampled_from(ALL), share=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
@settings(max_examples=500, deadline=None)
def test_a_changed_byte_is_an_error_or_a_warning_or_harmless(
    source: Path, share: float, flip: int, scratch: Path
) -> None:
    data = bytearray(source.read_bytes())
    data[int(share * len(data))] ^= flip
    before = read_log(source)
    try:
        after = read_log(written(scratch, data))
    except TraceError:
        return
    assert after.warnings != before.warnings or same(before, after)


@given(content=st.binary(max_size=3000), keep=st.integers(0, 1400))
@settings(max_examples=300, deadline=None)
def test_a_good_beginning_with_garbage_behind_is_an_error(content: bytes, keep: int, scratch: Path) -> None:
    data = ALL[0].read_bytes()[:keep] + content
    with pytest.raises(TraceError):
        read_log(written(scratch, data))


def same(left: DarshanLog, right: DarshanLog) -> bool:
    """Equal files and segments."""
    pairs = [
        (left.files, right.files),
        (left.segments, right.segments),
        (left.mpiio_segments, right.mpiio_segments),
    ]
    columns = [
        np.array_equal(getattr(one, column.name), getattr(two, column.name))
        for one, two in pairs
        for column in fields(one)
        if column.name != "records"
    ]
    return all(columns) and all(one.records == two.records for one, two in pairs[1:])


# ---- round trip: events -> log -> reader

NAMES = {1: "/c/a", 9: "/c/b.tmp", 17: "/c/b", 30: "/c/ünï\udcff", 50: "/elsewhere/x"}
BYTES = st.integers(0, 2**50)
OPS = [Op.OPEN, Op.WRITE, Op.COPY, Op.STREAM_OPEN, Op.STREAM_WRITE, Op.FSYNC, Op.CLOSE, Op.MMAP]
EVENT = st.tuples(
    st.sampled_from(OPS),
    st.sampled_from(sorted(NAMES)),
    st.integers(-1, 2**50),
    BYTES,
    st.sampled_from([0, 0, 28]),
)


def events_from(rows: list[tuple[Op, int, int, int, int]]) -> Events:
    table = np.zeros(len(rows), EVENT_TYPE)
    for index, (op, file, offset, length, error) in enumerate(rows):
        start = 10**15 + index * 1000
        table[index] = (op, error, 1, file, 0, offset, 0 if error else length, start, start + 500)
    return Events(Path("x.1.iotrace"), 77, 1, "node", "boot", "python", 10**18, 10**15, NAMES, table, 0, 0, 0)


@given(rows=st.lists(EVENT, max_size=60))
@settings(max_examples=150, deadline=None)
def test_events_come_back_from_the_log(rows: list[tuple[Op, int, int, int, int]], scratch: Path) -> None:
    path = scratch / "hpcckpt_python_id77-77_1_1.darshan"
    iotrace_convert.convert(events_from(rows), path, 4)
    log = read_log(path, rank=4)
    good = [row for row in rows if not row[4]]
    expected: Counter[str] = Counter()
    for op, file, _, length, _ in good:
        if op in (Op.WRITE, Op.COPY, Op.STREAM_WRITE):
            expected[NAMES[file]] += length
    traced = traced_bytes(log, "/")
    assert {path: n for (path, _), n in traced.by_written_name.items() if n} == {
        p: n for p, n in expected.items() if n
    }
    writes = [(NAMES[f], o, n) for op, f, o, n, _ in good if op in (Op.WRITE, Op.COPY, Op.STREAM_WRITE)]
    segments = zip(log.segments.path, log.segments.offset.tolist(), log.segments.length.tolist(), strict=True)
    assert sorted(segments) == sorted(writes)
    assert log.files.fsyncs.sum() == sum(op == Op.FSYNC for op, *_ in good)
    assert log.files.mmaps.sum() == sum(op == Op.MMAP for op, *_ in good)
    assert (log.pid, log.hostname, log.warnings) == (77, "node", [])


def test_segment_times_keep_the_microsecond(scratch: Path) -> None:
    path = scratch / "times.darshan"
    iotrace_convert.convert(events_from([(Op.WRITE, 1, 0, 5, 0)] * 3), path, 0)
    segments = read_log(path).segments
    assert np.allclose(segments.start_s, [0, 1e-6, 2e-6], atol=1e-9)
    assert np.allclose(segments.end_s - segments.start_s, 5e-7, atol=1e-9)


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="could not write"):
        iotrace_convert.convert(events_from([]), tmp_path / "no" / "such" / "x.darshan", 0)


def test_the_logs_are_read_as_they_are_in_the_repository(tmp_path: Path) -> None:
    """Reading changes nothing: a copy made read-only gives the same log."""
    copy = tmp_path / ALL[0].name
    shutil.copy(ALL[0], copy)
    copy.chmod(0o400)
    assert same(read_log(ALL[0]), read_log(copy))


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem[:40])
def test_many_directories_in_one_pass_are_each_alone(path: Path) -> None:
    """Directories may lie in each other, end in a slash, or hold nothing."""
    try:
        log = read_log(path, 0)
    except TraceError:
        return
    above = {str(parent) for each in log.files.path for parent in PurePosixPath(each).parents}
    directories = [*sorted(above), "/nothing", *(f"{name}/" for name in sorted(above))]
    together = traced_below(log, directories)
    for directory in directories:
        alone = traced_bytes(log, directory)
        assert together[directory] == alone
        inside = {each for each, _ in alone.by_written_name}
        expected = {str(each) for each in log.files.path if each.startswith(directory.rstrip("/") + "/")}
        assert expected <= inside
