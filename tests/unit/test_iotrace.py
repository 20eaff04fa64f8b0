"""The preload recorder against strace: same bytes per file, whatever call wrote them.

Every program runs in a process of its own, with the recorder preloaded; strace counts what the
kernel was asked to write. Nothing here looks at times.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.readers.darshan import read_log, traced_bytes
from hpcckpt.errors import TraceError
from hpcckpt.tracing import darshan_log
from hpcckpt.tracing.io.base import LOG_DIR, Absent
from hpcckpt.tracing.io.iotrace import IotraceTracer
from hpcckpt.tracing.iotrace_convert import convert
from hpcckpt.tracing.iotrace_events import Events, Op, read_events, shrink

FOUND = IotraceTracer.find(None, {})
pytestmark = pytest.mark.skipif(isinstance(FOUND, Absent), reason=str(FOUND))

NEEDS = {"h5py": "h5py", "torch_save": "torch", "torch_save_object": "torch"}
PRELUDE = """
import os, sys, threading, shutil, mmap
import numpy as np
D = sys.argv[1]
P = lambda name: os.path.join(D, name)
"""
FD = "fd = os.open(P('a'), os.O_RDWR | os.O_CREAT)\n"

WRITERS = {
    "os_write": FD + "os.write(fd, b'x' * 1000); os.write(fd, b'y' * 24)",
    "os_pwrite": FD + "os.pwrite(fd, b'x' * 1000, 500)",
    "os_writev": FD + "os.writev(fd, [b'x' * 10, b'y' * 20])",
    "os_pwritev": FD + "os.pwritev(fd, [b'x' * 10, b'y' * 20], 7); os.pwritev(fd, [b'z'], 0, os.RWF_DSYNC)",
    "append": "for _ in range(3):\n  with open(P('a'), 'ab', buffering=0) as f: f.write(b'x' * 100)",
    "python_file": "with open(P('a'), 'w') as f:\n  for i in range(5000): f.write(f'{i}\\n')",
    "np_save": "np.save(P('a.npy'), np.arange(100000))",
    "np_savez": "np.savez(P('a.npz'), a=np.arange(100000), b=np.ones(5))",
    "h5py": "import h5py\nwith h5py.File(P('a.h5'), 'w') as f: f['x'] = np.arange(100000)",
    "torch_save": "import torch; torch.save({'a': torch.arange(100000), 'b': torch.ones(9)}, P('a.pt'))",
    "torch_save_object": "import torch\nwith open(P('a.pt'), 'wb') as f: torch.save(torch.arange(100000), f)",
    "copy_file_range": FD + "os.write(fd, b'x' * 5000); to = os.open(P('b'), os.O_WRONLY | os.O_CREAT)\n"
    "os.copy_file_range(fd, to, 5000, 0)",
    "sendfile": FD + "os.write(fd, b'x' * 5000); to = os.open(P('b'), os.O_WRONLY | os.O_CREAT)\n"
    "os.sendfile(to, fd, 0, 5000)",
    "shutil_copy": "open(P('a'), 'wb').write(b'x' * 300000); shutil.copyfile(P('a'), P('b'))",
    "rename": "with open(P('a.tmp'), 'wb') as f: f.write(b'x' * 4000); f.flush(); os.fsync(f.fileno())\n"
    "os.rename(P('a.tmp'), P('a'))",
    "threads": "def w(i):\n  with open(P(f't{i}'), 'wb', buffering=0) as f:\n"
    "    for _ in range(50): f.write(b'x' * 100)\n"
    "ts = [threading.Thread(target=w, args=(i,)) for i in range(8)]\n"
    "[t.start() for t in ts]; [t.join() for t in ts]",
    "dup": FD
    + "to = os.dup(fd); os.close(fd); os.write(to, b'x' * 77); os.dup2(to, 50); os.write(50, b'y' * 3)",
    "relative": "os.chdir(D); d = os.open('.', os.O_RDONLY); os.mkdir('sub')\n"
    "f = os.open('sub/../sub/./a', os.O_WRONLY | os.O_CREAT, dir_fd=d); os.write(f, b'x' * 12)\n"
    "open('b', 'wb').write(b'y' * 13)",
    "subprocess": "import subprocess; "
    + FD
    + "subprocess.run(['true'], check=True); os.write(fd, b'x' * 31)",
    "descriptor_reused": FD + "os.write(fd, b'x' * 5); os.close(fd); r, w = os.pipe(); os.write(w, b'pipe')\n"
    "shutil.rmtree(P('gone'), ignore_errors=True); os.makedirs(P('gone/too')); shutil.rmtree(P('gone'))\n"
    "s = [os.pipe() for _ in range(3)]; os.write(s[0][1], b'more')",
}

C_WRITER = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    char name[4096], text[300];
    int flags = O_RDWR | O_CREAT;
    if (argc < 2 || chdir(argv[1])) return 1;
    memset(text, 'x', sizeof text);
    FILE *f = fopen("stream", "w");
    fwrite(text, 3, 100, f); fputs("words", f); fputc('c', f); putc('d', f);
    fprintf(f, "%d %s", argc, "text");
    fflush(f);
    fwrite(text, 1, 9, f);
    fclose(f);
    f = fdopen(creat("fdopened", 0600), "w"); fwrite_unlocked(text, 1, 50, f); fclose(f);
    f = fopen("first", "w"); fwrite(text, 1, 4, f);
    f = freopen("second", "w", f); fwrite(text, 1, 6, f); fclose(f);
    strcpy(name, "tempXXXXXX");
    int fd = mkstemp(name);
    if (write(fd, text, 21) != 21 || ftruncate(fd, 5)) return 1;
    close(fd);
    fd = open("plain", flags, 0600);
    struct iovec parts[2] = {{text, 10}, {text, 20}};
    if (pwritev(fd, parts, 2, 100) < 0 || pwritev2(fd, parts, 2, -1, 0) < 0) return 1;
    if (writev(fd, parts, 1) < 0) return 1;
    if (pwrite(fcntl(fd, F_DUPFD, 30), text, 8, 0) != 8 || dup3(fd, 40, O_CLOEXEC) != 40) return 1;
    if (write(40, text, 1) != 1 || fsync(fd) || fdatasync(fd)) return 1;
    if (renameat2(AT_FDCWD, "plain", AT_FDCWD, "final", 0) || unlink("second")) return 1;
    return 0;
}
"""


