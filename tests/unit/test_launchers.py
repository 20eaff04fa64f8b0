"""Launchers as data: command lines, clean environments, and versions as the programs print them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpcckpt.errors import SiteError
from hpcckpt.experiment import Point
from jobs import launchers
from jobs.launchers import LAUNCHERS, Found, NotHereError

SHARED = "--overcommit --cpu-bind=none --kill-on-bad-exit=1 --unbuffered"


def point(nodes: int, ranks_per_node: int) -> Point:
    return Point(
        framework="f", model="m", strategy="s", format="z", nodes=nodes,
        ranks_per_node=ranks_per_node, interval_steps=1, durable=False,
    )  # fmt: skip


def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, says: str) -> Found:
    """What `find` makes of a program `command` that says so."""
    program = tmp_path / command
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return launchers.find(command, python="/nowhere/bin/python")


@pytest.mark.parametrize(
    ("command", "says", "one_machine", "many_nodes"),
    [
        (
            "mpirun",
            "mpirun (Open MPI) 5.0.11",
            "-n 6 --map-by :OVERSUBSCRIBE --bind-to none",
            "-n 6 --map-by ppr:2:node:OVERSUBSCRIBE --bind-to none",
        ),
        (
            "mpirun",
            "mpirun (Open MPI) 4.1.4",
            "-n 6 --oversubscribe --bind-to none",
            "-n 6 --map-by ppr:2:node --oversubscribe --bind-to none",
        ),
        (
            "srun",
            "slurm-wlm 22.05.8",
            "--nodes=1 --ntasks=6 " + SHARED,
            "--nodes=3 --ntasks=6 --ntasks-per-node=2 --distribution=block " + SHARED,
        ),
    ],
)
def test_command_lines(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    says: str,
    one_machine: str,
    many_nodes: str,
) -> None:
    here = found(tmp_path, monkeypatch, command, says)
    for alone, expected in ((True, one_machine), (False, many_nodes)):
        line = launchers.argv(here, point(3, 2), alone, ["--extra"], ["sh", "rank.sh"])
        assert line == [str(tmp_path / command), *expected.split(), "--extra", "sh", "rank.sh"]


def test_an_unknown_version_is_refused_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SiteError, match="HYDRA build details"):
        found(tmp_path, monkeypatch, "mpirun", "HYDRA build details:")


def test_a_launcher_that_lacks_home_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    with pytest.raises(SiteError, match="HOME is not set; set HOME"):
        found(tmp_path, monkeypatch, "mpirun", "[n:1] Error: Unable to get the user home directory")


def test_an_unknown_launcher_names_the_nearest() -> None:
    with pytest.raises(SiteError, match="did you mean 'mpirun'"):
        launchers.find("mpiru")


def test_a_missing_launcher_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotHereError, match="no srun"):
        launchers.find("srun", python="/nowhere/bin/python")


def test_the_launcher_beside_a_virtual_environments_python_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(tmp_path, monkeypatch, "mpirun", "mpirun (Open MPI) 4.1.4")
    own = tmp_path / "venv" / "bin"
    own.mkdir(parents=True)
    (own.parent / "pyvenv.cfg").touch()
    (own / "mpirun").write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
    (own / "mpirun").chmod(0o755)
    assert launchers.find("mpirun", python=str(own / "python")).path == str(own / "mpirun")


def test_a_surrounding_job_does_not_leak_into_the_ranks() -> None:
    here = Found(LAUNCHERS[0], "mpirun", "mpirun (Open MPI) 5.0.11")
    inherited = {
        "HOME": "/home/u", "OMPI_COMM_WORLD_RANK": "3", "PMIX_RANK": "3", "PMI_RANK": "3",
        "PRTE_LAUNCHED": "1", "SLURM_PROCID": "3",
    }  # fmt: skip
    local = launchers.environment(here, inherited, {"OMPI_MCA_btl": "self"}, local=True, crowded=True)
    assert local == {
        "HOME": "/home/u",
        **LAUNCHERS[0].environment,
        **LAUNCHERS[0].crowded,
        "OMPI_MCA_btl": "self",
    }
    in_slurm = launchers.environment(here, inherited, {}, local=False, crowded=False)
    assert in_slurm["SLURM_PROCID"] == "3"
    assert not set(LAUNCHERS[0].crowded) & set(in_slurm)


def test_this_environment_has_a_launcher() -> None:
    assert launchers.find("mpirun", sys.executable).version
