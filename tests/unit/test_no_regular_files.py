"""Pipes, sockets, devices and directories where files are expected: named at once, never waited for."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis import cli
from analysis.collect import collect
from analysis.report_environment import environments
from analysis.scaling import Scaling
from analysis.single_writer import SingleWriter
from hpcckpt.errors import ExitCode
from hpcckpt.rundir import NOT_REGULAR, RunDir, read_bytes
from tests.unit.planted import Plan, plant, plant_all

pytestmark = pytest.mark.timeout(60)
Maker = Callable[[Path], None]


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.fixture(params=[os.mkfifo, device], ids=["fifo", "device"])
def put(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Puts something that never ends where a file was."""

    def replace(path: Path) -> None:
        path.unlink(missing_ok=True)
        request.param(path)

    return replace


def test_only_regular_files_are_read(tmp_path: Path, put: Maker) -> None:
    put(tmp_path / "odd")
    with pytest.raises(OSError, match=NOT_REGULAR):
        read_bytes(tmp_path / "odd")
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)
    (tmp_path / "plain").write_bytes(b"all of it")
    (tmp_path / "link").symlink_to("plain")
    assert read_bytes(tmp_path / "link") == b"all of it"


def test_a_socket_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's address is short
    with socket.socket(socket.AF_UNIX) as end:
        end.bind("end")
        with pytest.raises(OSError, match="No such device"):
            read_bytes(Path("end"))


def test_no_descriptor_is_left_open(tmp_path: Path, put: Maker) -> None:
    put(tmp_path / "odd")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        with pytest.raises(OSError, match=NOT_REGULAR):
            read_bytes(tmp_path / "odd")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("file", ["run.json", "state.json", "manifest.json", "legs/train/ranks/00001.jsonl"])
def test_a_run_with_such_a_file_is_left_out_by_name(tmp_path: Path, put: Maker, file: str) -> None:
    path = plant(tmp_path, Plan(log="none"))
    plant(tmp_path, Plan(log="none", repeat=2))
    put(path / file)
    found = collect([tmp_path])
    assert found.runs.height == 1
    (left,) = found.left_out.to_dicts()
    assert left["file"] == str(path / file) and NOT_REGULAR in left["reason"]


def test_an_inventory_or_a_log_that_is_none_costs_only_its_numbers(tmp_path: Path, put: Maker) -> None:
    path = plant(tmp_path, Plan(log="darshan"))
    put(path / "legs/train/inventory.parquet")
    log = next((path / "legs/train/darshan").glob("*/*.darshan"))
    put(log)
    found = collect([tmp_path])
    assert found.runs.height == 1
    reasons = {left["file"]: left["reason"] for left in found.left_out.to_dicts()}
    assert set(reasons) == {str(path / "legs/train/inventory.parquet"), str(log)}
    assert all(NOT_REGULAR in reason for reason in reasons.values())


@pytest.mark.parametrize("file", ["campaign.json", "collected.zip"])
def test_a_campaign_with_such_a_file_is_read_all_the_same(tmp_path: Path, put: Maker, file: str) -> None:
    campaign = plant_all(tmp_path, [Plan(log="none")])
    put(campaign / file)
    found = collect([campaign])
    assert found.runs.height == 1
    assert [left["scope"] for left in found.left_out.to_dicts()] == ["campaign"] * (file == "campaign.json")
    assert cli.main(Scaling(), [str(tmp_path)]) in (ExitCode.OK, ExitCode.RUNS_FAILED)


def test_a_manifest_that_became_a_pipe_after_collecting(tmp_path: Path, put: Maker) -> None:
    path = plant(tmp_path, Plan(log="none"))
    tables = collect([tmp_path])
    put(RunDir(path).manifest)
    (found,) = environments(tables)
    assert found.entries == {"manifest.json": f"not measured: {NOT_REGULAR}"}


def test_darshan_logs_that_are_no_files(tmp_path: Path, put: Maker, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "one.darshan")
    for where in (tmp_path / "one.darshan", tmp_path):
        assert cli.main(SingleWriter(), ["--darshan", str(where)]) != ExitCode.OK
        error = capsys.readouterr().err
        assert "one.darshan" in error and error.count("\n") == 1
    shutil.rmtree(tmp_path)