def environment(logs: Path, watched: Path) -> dict[str, str]:
    assert isinstance(FOUND, IotraceTracer)
    logs.mkdir(exist_ok=True)
    watched.mkdir(exist_ok=True)
    added = FOUND.prepare(logs, watched)
    return {key: value.replace(LOG_DIR, str(logs)) for key, value in added.items()}


def traced(command: list[str], tmp_path: Path, **more: str) -> subprocess.Popen[str]:
    """Starts a program with the recorder preloaded into it and nothing else."""
    env = os.environ | environment(tmp_path / "logs", tmp_path / "watched") | more
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def python(code: str, tmp_path: Path) -> list[str]:
    return [sys.executable, "-c", PRELUDE + code, str(tmp_path / "watched")]


def run(code: str, tmp_path: Path, **more: str) -> Events:
    """Runs a snippet to its end and reads the events of its own process."""
    process = traced(python(code, tmp_path), tmp_path, **more)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return events_of(process.pid, tmp_path)


def events_of(pid: int, tmp_path: Path) -> Events:
    (path,) = (tmp_path / "logs").glob(f"*.{pid}.iotrace")
    return read_events(path)


def written(events: Events) -> dict[str, int]:
    """Bytes per file by its name's last part, through descriptors and streams."""
    totals: Counter[str] = Counter()
    for event in events.table[np.isin(events.table["op"], (Op.WRITE, Op.COPY, Op.STREAM_WRITE))]:
        totals[Path(events.names[int(event["file"])]).name] += int(event["length"])
    return {name: total for name, total in totals.items() if total}


