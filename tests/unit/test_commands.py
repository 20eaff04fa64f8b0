"""What a person may type: every module that looks like a command is one, says its right name, and its exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis import __main__ as command
from analysis import cli
from analysis.compare import Compare
from analysis.single_writer import SingleWriter
from hpcckpt.errors import ExitCode
from tests.unit.planted import Plan, plant_all


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"analysis.{module}", *arguments], capture_output=True, text=True, timeout=120
    )


COMMANDS = [("report", "report"), ("collect", "collect"), ("collect_command", "collect")]


@pytest.mark.parametrize(("module", "name"), COMMANDS)
def test_modules_of_commands_run_their_command(module: str, name: str, tmp_path: Path) -> None:
    found = run(module, "--help")
    assert (found.returncode, found.stderr) == (0, "")
    assert f"python -m analysis {name}" in found.stdout and "xit codes" in found.stdout
    missing = run(module, str(tmp_path / "none"), "--out", str(tmp_path / "x.html"))
    assert missing.returncode == ExitCode.BAD_SPEC and "no such directory" in missing.stderr


def test_formulas_say_which_command_asks_them() -> None:
    found = run("best_interval")
    assert found.returncode == ExitCode.BAD_SPEC and "python -m analysis.remedies" in found.stderr


@pytest.mark.parametrize("kind", cli.questions().values(), ids=lambda kind: kind.name)
def test_every_help_states_the_exit_codes(kind: Any) -> None:
    text = " ".join(cli.parser(kind).format_help().split())
    assert "Exit codes: 0" in text and "2 bad input" in text and "6 " in text


def test_help_of_all_questions_states_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"])
    assert "Exit codes: 0 ok" in capsys.readouterr().out


def test_compare_lists_nothing_that_it_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(cli.parser(Compare).format_help().split())
    assert "newest campaign" not in text and "--parquet" not in text and "5 regression" in text
    assert cli.main(Compare(), ["a", "b", "--parquet", str(tmp_path)]) == ExitCode.BAD_SPEC
    assert "--parquet" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["99", "-1", "3"])
def test_a_checkpoint_that_no_run_has_is_bad_input(number: str, tmp_path: Path, capsys: Any) -> None:
    campaign = plant_all(tmp_path, [Plan(log="none")])
    assert cli.main(SingleWriter(), [str(campaign), "--checkpoint", number]) == ExitCode.BAD_SPEC
    assert f"--checkpoint {number}: these runs have checkpoints 0 to 2" in capsys.readouterr().err
    assert cli.main(SingleWriter(), [str(campaign), "--checkpoint", "2"]) == ExitCode.OK


def test_brief_stays_brief_whatever_the_number_of_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = plant_all(tmp_path / "a", [Plan(log="none", campaign="few", model=f"m{i}") for i in range(2)])
    many = plant_all(tmp_path / "b", [Plan(log="none", campaign="many", model=f"m{i}") for i in range(12)])
    lines = []
    for campaign in (few, many):
        command.main([str(campaign)])
        lines.append(capsys.readouterr().out.splitlines())
    assert len(lines[1]) <= len(lines[0]) + 12
    assert len(lines[1]) <= 12 * len(cli.questions())
