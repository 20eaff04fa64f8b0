"""Two sets of planted runs compared: exit 5 for a regression only, 6 for what cannot be decided, 0 otherwise."""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from analysis.cli import main
from analysis.compare import Compare, exit_code
from analysis.comparing import decide, ratio
from analysis.stats import median_interval
from hpcckpt.experiment import Fault
from hpcckpt.records import TRAIN
from hpcckpt.rundir import RunDir
from tests.unit.planted import Plan, plant

BASE = Plan(nodes=2, campaign="base", commit="a" * 40, write_s=1.0)
NEW = replace(BASE, campaign="new", commit="b" * 40)
SPREAD = (-0.02, -0.01, 0.0, 0.01, 0.02)
"""What the runs of a side differ by."""


def side(root: Path, plan: Plan, factor: float = 1.0, repeats: Sequence[float] = SPREAD) -> Path:
    for number, spread in enumerate(repeats, start=1):
        plant(root, replace(plan, repeat=number, write_s=plan.write_s * factor * (1 + spread)))
    return root / plan.campaign


def compare(base: Path, new: Path, *more: str) -> tuple[int, dict[str, Any]]:
    out = io.StringIO()
    code = main(Compare(), [str(base), str(new), "--json", *more], out)
    return code, msgspec.json.decode(out.getvalue())


def stall(answer: dict[str, Any]) -> dict[str, Any]:
    return next(row for row in answer["rows"] if row["metric"] == "stall")


def test_a_stall_that_grew_beyond_the_threshold_is_a_regression(tmp_path: Path) -> None:
    code, answer = compare(side(tmp_path, BASE), side(tmp_path, NEW, 1.5))
    found = answer["findings"][0]
    assert code == 5
    assert (found["code"], found["verdict"], found["level"]) == ("CO01", "supports", "critical")
    assert found["value"] == pytest.approx(1.5, rel=0.05)
    assert found["low"] > 1.1
    assert stall(answer)["coverage"] == pytest.approx(0.9375**2)
    assert (stall(answer)["base_commits"], stall(answer)["new_commits"]) == (["a" * 40], ["b" * 40])


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "not worse"), (1.03, "not worse"), (0.5, "improved")])
def test_what_did_not_grow_is_none(tmp_path: Path, factor: float, verdict: str) -> None:
    code, answer = compare(side(tmp_path, BASE), side(tmp_path, NEW, factor))
    assert (code, stall(answer)["verdict"]) == (0, verdict)
    assert {finding["verdict"] for finding in answer["findings"]} == {"contradicts"}


def test_an_interval_that_holds_the_threshold_decides_nothing_and_another_threshold_does(tmp_path: Path) -> None:
    base, new = side(tmp_path, BASE), side(tmp_path, NEW, 1.1)
    code, answer = compare(base, new)
    assert (code, stall(answer)["verdict"]) == (6, "undecided")
    assert "holds the threshold 1.100" in stall(answer)["reason"]
    assert compare(base, new, "--threshold", "0.01")[0] == 5
    assert compare(base, new, "--threshold", "0.5")[0] == 0


def test_fewer_than_five_runs_decide_nothing_however_large_the_change(tmp_path: Path) -> None:
    code, answer = compare(side(tmp_path, BASE), side(tmp_path, NEW, 5.0, SPREAD[:4]))
    assert (code, stall(answer)["reason"]) == (6, "NEW has 4 runs, and fewer than 5 give no interval")
    assert stall(answer)["ratio"] == pytest.approx(5.0, rel=0.1)


def test_an_untrusted_run_decides_nothing(tmp_path: Path) -> None:
    new = side(tmp_path, NEW, 5.0)
    plant(tmp_path, replace(NEW, repeat=6, verified=False))
    code, answer = compare(side(tmp_path, BASE), new)
    assert code == 6
    assert stall(answer)["reason"].startswith("NEW holds 1 untrusted run of 6: L4_readback")


def test_more_bytes_are_a_regression_of_bytes_alone(tmp_path: Path) -> None:
    new = side(tmp_path, replace(NEW, file_bytes=20_000_000))
    code, answer = compare(side(tmp_path, BASE), new)
    verdicts = {finding["code"]: finding["verdict"] for finding in answer["findings"]}
    assert (code, verdicts) == (5, {"CO01": "contradicts", "CO03": "supports"})
    assert compare(tmp_path / "base", new, "--metric", "stall")[0] == 0


def test_overhead_is_compared_when_asked(tmp_path: Path) -> None:
    code, answer = compare(side(tmp_path, BASE), side(tmp_path, NEW, 2.0), "--metric", "overhead")
    assert (code, [finding["code"] for finding in answer["findings"]]) == (5, ["CO02"])
    none = side(tmp_path, replace(NEW, campaign="none", control=False))
    code, answer = compare(tmp_path / "base", none, "--metric", "overhead")
    assert (code, answer["rows"][0]["reason"]) == (6, "NEW: no control leg")


def change(campaign: Path, **more: str) -> Path:
    """Change the identity of a side's runs."""
    for path in campaign.iterdir():
        file = RunDir(path).run
        if file.exists():
            plain = msgspec.json.decode(file.read_bytes())
            plain["run"]["identity"] |= more
            plain["tracer"] = more.get("tracer", plain["tracer"])
            file.write_bytes(msgspec.json.encode(plain))
    return campaign