def calls(events: Events, op: Op) -> list[str]:
    rows = events.table[events.table["op"] == op]
    return [Path(events.names[int(number)]).name for number in rows["file"]]


# ---- the oracle

CALLS = "write,pwrite64,writev,pwritev,pwritev2,copy_file_range,sendfile,process_vm_writev"
BEGIN = re.compile(r"^(\d+) +(\w+)\((.*)$")
RESULT = re.compile(r"\) += (-?\d+)")
RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$")


def target(call: str, arguments: str) -> str:
    """The path behind the descriptor that is written to: the second one of copy_file_range."""
    paths = re.findall(r"\d+<([^<>]*)>", arguments)
    return paths[1] if call == "copy_file_range" else paths[0]


def parse(lines: list[str], watched: Path) -> dict[str, int]:
    """Bytes per watched file that succeeded; a call may be split over two lines when threads run."""
    totals: Counter[str] = Counter()
    begun: dict[str, str] = {}
    for line in lines:
        if resumed := RESUMED.match(line):
            path, rest = begun.pop(resumed[1], ""), resumed[3]
        elif begin := BEGIN.match(line):
            path, rest = target(begin[2], begin[3]), begin[3]
            if "<unfinished" in rest:
                begun[begin[1]] = path
                continue
        else:
            continue
        result = RESULT.search(rest)
        if result and int(result[1]) > 0 and path.startswith(f"{watched}/"):
            totals[Path(path).name] += int(result[1])
    return dict(totals)


