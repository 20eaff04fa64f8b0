"""What every I/O tracer must do, over whatever the registry finds; and how Darshan is found.

A tracer that isn't on this machine is skipped with its own reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.readers.darshan import read_log, traced_bytes, zero_ns
from hpcckpt import registry
from hpcckpt.errors import SpecError, TraceError
from hpcckpt.tracing.io.base import LOG_DIR, Absent, IoTracer, choose
from hpcckpt.tracing.io.darshan import DarshanTracer

PACKAGE = "hpcckpt.tracing.io"
NAMES = registry.names(PACKAGE)

RANK = """
import os, sys, signal, time
import numpy as np
D = sys.argv[1]
def beacon(n):
    before = time.monotonic_ns()
    fd = os.open(f"{D}/.beacon", os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"x")
    after = time.monotonic_ns()
    os.close(fd)
    print(before, after, flush=True)
beacon(0)
np.save(f"{D}/a.npy", np.arange(1000))
with open(f"{D}/b.tmp", "wb") as f: f.write(b"y" * 5000); f.flush(); os.fsync(f.fileno())
os.rename(f"{D}/b.tmp", f"{D}/b")
with open(f"{sys.argv[2]}/unwatched", "wb") as f: f.write(b"z" * 9999)
beacon(1)
if sys.argv[3] == "killed": os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "left": os._exit(0)
"""
WRITTEN = {"a.npy": 8128, "b": 5000, ".beacon": 2}


def here(name: str) -> IoTracer:
    found = registry.load(PACKAGE, name).find(None, os.environ)
    if isinstance(found, Absent):
        pytest.skip(found.reason)
    assert isinstance(found, IoTracer)
    return found


def trace(tracer: IoTracer, tmp_path: Path, ending: str) -> tuple[Path, list[tuple[int, int]], list[str]]:
    """Runs one rank as the driver and its wrapper do: log directory, beacon marks, notes."""
    leg, watched, log_dir = tmp_path / "leg", tmp_path / "watched", tmp_path / "leg/darshan/rank00003"
    log_dir.mkdir(parents=True)
    watched.mkdir()
    added = {key: value.replace(LOG_DIR, str(log_dir)) for key, value in tracer.prepare(leg, watched).items()}
    command = [sys.executable, "-c", RANK, str(watched), str(tmp_path), ending]
    process = subprocess.Popen(command, env=os.environ | added, stdout=subprocess.PIPE, text=True)
    said, _ = process.communicate(timeout=100)
    marks = [(int(before), int(after)) for before, after in (line.split() for line in said.splitlines())]
    return log_dir, marks, tracer.finish(log_dir, 3, "node", process.pid)


def test_the_registry_finds_the_three() -> None:
    assert NAMES == ["darshan", "iotrace", "none"]


@pytest.mark.parametrize("name", NAMES)
def test_a_tracer_describes_itself(name: str) -> None:
    tracer = here(name)
    assert tracer.name == name
    assert {"tracer", "library", "version"} <= tracer.describe().keys()
    assert all(isinstance(value, str) and value for value in tracer.describe().values())


def test_preferences_differ() -> None:
    preferences = [registry.load(PACKAGE, name).preference for name in NAMES]
    assert len(set(preferences)) == len(NAMES)


@pytest.mark.parametrize("ending", ["returned", "left", "killed"])
@pytest.mark.parametrize("name", NAMES)
def test_a_rank_is_traced_whatever_its_end(name: str, ending: str, tmp_path: Path) -> None:
    tracer = here(name)
    log_dir, marks, notes = trace(tracer, tmp_path, ending)
    logs = list(log_dir.glob("*.darshan"))
    if name == "none":
        assert not logs
        assert "not measured" in notes[0]
        return
    assert len(logs) == 1
    log = read_log(logs[0], rank=3)
    traced = traced_bytes(log, str(tmp_path / "watched"))
    by_name = {Path(path).name: count for (path, rank), count in traced.by_final_name.items() if rank == 3}
    assert by_name == WRITTEN
    assert "unwatched" not in {Path(path).name for path in log.files.path}
    if name == "darshan" and ending == "killed":
        assert "memory-mapped log of a killed process" in notes[0]
        assert {warning.split(":")[0] for warning in log.warnings} >= {"no-dxt", "negative-run-time"}
        return
    assert notes == []
    # np.save writes through a stream: Darshan has its bytes, and no times for them.
    expected = {"stdio-without-dxt"} if name == "darshan" else set()
    assert {warning.split(":")[0] for warning in log.warnings} == expected
    zero = zero_ns(log, [(str(tmp_path / "watched/.beacon"), *mark) for mark in marks])
    begin, end = zero.on_clock(log.segments.start_s), zero.on_clock(log.segments.end_s)
    assert begin.min() >= marks[0][0] - zero.error_ns
    assert end.max() <= marks[1][1] + zero.error_ns


@pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])
def test_a_rank_without_a_log_is_a_note(name: str, tmp_path: Path) -> None:
    notes = here(name).finish(tmp_path, 3, "node17", 4242)
    assert len(notes) == 1
    assert all(part in notes[0] for part in ("rank 3", "node17", "4242"))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])
def test_what_the_user_preloads_stays(name: str, tmp_path: Path) -> None:
    environ = {**os.environ, "LD_PRELOAD": "/lib/theirs.so"}
    found = registry.load(PACKAGE, name).find(None, environ)
    if isinstance(found, Absent):
        pytest.skip(found.reason)
    first, second = found.prepare(tmp_path, tmp_path)["LD_PRELOAD"].split(":")
    assert (first, second) == (found.describe()["library"], "/lib/theirs.so")


# ---- choosing


def test_the_most_preferred_one_that_is_there_is_chosen(tmp_path: Path) -> None:
    assert choose(None, str(library(tmp_path)), {})[0].name == "darshan"
    tracer, passed_over = choose(None, None, {"PATH": str(tmp_path)})
    assert tracer.name == "darshan" or passed_over[0].startswith("darshan: no libdarshan.so found")


def test_a_named_tracer_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DarshanTracer, "find", lambda option, environ: Absent("not today"))
    with pytest.raises(TraceError, match="tracer darshan: not today"):
        choose("darshan", None, {})
    with pytest.raises(SpecError, match="did you mean 'iotrace'"):
        choose("iotrac", None, {})


# ---- where Darshan is looked for


def library(prefix: Path) -> Path:
    """A file of the right name; finding does not load it."""
    path = prefix / "lib" / "libdarshan.so"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF\0darshan_core_register_record\0 3.9.9\0 3.4.7\0\0003.4.7\0")
    return path


def with_config(prefix: Path, log_variable: str = "MY_LOGS") -> Path:
    tool = prefix / "bin" / "darshan-config"
    tool.parent.mkdir(parents=True)
    tool.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo Darshan Runtime 9.8.7 || echo {log_variable}\n')
    tool.chmod(0o755)
    return tool


def found_at(option: str | None, environ: dict[str, str]) -> str:
    found = DarshanTracer.find(option, environ)
    assert isinstance(found, DarshanTracer)
    return found.describe()["library"]


def test_darshan_is_looked_for_in_order(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("option", "own", "preload", "module", "path", "conda")]
    libraries = [str(library(place)) for place in places]
    with_config(places[4])
    environ = {
        "HPCCKPT_DARSHAN_LIB": libraries[1],
        "LD_PRELOAD": f"/lib/other.so {libraries[2]}",
        "DARSHAN_DIR": str(places[3]),
        "PATH": str(places[4] / "bin"),
        "CONDA_PREFIX": str(places[5]),
    }
    assert found_at(libraries[0], environ) == libraries[0]
    for variable, expected in zip(list(environ), libraries[1:], strict=True):
        assert found_at(None, environ) == expected
        del environ[variable]


@pytest.mark.parametrize("by", ["option", "HPCCKPT_DARSHAN_LIB"])
def test_a_library_that_was_asked_for_must_exist(by: str) -> None:
    option, environ = ("/no/libdarshan.so", {}) if by == "option" else (None, {by: "/no/libdarshan.so"})
    with pytest.raises(TraceError, match=r"no file /no/libdarshan\.so"):
        DarshanTracer.find(option, environ)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x7fELF\0003.40.1\0sqlite3_open\0", b"darshan_core"])
def test_a_library_that_was_asked_for_must_be_darshan(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "libm.so").write_bytes(content)
    with pytest.raises(TraceError, match=r"libm\.so is no Darshan library"):
        DarshanTracer.find(None, {"HPCCKPT_DARSHAN_LIB": str(tmp_path / "libm.so")})


def test_version_and_log_variable_come_from_darshan_config(tmp_path: Path) -> None:
    with_config(tmp_path)
    found = DarshanTracer.find(str(library(tmp_path)), {})
    assert isinstance(found, DarshanTracer)
    assert (found.describe()["version"], found.describe()["log_variable"]) == ("9.8.7", "MY_LOGS")
    assert found.prepare(tmp_path, tmp_path)["MY_LOGS"] == LOG_DIR


def test_without_darshan_config_the_library_says_its_version(tmp_path: Path) -> None:
    found = DarshanTracer.find(str(library(tmp_path)), {})
    assert isinstance(found, DarshanTracer)
    assert found.describe()["version"] == "3.4.7"
    assert found.prepare(tmp_path, tmp_path)["DARSHAN_LOGFILE"].startswith(LOG_DIR)


def test_only_the_watched_directory_is_in_the_whitelist(tmp_path: Path) -> None:
    found = DarshanTracer.find(str(library(tmp_path)), {})
    assert isinstance(found, DarshanTracer)
    environment = found.prepare(tmp_path, Path("/scratch/my ckpts,1+1"))
    config = Path(environment["DARSHAN_CONFIG_PATH"]).read_text()
    assert "NAME_INCLUDE ^/scratch/my.ckpts.1.1/,^heatmap: *\n" in config
    assert "NAME_EXCLUDE .* *\n" in config


def test_logs_of_other_processes_and_empty_ones(tmp_path: Path) -> None:
    found = DarshanTracer.find(str(library(tmp_path)), {})
    assert isinstance(found, DarshanTracer)
    own, other = "u_python_id7-7_1-1-1-1_1.darshan", "u_uname_id8-8_1-1-1-1_1.darshan"
    for name in (own, other):
        (tmp_path / name).touch()
    notes = found.finish(tmp_path, 0, "node", 7)
    assert (tmp_path / own).exists()
    assert (tmp_path / "other" / other).exists()
    assert notes == [
        f"{other}: of another process than the rank; moved to other/",
        f"{own}: empty; the process ended while Darshan wrote it",
    ]


def test_a_log_without_a_pid_in_its_name_is_told_by_its_job_id(tmp_path: Path) -> None:
    source = Path(__file__).parent.parent / "data/darshan-logs/edge/npsave_stdio_and_posix.darshan"
    found = DarshanTracer.find(str(library(tmp_path)), {})
    assert isinstance(found, DarshanTracer)
    shutil.copy(source, tmp_path / "rank.darshan")
    assert found.finish(tmp_path, 0, "node", 20032) == []
    assert "moved to other/" in found.finish(tmp_path, 0, "node", 1)[0]
