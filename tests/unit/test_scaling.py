"""The scaling question on planted campaigns: each finding present and absent, rows, words, command line."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from analysis import cli
from analysis.cli import Answer
from analysis.collect import collect
from analysis.finding import Finding, not_measured, worst
from analysis.pooling import Pool
from analysis.scaling import Scaling
from analysis.single_writer import SingleWriter
from analysis.view import number
from hpcckpt.errors import ExitCode
from hpcckpt.experiment import Fault
from tests.unit.planted import Plan, plant_all, read_trace


def answer(root: Path, plans: Sequence[Plan]) -> Answer:
    return Scaling().answer(collect([plant_all(root, plans)], read_trace))


def finding(found: Answer, code: str, group: str | None = None) -> Finding:
    mine = [f for f in found.findings if f.code == code and (group is None or group in f.group)]
    assert len(mine) == 1, [f.group for f in mine]
    return mine[0]


def repeats(count: int, spread: float = 0.001, **changes: Any) -> list[Plan]:
    """Runs of one point whose write times step by `spread`."""
    base = Plan(**changes)
    return [replace(base, repeat=i + 1, write_s=base.write_s + i * spread) for i in range(count)]


def grid(nodes: Sequence[int], count: int, per_node_s: float, **changes: Any) -> list[Plan]:
    """Runs over node counts whose stall grows by `per_node_s` a node."""
    return [plan for n in nodes for plan in repeats(count, nodes=n, write_s=0.5 + per_node_s * n, **changes)]


def test_sc01_growing_stall_supports_with_its_slope(tmp_path: Path) -> None:
    found = finding(answer(tmp_path, grid((1, 2, 4, 8), 5, 0.05)), "SC01")
    assert (found.verdict, found.unit) == ("supports", "s/node")
    assert found.value == pytest.approx(0.05)
    assert found.low is not None
    assert found.high is not None
    assert 0 < found.low < 0.05 < found.high
    assert len(found.evidence) == 20


@pytest.mark.parametrize("per_node_s", [0.0, -0.05])
def test_sc01_flat_or_falling_stall_contradicts(tmp_path: Path, per_node_s: float) -> None:
    assert finding(answer(tmp_path, grid((1, 2, 4), 5, per_node_s)), "SC01").verdict == "contradicts"


def scattered(spread: float, **changes: Any) -> list[Plan]:
    """Nine runs over three node counts whose stalls scatter and do not grow."""
    stalls = {1: (0.5, 0.9, 0.2), 2: (0.1, 0.8, 0.6), 4: (0.9, 0.2, 0.5)}
    return [
        Plan(nodes=n, repeat=i, write_s=1 + spread * value, **changes)
        for n, values in stalls.items()
        for i, value in enumerate(values, 1)
    ]


def test_sc01_and_sw01_say_the_same_of_one_slope(tmp_path: Path) -> None:
    """A slope whose interval holds both growth and none is for both: not measured."""
    tables = collect([plant_all(tmp_path, scattered(1.0))], read_trace)
    for question, code in ((Scaling(), "SC01"), (SingleWriter(), "SW01")):
        found = finding(question.answer(tables), code)
        assert (found.verdict, found.level) == ("not_measured", "info"), code
        assert "the spread between runs is too large to tell" in (found.reason or "")
    calm = collect([plant_all(tmp_path / "b", scattered(0.001))], read_trace)
    for question, code in ((Scaling(), "SC01"), (SingleWriter(), "SW01")):
        assert finding(question.answer(calm), code).verdict == "contradicts", code


@pytest.mark.parametrize("virtual", [True, False])
def test_sc01_recommends_nothing_for_scale_from_one_machine(tmp_path: Path, virtual: bool) -> None:
    found = finding(answer(tmp_path, grid((1, 2, 4, 8), 5, 0.05, virtual_nodes=virtual)), "SC01")
    assert ("one machine: mechanism, not scaling" in found.sentence) is virtual
    assert (found.level, found.recommendation is None) == ("info" if virtual else "warning", virtual)


def test_sc01_two_node_counts_are_not_measured(tmp_path: Path) -> None:
    found = finding(answer(tmp_path, grid((1, 8), 5, 0.05)), "SC01")
    assert found.verdict == "not_measured"
    assert found.reason is not None
    assert "at least 3" in found.reason


def test_sc01_says_nothing_of_several_writers(tmp_path: Path) -> None:
    found = answer(tmp_path, repeats(2, nodes=2, writers=(0, 1)))
    assert not [f for f in found.findings if f.code == "SC01"]


def test_sc02_one_writer_while_the_others_wait(tmp_path: Path) -> None:
    found = finding(answer(tmp_path, repeats(5, nodes=8)), "SC02")
    assert (found.verdict, found.unit) == ("supports", "rank-s")
    assert found.value == pytest.approx(7 * 0.073)
    assert "1 of 8 ranks wrote" in found.sentence


def test_sc02_all_write_or_nobody_waits(tmp_path: Path) -> None:
    everybody = answer(tmp_path / "a", repeats(5, nodes=4, writers=(0, 1, 2, 3)))
    assert finding(everybody, "SC02").verdict == "contradicts"
    busy = answer(tmp_path / "b", repeats(5, nodes=2, slow_s={1: 0.08}))
    assert finding(busy, "SC02").verdict == "contradicts"


def test_sc02_without_trace_or_with_one_rank_is_not_measured(tmp_path: Path) -> None:
    assert finding(answer(tmp_path / "a", repeats(2, nodes=4, log="none")), "SC02").verdict == "not_measured"
    assert finding(answer(tmp_path / "b", repeats(2, nodes=1)), "SC02").verdict == "not_measured"


def test_sc02_counts_the_waiting_of_the_others_only(tmp_path: Path) -> None:
    """Both ranks wait 0.5 s inside the mechanism, then rank 1 waits 0.071 s for the writer: 0.571 s in all."""
    plans = repeats(2, spread=0.0, gather_s=0.5)
    campaign = plant_all(tmp_path, plans)
    for file in campaign.glob("*/legs/train/ranks/*.jsonl"):
        file.write_bytes(file.read_bytes().replace(b'"phase":"gather"', b'"phase":"wait_inside"'))
    tables = collect([campaign], read_trace)
    assert tables.saves["idle_rank_s"].to_list() == pytest.approx([1.071] * 6)
    found = Scaling().answer(tables)
    claim = finding(found, "SC02")
    assert (claim.verdict, claim.value) == ("supports", pytest.approx(0.571))
    assert "the others idled 0.571 rank-seconds per checkpoint, 100 % of all others" in claim.sentence
    assert "0.571 rank-seconds in all" in found.notes[-1]


def test_sc03_one_run_gives_no_verdict(tmp_path: Path) -> None:
    found = finding(answer(tmp_path, repeats(1, step_extra_s=0.1)), "SC03")
    assert (found.verdict, found.level, found.reason) == ("not_measured", "info", "one run")
    assert (found.value, found.low, found.high) == (None, None, None)


def test_sc03_overhead_and_stall_agree_disagree_or_have_no_control(tmp_path: Path) -> None:
    assert finding(answer(tmp_path / "a", repeats(5)), "SC03").verdict == "supports"
    apart = finding(answer(tmp_path / "b", repeats(5, step_extra_s=0.1)), "SC03")
    assert apart.verdict == "contradicts"
    assert apart.value == pytest.approx(0.2)
    alone = finding(answer(tmp_path / "c", repeats(5, control=False)), "SC03")
    assert (alone.verdict, alone.reason) == ("not_measured", "no control leg")


def test_sc03_runs_that_scatter_more_than_the_stall_cannot_tell(tmp_path: Path) -> None:
    plans = [replace(Plan(), repeat=i, step_extra_s=extra) for i, extra in enumerate((-0.05, 0.0, 0.06), 1)]
    found = finding(answer(tmp_path, plans), "SC03")
    assert found.verdict == "not_measured"
    assert "scatters by more than the stall" in str(found.reason)


@pytest.mark.parametrize("extra", [-0.3, 0.3])
def test_sc03_scatter_and_two_runs_decide_nothing_on_either_side(tmp_path: Path, extra: float) -> None:
    """Overhead far from the stall, once with runs that scatter by more than the stall, once with two runs."""
    wide = [Plan(repeat=i, steps_s=1.0, step_extra_s=extra + 0.02 * i) for i in range(1, 6)]
    found = finding(answer(tmp_path / "a", wide), "SC03")
    assert "scatters by more than the stall" in (found.reason or "")
    two = [Plan(repeat=i, steps_s=1.0, step_extra_s=extra + 0.001 * i) for i in (1, 2)]
    found = finding(answer(tmp_path / "b", two), "SC03")
    assert "2 runs: fewer than 3 decide no difference of times" in (found.reason or "")
    three = [Plan(repeat=i, steps_s=1.0, step_extra_s=extra + 0.001 * i) for i in (1, 2, 3)]
    found = finding(answer(tmp_path / "c", three), "SC03")
    assert found.verdict == "contradicts"
    assert "3 runs decide, as all lie more than 3 times their range beyond" in found.sentence


def test_sc04_low_coverage_is_critical_full_coverage_is_fine(tmp_path: Path) -> None:
    low = finding(answer(tmp_path / "a", [*repeats(2), Plan(repeat=9, traced_share=0.9)]), "SC04")
    assert (low.verdict, low.level, low.value) == ("supports", "critical", 0.9)
    assert [run.endswith("r09") for run in low.evidence] == [True]
    assert finding(answer(tmp_path / "b", repeats(2)), "SC04").verdict == "contradicts"
    assert finding(answer(tmp_path / "c", repeats(2, log="none")), "SC04").verdict == "not_measured"


def test_sc04_names_rank_checkpoint_bytes_and_the_side_that_broke(tmp_path: Path) -> None:
    plan = Plan(nodes=2, writers=(0, 1), expected_coverage="0.99,1.01")
    few = finding(answer(tmp_path / "a", [replace(plan, share_of={1: 0.9})]), "SC04")
    assert "rank 1 in checkpoint 0 of planted/" in few.sentence
    assert "9000000 bytes traced, 10000000 on disk, 1000000 too few" in few.sentence
    assert (few.value, "mmap" in (few.recommendation or "")) == (0.9, True)
    many = finding(answer(tmp_path / "b", [replace(plan, share_of={1: 1.2})]), "SC04")
    assert "12000000 bytes traced, 10000000 on disk, 2000000 too many" in many.sentence
    assert (many.level, many.value) == ("critical", 1.2)
    assert "mmap" not in (many.recommendation or "")
    assert "written over" in (many.recommendation or "")


def test_sc04_a_header_of_a_tiny_file_is_not_critical(tmp_path: Path) -> None:
    plan = Plan(nodes=2, writers=(0, 1), expected_coverage="0.99,1.01", bytes_of={1: 2000}, share_of={1: 1.2})
    found = finding(answer(tmp_path, [plan]), "SC04")
    assert (found.verdict, found.level, found.value) == ("supports", "info", 1.2)
    assert "rank 1" in found.sentence


def test_sc05_wide_and_narrow_spread(tmp_path: Path) -> None:
    wide = finding(answer(tmp_path / "a", repeats(5, spread=0.05)), "SC05")
    assert wide.verdict == "supports"
    assert wide.value == pytest.approx(0.2 / (0.081 + 0.1))
    assert finding(answer(tmp_path / "b", repeats(5, spread=0.001)), "SC05").verdict == "contradicts"
    assert finding(answer(tmp_path / "c", repeats(1)), "SC05").verdict == "not_measured"


def test_sc06_rank_that_arrives_late(tmp_path: Path) -> None:
    found = finding(answer(tmp_path, repeats(3, nodes=8, late_s={5: 2.0})), "SC06")
    assert found.verdict == "supports"
    assert found.value == pytest.approx(2.0)
    assert "rank 5 comes last" in found.sentence
    assert "3 of 3 runs" in found.sentence


def test_sc06_rank_that_finishes_late(tmp_path: Path) -> None:
    found = finding(answer(tmp_path, repeats(3, nodes=8, slow_s={5: 2.0})), "SC06")
    assert found.verdict == "supports"
    assert "rank 5 is done last" in found.sentence


def test_sc06_one_of_several_writers_finishes_late(tmp_path: Path) -> None:
    plans = repeats(3, nodes=4, writers=(0, 1, 2, 3), slow_s={2: 0.5})
    assert "rank 2 is done last, 0.5 s" in finding(answer(tmp_path, plans), "SC06").sentence


def test_sc06_a_rank_with_nearly_all_bytes_does_not_straggle_nor_does_one_of_one_run(tmp_path: Path) -> None:
    larger = repeats(3, nodes=4, writers=(0, 1, 2, 3), slow_s={2: 0.5}, bytes_of={0: 10**5, 1: 10**5, 3: 10**5})
    assert finding(answer(tmp_path / "a", larger), "SC06").verdict == "contradicts"
    once = finding(answer(tmp_path / "b", repeats(1, nodes=8, late_s={5: 2.0})), "SC06")
    assert "seen in one run only" in (once.reason or "")
    assert "rank 5" in (once.reason or "")


def test_sc06_the_only_writer_is_no_straggler_nor_is_one_run_of_three(tmp_path: Path) -> None:
    assert finding(answer(tmp_path / "a", repeats(3, nodes=8)), "SC06").verdict == "contradicts"
    odd = [*repeats(2, nodes=8), Plan(nodes=8, repeat=3, late_s={5: 2.0})]
    assert finding(answer(tmp_path / "b", odd), "SC06").verdict == "contradicts"


def test_row_carries_interval_kind_phases_and_overhead(tmp_path: Path) -> None:
    row = answer(tmp_path, repeats(5, nodes=4)).rows[0]
    assert row["stall_s"] == pytest.approx(0.083)
    assert (row["stall_low_s"], row["stall_high_s"]) == (pytest.approx(0.081), pytest.approx(0.085))
    assert (row["stall_kind"], row["stall_coverage"], row["stall_runs"]) == ("interval", 0.9375, 5)
    assert row["write_s"] == pytest.approx(0.052)
    assert row["overhead_per_checkpoint_s"] == pytest.approx(0.083)
    assert row["overhead_fraction"] == pytest.approx(0.083 / 0.2)
    assert (row["interval_steps"], row["interval_s"]) == (2, pytest.approx(0.2))
    assert (row["writers_seen_min"], row["writers_declared_max"], row["coverage_min"]) == (1, 1, 1.0)
    assert row["flags"] == []


@pytest.mark.parametrize(
    ("split", "reason"),
    [("not measured: no I/O log", "no I/O log"), ("recorded", "recorded as one phase with another")],
)
def test_a_composite_in_some_checkpoints_leaves_the_phase_open(split: str, reason: str) -> None:
    """A rank without any writing was slowest in two of three checkpoints: the median would be 0."""
    none = {"write_s": 0.0, "commit_s": 0.25, "split": "recorded"}
    mixed = [none, {"write_s": None, "commit_s": 0.5, "split": split}, none]
    runs = [{"run": run} for run in ("a", "b")]
    alone = Pool(nodes=2, ranks_per_node=1, runs=runs[:1], saves={"a": mixed}, untrusted=0, reason=None)
    found = alone.over_saves("write_s", "split")
    assert (found.value, found.n, found.reason) == (None, 0, reason)
    assert alone.over_saves("commit_s").value == 0.25
    whole = [{**none, "write_s": 0.125}] * 3
    both = msgspec.structs.replace(alone, runs=runs, saves={"a": mixed, "b": whole})
    assert (both.over_saves("write_s", "split").value, both.over_saves("write_s", "split").n) == (0.125, 1)


def test_four_repeats_have_a_range(tmp_path: Path) -> None:
    row = answer(tmp_path, repeats(4)).rows[0]
    assert (row["stall_kind"], row["stall_coverage"]) == ("range", None)


def test_buffered_durable_and_planted_faults_stand_apart(tmp_path: Path) -> None:
    fault = Fault(rank=1, at="gather", action="sleep", seconds=2.0)
    plans = [*repeats(2), *repeats(2, durable=True, sync_s=0.3), *repeats(2, faults=[fault])]
    rows = answer(tmp_path, plans).rows
    assert [(row["durable"], bool(row["faults"]), row["runs"]) for row in rows] == [
        (False, False, 2),
        (True, False, 2),
        (False, True, 2),
    ]
    assert "planted faults: rank 1 sleep 2 s" in rows[2]["group"]


def test_durable_numbers_without_a_device_are_not_measured(tmp_path: Path) -> None:
    found = answer(tmp_path, repeats(5, durable=True, sync_s=0.3, probe_reason="tmpfs"))
    row = found.rows[0]
    assert (row["stall_s"], row["overhead_per_checkpoint_s"], row["idle_rank_s"]) == (None, None, None)
    assert row["stall_reason"] == "no device behind fsync (tmpfs)"
    assert finding(found, "SC01").reason == "no device behind fsync (tmpfs)"
    assert any("not measured: no device behind fsync" in note for note in found.notes)


def test_commits_are_pooled_only_when_asked(tmp_path: Path) -> None:
    plans = [*repeats(2, commit="a" * 40), replace(Plan(commit="b" * 40), repeat=3)]
    tables = collect([plant_all(tmp_path, plans)], read_trace)
    apart, joined = (Scaling().answer(tables, pool_commits) for pool_commits in (False, True))
    assert [row["runs"] for row in apart.rows] == [2, 1]
    assert "commit aaaaaaaaaaaa" in apart.rows[0]["group"]
    assert [row["runs"] for row in joined.rows] == [3]
    assert all("2 commits" in found.notes[0] for found in (apart, joined))


def test_runs_of_broken_laws_are_in_no_number(tmp_path: Path) -> None:
    row = answer(tmp_path, [*repeats(4), Plan(repeat=9, write_s=99.0, verified=False)]).rows[0]
    assert (row["runs"], row["runs_untrusted"]) == (4, 1)
    assert row["stall_high_s"] < 1
    assert row["flags"] == ["1 runs left out: law broken"]


def test_flags_count_checkpoints_and_runs(tmp_path: Path) -> None:
    row = answer(tmp_path, [*repeats(2), Plan(repeat=9, gap_s={0: 0.01})]).rows[0]
    assert row["flags"] == ["unattributed time above 1 % and 1 ms in 3 of 9 checkpoints"]


def test_words_count_the_waiting_of_the_same_ranks(tmp_path: Path) -> None:
    """Three ranks wait 0.272 s each for one that is slow inside the save, and is not the one that writes."""
    note = answer(tmp_path, repeats(2, spread=0.0, nodes=4, slow_s={2: 0.3})).notes[-1]
    # Rank 0 works 0.081 s of 0.31 s; ranks 1 and 3 work 0.01 s.
    each = (0.229 + 2 * 0.3) / 3
    assert f"All ranks but the slowest waited {each:.4g} s each in the mean, {3 * each:.4g} rank-seconds" in note


def test_words_say_who_wrote_who_waited_and_on_which_evidence(tmp_path: Path) -> None:
    note = answer(tmp_path, grid((1, 2, 4), 5, 0.05)).notes[-1]
    for part in (
        "1 of 4 ranks wrote 10 MB",
        "by the I/O trace of 15 checkpoints in 5 runs",
        "rank-seconds in all",
    ):
        assert part in note
    assert "No extrapolation from virtual nodes" in note


def run(*arguments: str | Path) -> tuple[int, str]:
    out = io.StringIO()
    code = cli.main(Scaling(), [str(argument) for argument in arguments], out)
    return code, out.getvalue()


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    return plant_all(tmp_path / "runs", grid((1, 2, 4), 2, 0.05, log="darshan"))


def test_table_fits_and_nothing_is_cut(campaign: Path) -> None:
    code, text = run(campaign)
    assert code == ExitCode.OK
    assert max(len(line) for line in text.splitlines()) <= 120
    assert "…" not in text
    for part in ("one machine: mechanism, not scaling", "0.5 to 2 ranks per core", "range of 2 runs", "SC06"):
        assert part in " ".join(text.split())


def test_wide_tables_keep_their_numbers(tmp_path: Path) -> None:
    """Many phases, long brackets, reasons in cells: nothing may be cropped to the width of a screen."""
    plans = repeats(5, 1.234567, durable=True, sync_s=1.1111, gather_s=0.777777, commit_s=0.55555, nodes=8)
    _, text = run(plant_all(tmp_path, [*plans, Plan(nodes=4, durable=True, log="none", control=False)]))
    row = answer(tmp_path / "again", plans).rows[0]
    assert f"{row['stall_s']:.3g} [{row['stall_low_s']:.3g}, {row['stall_high_s']:.3g}]" in text
    assert "overhead" in text
    assert "seen/declared" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (0.0, "0"),
        (0.34, "0.340"),
        (12.0, "12.0"),
        (123.4, "123"),
        (123456.0, "123456"),
        (0.00123, "0.0012"),
        (0.0001, "<0.001"),
        (-0.0001, ">-0.001"),
        (-2.0, "-2.00"),
    ],
)
def test_numbers_have_three_digits_and_no_exponent(value: float | None, text: str | None) -> None:
    assert number(value) == text


def test_reasons_stand_under_the_table(tmp_path: Path) -> None:
    _, text = run(plant_all(tmp_path, repeats(2, log="none", control=False)))
    assert "not measured: no control leg" in text
    assert "n.m. (" in text


def test_json_holds_everything_and_nothing_else(campaign: Path) -> None:
    code, text = run(campaign, "--json")
    found = json.loads(text)
    assert code == ExitCode.OK
    assert (found["schema_version"], found["question"]) == (1, "scaling")
    assert [row["nodes"] for row in found["rows"]] == [1, 2, 4]
    assert {f["code"] for f in found["findings"]} == {f"SC0{i}" for i in range(1, 7)}
    assert found["left_out"] == []
    assert msgspec.json.decode(text, type=Answer).rows == found["rows"]


def test_csv_files_read_back(campaign: Path, tmp_path: Path) -> None:
    run(campaign, "--csv", tmp_path / "csv")
    assert pl.read_csv(tmp_path / "csv" / "scaling.csv")["nodes"].to_list() == [1, 2, 4]
    assert pl.read_csv(tmp_path / "csv" / "scaling-findings.csv").height == 6
    assert (tmp_path / "csv" / "scaling-left-out.csv").exists()


def test_default_is_the_newest_campaign_of_the_runs_variable(campaign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCCKPT_RUNS", str(campaign.parent))
    assert run("--json")[0] == ExitCode.OK


def test_exit_4_when_runs_failed_but_what_can_be_said_is_printed(tmp_path: Path) -> None:
    code, text = run(plant_all(tmp_path, [*repeats(2), Plan(repeat=3, state="failed")]))
    assert code == ExitCode.RUNS_FAILED
    assert "stall ms" in text
    assert "not_done" in text


def test_exit_4_when_nothing_is_left(tmp_path: Path) -> None:
    code, text = run(plant_all(tmp_path, [Plan(state="failed")]), "--json")
    assert (code, json.loads(text)["rows"]) == (ExitCode.RUNS_FAILED, [])


@pytest.mark.parametrize("bad", [{"verified": False}, {"digest": {1: "x"}}, {"traced_share": 0.5, "log": "darshan"}])
def test_exit_6_when_a_law_is_broken(tmp_path: Path, bad: dict[str, Any]) -> None:
    assert run(plant_all(tmp_path, [Plan(**bad)]))[0] == ExitCode.NOT_TRUSTWORTHY


def test_errors_are_one_sentence_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ((tmp_path / "none",), (tmp_path, "--figure", "x.png")):
        code, text = run(*arguments)
        error = capsys.readouterr().err
        assert (code, text) == (ExitCode.BAD_SPEC, "")
        assert error.count("\n") == 1
        assert error.startswith("analysis.scaling: ")


def test_questions_are_found_by_discovery(capsys: pytest.CaptureFixture[str]) -> None:
    from analysis.__main__ import main

    assert "scaling" in cli.questions()
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "python -m analysis.scaling" in capsys.readouterr().out


def test_a_finding_has_a_reason_exactly_when_not_measured() -> None:
    found = not_measured("SC01", "c", "g", "because", [])
    assert found.sentence == "not measured: because"
    assert worst([found]) == "info"
    assert worst([]) == "ok"
    with pytest.raises(ValueError, match="SC01"):
        msgspec.structs.replace(found, verdict="supports")


def test_writers_not_measured_in_one_run_do_not_hide_the_others(tmp_path: Path) -> None:
    row = answer(tmp_path, [*repeats(2), Plan(repeat=3, log="none")]).rows[0]
    assert (row["writers_seen_min"], row["runs"], row["write_runs"]) == (1, 3, 2)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_that_has_seen_enough_is_no_error(campaign: Path, form: list[str]) -> None:
    command = [sys.executable, "-m", "analysis.scaling", str(campaign), *form]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait()) == (b"", ExitCode.OK)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_full_output_is_one_sentence(campaign: Path, form: list[str]) -> None:
    command = [sys.executable, "-m", "analysis.scaling", str(campaign), *form]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.stderr == "analysis.scaling: standard output: No space left on device\n"
    assert done.returncode == ExitCode.BAD_SPEC