def strace(command: list[str], tmp_path: Path) -> tuple[dict[str, int], Events]:
    """Runs a program under strace and the recorder together: what each of them counted."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    output, watched = tmp_path / "strace.txt", tmp_path / "watched"
    setting = [f"-E{key}={value}" for key, value in environment(tmp_path / "logs", watched).items()]
    done = subprocess.run(
        ["strace", "-f", "-y", "-s0", "-o", output, "-e", f"trace={CALLS}", *setting, *command],
        stderr=subprocess.PIPE,
        text=True,
        timeout=200,
    )
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    logs = sorted((tmp_path / "logs").glob("*.iotrace"), key=lambda path: -len(read_events(path).table))
    return parse(output.read_text().splitlines(), watched), read_events(logs[0])


@pytest.mark.parametrize("writer", WRITERS)
def test_same_bytes_per_file_as_strace(writer: str, tmp_path: Path) -> None:
    if writer in NEEDS and not importlib.util.find_spec(NEEDS[writer]):
        pytest.skip(f"{NEEDS[writer]} is not installed")
    kernel, events = strace(python(WRITERS[writer], tmp_path), tmp_path)
    assert kernel, "the oracle must have seen something"
    assert written(events) == kernel
    assert events.notes() == []


@pytest.mark.parametrize("flags", [[], ["-O2", "-D_FORTIFY_SOURCE=2"], ["-D_FILE_OFFSET_BITS=64"]], ids=str)
def test_calls_from_c_as_strace_counts_them(flags: list[str], tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler")
    (tmp_path / "writer.c").write_text(C_WRITER)
    program = str(tmp_path / "writer")
    subprocess.run([compiler, "-w", *flags, "-o", program, tmp_path / "writer.c"], check=True)
    kernel, events = strace([program, str(tmp_path / "watched")], tmp_path)
    assert len(kernel) == 6
    assert written(events) == kernel
    assert calls(events, Op.FSYNC) == calls(events, Op.FDATASYNC) == ["plain"]
    assert calls(events, Op.UNLINK) == ["second"]
    assert calls(events, Op.RENAME) == ["plain"]
    assert calls(events, Op.STREAM_FDOPEN) == ["fdopened"]
    assert len(calls(events, Op.TRUNCATE)) == 1


# ---- what strace does not say


def test_offsets_of_sequential_writes(tmp_path: Path) -> None:
    code = (
        FD
        + "os.write(fd, b'x' * 10); os.lseek(fd, 100, 0); os.writev(fd, [b'y' * 5]); os.pwrite(fd, b'z', 3)\n"
        "with open(P('b'), 'wb') as f: np.arange(4.0).tofile(f); np.arange(2.0).tofile(f)"
    )
    events = run(code, tmp_path)
    rows = events.table[np.isin(events.table["op"], (Op.WRITE, Op.STREAM_WRITE))]
    assert list(zip(rows["offset"].tolist(), rows["length"].tolist(), strict=True)) == [
        (0, 10), (100, 5), (3, 1), (0, 32), (32, 16),
    ]  # fmt: skip


def test_times_lie_between_the_programs_own(tmp_path: Path) -> None:
    code = (
        FD
        + "import time; b = time.monotonic_ns(); os.write(fd, b'x'); e = time.monotonic_ns()\n"
        + "print(b, e, file=sys.stderr)"
    )
    process = traced(python(code, tmp_path), tmp_path)
    _, said = process.communicate(timeout=100)
    begin, end = map(int, said.split())
    event = events_of(process.pid, tmp_path).table[-1]
    assert begin <= event["start_ns"] <= event["end_ns"] <= end


def test_a_shared_mapping_is_an_event(tmp_path: Path) -> None:
    events = run("m = np.memmap(P('a'), np.int8, 'w+', shape=9999); m[:] = 1; m.flush()", tmp_path)
    (mapped,) = events.table[events.table["op"] == Op.MMAP]
    assert mapped["length"] == 9999


def test_failed_calls_keep_errno_and_are_no_bytes(tmp_path: Path) -> None:
    code = (
        FD
        + "r = os.open(P('a'), os.O_RDONLY)\n"
        + "try: os.write(r, b'x')\nexcept OSError as e: assert e.errno == 9, e\n"
        "try: os.open(P('none'), 0)\nexcept FileNotFoundError: pass\nelse: raise SystemExit(3)"
    )
    events = run(code, tmp_path)
    assert written(events) == {}
    assert events.table[events.table["op"] == Op.WRITE]["error"].tolist() == [9]


def test_files_outside_the_watched_directory_are_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "watched-not").mkdir()
    code = "open(D + '-not/a', 'wb').write(b'x'); open(P('b'), 'wb').write(b'yy')"
    assert written(run(code, tmp_path)) == {"b": 2}


def test_a_forked_child_has_its_own_file(tmp_path: Path) -> None:
    code = FD + (
        "os.write(fd, b'parent')\npid = os.fork()\n"
        "if pid == 0:\n  os.write(fd, b'child wrote'); open(P('c'), 'wb').write(b'cc'); os._exit(0)\n"
        "os.waitpid(pid, 0); os.write(fd, b'!'); print(pid, file=sys.stderr)"
    )
    process = traced(python(code, tmp_path), tmp_path)
    _, said = process.communicate(timeout=100)
    assert written(events_of(process.pid, tmp_path)) == {"a": 7}
    child = events_of(int(said), tmp_path)
    assert written(child) == {"a": 11, "c": 2}
    assert child.parent_pid == process.pid


def test_a_forked_child_that_writes_nothing_leaves_no_file(tmp_path: Path) -> None:
    run("pid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)", tmp_path)
    assert len(list((tmp_path / "logs").glob("*.iotrace"))) == 1


def test_events_survive_sigkill(tmp_path: Path) -> None:
    code = (
        FD
        + "import signal\nfor _ in range(100): os.write(fd, b'x' * 10)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    process = traced(python(code, tmp_path), tmp_path)
    process.communicate(timeout=100)
    assert process.returncode == -signal.SIGKILL
    assert written(events_of(process.pid, tmp_path)) == {"a": 1000}


def test_a_full_event_file_counts_what_it_drops(tmp_path: Path) -> None:
    code = FD + "for _ in range(100): os.write(fd, b'x')"
    events = run(code, tmp_path, HPCCKPT_IOTRACE_EVENTS="11")
    assert len(events.table) == 11
    assert events.dropped == 90
    assert "90 events dropped" in events.notes()[0]


@pytest.mark.parametrize("directory", ["missing", "full"])
def test_without_a_place_for_events_the_program_runs_on(directory: str, tmp_path: Path) -> None:
    events, logs = "100", str(tmp_path / "missing")
    if directory == "full":  # more events than any disk has room for
        events, logs = str(2**32 - 1), str(tmp_path)
        if shutil.disk_usage(tmp_path).free > 48 * 2**32:
            pytest.skip("this disk is too large to be full")
    code = FD + "os.write(fd, b'x' * 100); print('went on', file=sys.stderr)"
    process = traced(
        python(code, tmp_path), tmp_path, HPCCKPT_IOTRACE_DIR=logs, HPCCKPT_IOTRACE_EVENTS=events
    )
    _, said = process.communicate(timeout=100)
    assert (process.returncode, said) == (0, "went on\n")
    assert not list(tmp_path.rglob("*.iotrace"))


# ---- from events to a log


def finish(tmp_path: Path, pid: int) -> tuple[Path, list[str]]:
    assert isinstance(FOUND, IotraceTracer)
    notes = FOUND.finish(tmp_path / "logs", 5, "node", pid)
    (log,) = (tmp_path / "logs").glob("*.darshan")
    return log, notes


def test_the_log_says_what_the_program_did(tmp_path: Path) -> None:
    code = (
        "np.save(P('a.npy'), np.arange(1000))\n"
        "with open(P('b.tmp'), 'wb') as f: f.write(b'x' * 500); f.flush(); os.fsync(f.fileno())\n"
        "os.rename(P('b.tmp'), P('b')); d = os.open(D, 0); os.fsync(d); os.close(d)"
    )
    events = run(code, tmp_path)
    path, notes = finish(tmp_path, events.pid)
    log = read_log(path, rank=5)
    files: Mapping[str, int] = {Path(name).name: row for row, name in enumerate(log.files.path)}
    row = files["a.npy"]
    assert (log.files.posix_bytes_written[row], log.files.stdio_bytes_written[row]) == (128, 8000)
    assert log.files.opens[row] == 1
    assert log.files.fsyncs[files["b.tmp"]] == log.files.fsyncs[files["watched"]] == 1
    assert log.files.renamed_from[files["b"]] == str(tmp_path / "watched" / "b.tmp")
    assert traced_bytes(log, str(tmp_path / "watched")).by_rank == {5: 8628}
    assert (notes, log.warnings, log.pid) == ([], [], events.pid)
    assert (log.tracer, log.lib_ver) == ("hpcckpt-iotrace", "hpcckpt-iotrace")
    raw = (tmp_path / "logs" / f"{events.path.stem}.fsyncs.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in raw] == ["call", "fsync", "fsync"]


def test_bytes_follow_renames_of_files_and_directories(tmp_path: Path) -> None:
    code = """