@pytest.mark.parametrize("name", ["scratch_filesystem", "tracer", "site"])
def test_other_conditions_are_refused_by_name_and_are_no_regression(tmp_path: Path, name: str) -> None:
    new = change(side(tmp_path, NEW, 5.0), **{name: "other"})
    code, answer = compare(change(side(tmp_path, BASE), **{name: "usual"}), new)
    assert (code, stall(answer)["reason"]) == (6, f"BASE and NEW differ in {name} (usual and other)")


def test_planted_faults_are_refused_by_name(tmp_path: Path) -> None:
    fault = Fault(rank=1, at="gather", action="sleep", seconds=2.0, leg=TRAIN)
    code, answer = compare(side(tmp_path, BASE), side(tmp_path, replace(NEW, faults=[fault]), 5.0))
    assert code == 6
    assert "differ in faults (none and rank 1 sleep 2 s at gather" in stall(answer)["reason"]


def test_other_versions_are_flagged_and_compared(tmp_path: Path) -> None:
    new = change(side(tmp_path, NEW, 1.5), torch="2.13")
    code, answer = compare(change(side(tmp_path, BASE), torch="2.12"), new)
    assert (code, stall(answer)["flags"]) == (5, ["torch: 2.12 and 2.13"])


def test_a_side_of_several_commits_is_refused_unless_asked(tmp_path: Path) -> None:
    base, new = side(tmp_path, BASE), side(tmp_path, NEW, 1.5)
    plant(tmp_path, replace(NEW, repeat=6, commit="c" * 40, write_s=1.5))
    assert compare(base, new)[0] == 6
    assert compare(base, new, "--pool-commits")[0] == 5


def test_buffered_and_durable_are_no_pair(tmp_path: Path) -> None:
    code, answer = compare(side(tmp_path, BASE), side(tmp_path, replace(NEW, durable=True), 5.0))
    assert (code, stall(answer)["reason"]) == (6, "NEW has no such runs")


def test_what_lies_behind_no_device_is_not_compared(tmp_path: Path) -> None:
    durable = replace(BASE, durable=True, probe_reason="tmpfs")
    new = replace(NEW, durable=True, probe_reason="tmpfs")
    code, answer = compare(side(tmp_path, durable), side(tmp_path, new, 5.0))
    assert (code, stall(answer)["reason"]) == (6, "BASE: no device behind fsync (tmpfs)")


def test_a_regression_is_said_whatever_else_is_not_known(tmp_path: Path) -> None:
    base = side(tmp_path, BASE)
    side(tmp_path, replace(BASE, nodes=4))
    new = side(tmp_path, NEW, 1.5)
    side(tmp_path, replace(NEW, nodes=8))
    code, answer = compare(base, new)
    assert code == 5
    assert answer["notes"][1].startswith("Only NEW has 1 point: numpy_toy, single_writer, npz_plain, small, buffered")
    assert exit_code([]) == 6


def test_a_base_of_zero_has_no_ratio() -> None:
    assert decide({"ratio": None, "ratio_low": None, "ratio_high": None}, 0.1)[0] == "undecided"


WRONG = [["one"], ["a", "b", "c"], ["a", "b", "--threshold", "0"], ["a", "b", "--threshold", "nan"]]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_command_line_is_no_verdict(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(Compare(), wrong) == 2
    assert capsys.readouterr().err.startswith("analysis.compare: ")


def test_it_is_shown_and_drawn(tmp_path: Path) -> None:
    out, figure = io.StringIO(), tmp_path / "f.svg"
    new = side(tmp_path, NEW, 1.5, SPREAD[:3])
    assert main(Compare(), [str(side(tmp_path, BASE)), str(new), "--figure", str(figure)], out) == 6
    assert "undecided (1)" in out.getvalue()
    assert "(1) not measured: NEW has 3 runs" in out.getvalue()
    assert figure.exists()
    assert (tmp_path / "f-bytes.svg").exists()


def verdicts(growth: float, noise: float, trials: int = 400) -> dict[str, float]:
    """Shares of verdicts over seeded trials of 5 runs a side."""
    source, found = random.Random(1), Counter[str]()
    for _ in range(trials):
        old, fresh = ([scale * source.lognormvariate(0, noise) for _ in range(5)] for scale in (1.0, growth))
        found[decide(ratio(median_interval(old), median_interval(fresh)), 0.1)[0]] += 1
    return {verdict: count / trials for verdict, count in found.items()}


def test_false_alarms_are_rare_even_at_the_threshold_and_real_growth_is_found() -> None:
    assert verdicts(1.0, 0.05).get("regressed", 0) == 0
    assert verdicts(1.1, 0.05).get("regressed", 0) < 0.02
    assert verdicts(1.1, 0.3).get("regressed", 0) < 0.02
    assert verdicts(1.3, 0.03)["regressed"] > 0.9


def test_the_ratio_s_interval_holds_the_truth_as_often_as_it_says() -> None:
    source, held, trials = random.Random(2), 0, 2000
    for _ in range(trials):
        old, fresh = ([source.lognormvariate(0, 0.3) for _ in range(5)] for _ in range(2))
        row = ratio(median_interval(old), median_interval(fresh))
        held += row["ratio_low"] <= 1.0 <= row["ratio_high"]
    assert held / trials >= 0.9375**2