os.mkdir(P('ck.tmp'))
open(P('ck.tmp/a.part'), 'wb').write(b'x' * 100); os.rename(P('ck.tmp/a.part'), P('ck.tmp/a'))
os.rename(P('ck.tmp'), P('ck'))
for i in range(2):
  open(P('once.tmp'), 'wb').write(b'y' * 10); os.rename(P('once.tmp'), P(f'once{i}'))
"""
    path, _ = finish(tmp_path, run(code, tmp_path).pid)
    watched = tmp_path / "watched"
    on_disk = {str(file): file.stat().st_size for file in watched.rglob("*") if file.is_file()}
    log = read_log(path)
    assert traced_bytes(log, str(watched / "ck")).by_final_name == {(str(watched / "ck/a"), 0): 100}
    traced = traced_bytes(log, str(watched), on_disk)
    assert (traced.by_rank, traced.warnings) == ({0: 120}, [])
    assert traced.by_final_name[str(watched / "once.tmp"), 0] == 20, "it became two files"


def test_other_processes_go_aside(tmp_path: Path) -> None:
    code = (
        FD
        + "os.write(fd, b'x')\npid = os.fork()\nif pid == 0:\n  os.write(fd, b'child'); os._exit(0)\n"
        + "os.waitpid(pid, 0)"
    )
    events = run(code, tmp_path)
    path, notes = finish(tmp_path, events.pid)
    assert traced_bytes(read_log(path), str(tmp_path)).by_rank == {0: 1}
    assert [note.endswith("moved to other/") for note in notes] == [True]
    assert len(list((tmp_path / "logs" / "other").iterdir())) == 1


def test_a_rank_without_events_is_a_note(tmp_path: Path) -> None:
    assert isinstance(FOUND, IotraceTracer)
    assert "no event file of process 99 of node" in FOUND.finish(tmp_path, 5, "node", 99)[0]


def test_a_rank_that_wrote_nothing_has_a_log_all_the_same(tmp_path: Path) -> None:
    path, notes = finish(tmp_path, run("pass", tmp_path).pid)
    log = read_log(path)
    assert (notes, log.warnings, len(log.files), len(log.segments)) == ([], [], 0, 0)


def test_dropped_events_are_said_in_the_log(tmp_path: Path) -> None:
    events = run(FD + "for _ in range(9): os.write(fd, b'x')", tmp_path, HPCCKPT_IOTRACE_EVENTS="5")
    path, notes = finish(tmp_path, events.pid)
    codes = {warning.split(":")[0] for warning in read_log(path).warnings}
    assert "dropped" in notes[0]
    assert codes == {"partial-module", "dropped-events"}


def test_a_damaged_event_file_is_a_note_and_a_trace_error(tmp_path: Path) -> None:
    events = run(FD + "os.write(fd, b'x')", tmp_path)
    events.path.write_bytes(events.path.read_bytes()[:5000])
    assert isinstance(FOUND, IotraceTracer)
    assert "cut short" in FOUND.finish(tmp_path / "logs", 5, "node", events.pid)[0]
    (tmp_path / "foreign.1.iotrace").write_bytes(b"not ours" * 100)
    with pytest.raises(TraceError, match="not an event file"):
        read_events(tmp_path / "foreign.1.iotrace")


@given(share=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), cut=st.booleans())
@settings(max_examples=200, deadline=None)
def test_no_damage_to_an_event_file_is_a_crash(
    share: float, flip: int, cut: bool, small: bytes, here: Path
) -> None:
    data = bytearray(small)
    # Most of the file is room for names: hit the header and the events.
    at = int(share * 400) if share < 0.5 else len(data) - 1 - int((share - 0.5) * 600)
    data[at] ^= flip
    path = here / "damaged.1.iotrace"
    path.write_bytes(data[:at] if cut else data)
    try:
        convert(read_events(path), here / "damaged.darshan", 0)
        read_log(here / "damaged.darshan")
    except TraceError:
        pass


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@pytest.fixture(scope="module")
def small(here: Path) -> bytes:
    """A small event file with one call of several kinds."""
    code = (
        FD
        + "os.write(fd, b'x' * 9); os.fsync(fd); os.rename(P('a'), P('b')); np.save(P('c.npy'), np.ones(3))"
    )
    events = run(code, here)
    shrink(events.path)
    return events.path.read_bytes()


def test_the_operations_are_the_c_sides() -> None:
    header = Path(darshan_log.__file__).with_name("iotrace_file.h").read_text()
    names = re.findall(r"OP_(\w+)", re.search(r"enum op \{(.*?)\}", header, re.S)[1])  # type: ignore[index]
    assert names == [op.name for op in Op]
