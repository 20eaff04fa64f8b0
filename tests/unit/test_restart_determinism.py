"""The question on determinism and restart: verdicts both ways, from rows and from run directories."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest

from analysis import cli, laws
from analysis.collect import collect
from analysis.finding import Finding
from analysis.restart_determinism import RestartDeterminism
from analysis.scaling import Scaling
from analysis.tables import TABLES, Tables, frame
from hpcckpt.errors import ExitCode
from hpcckpt.experiment import Fault
from hpcckpt.rundir import RunDir, write_json
from tests.unit.planted import Plan, plant
from tests.unit.restarting import play

RUN = {
    **dict.fromkeys(TABLES["restarts"]), "run": "c/r1", "framework": "pytorch_ddp", "model": "small_dropout",
    "strategy": "torch_dcp", "format": "dcp", "determinism": "default", "optimizer": "momentum", "ranks": 4,
    "nodes": 4, "interval_steps": 2, "durable": False, "repeat": 1, "faults": "", "commit": "c0", "conditions": "x",
    "site": "local", "virtual_nodes": True, "device": "cpu", "stop": 2, "steps": 6, "kinds": [], "notes": [],
    "points": 4, "leg_ranks": 4, "digest_s": 0.001, "step_s": 0.02, "read_s": 0.5, "launch_s": 1.0, "start_s": 5.0,
    "suite_s": 9.0, "first_step_s": 0.1, "agree_s": 0.1, "prepare_s": 0.01, "cached": 0.0,
    "split_reason": "detect: nothing had to be noticed",
}  # fmt: skip
FIRST = {
    "first_step": 2, "first_when": "loaded", "first_rank": 1, "first_kind": "buffer", "first_tensor": "model.1.mean",
    "first_elements": 16, "first_of_elements": 16, "first_ulp": 99, "first_largest": 0.5, "first_tensors": 4,
}  # fmt: skip


def leg(name: str, about: str, exact: bool | None = True, trains: bool | None = None, **more: Any) -> dict[str, Any]:
    different = {} if exact is not False else FIRST
    training = {key.replace("first", "training"): value for key, value in different.items()}
    row = RUN | {"leg": name, "about": about, "exact": exact, "trains_exactly": exact if trains is None else trains}
    return row | different | ({} if trains else training) | more


def carried(**verdicts: str) -> list[dict[str, Any]]:
    kinds = ("parameter", "optimizer", "buffer", "rng", "data_position", "other")
    verdicts = dict.fromkeys(kinds, "unchanged") | verdicts
    return [
        {"run": "c/r1", "kind": kind, "verdict": verdict, "entries": 4, "restored": 2, "reason": None,
         "differing": [] if verdict in ("saved", "unchanged") else [f"{kind}.x (rank 1)"]}
        for kind, verdict in verdicts.items()
    ]  # fmt: skip


def tables(*legs: dict[str, Any], kinds: list[dict[str, Any]] | None = None) -> Tables:
    rows = {"restarts": list(legs), "carried": kinds if kinds is not None else carried(parameter="saved")}
    return Tables(**{name: frame(name, rows.get(name, [])) for name in TABLES})


def found(made: Tables) -> dict[str, Finding]:
    answer = RestartDeterminism().answer(made)
    RestartDeterminism().views(answer)
    with TemporaryDirectory() as folder:
        cli.write_csv(answer, Path(folder))
    return {finding.code: finding for finding in answer.findings}


def exact_run(**more: Any) -> list[dict[str, Any]]:
    repeats = [leg(f"again-{number:02d}", "run_to_run", **more) for number in range(20)]
    saving = leg("train", "saving", **more)
    return [*repeats, saving, leg("restored", "restart", **more), leg("elsewhere-2", "elsewhere", leg_ranks=2, **more)]


def test_an_exact_run_supports_and_contradicts_the_paper() -> None:
    claims = found(tables(*exact_run()))
    assert {code: claim.verdict for code, claim in claims.items()} == {
        "RD01": "supports", "RD02": "supports", "RD03": "supports", "RD04": "not_measured", "RD05": "supports",
        "RD06": "contradicts", "RD07": "contradicts", "RD08": "supports",
    }  # fmt: skip
    assert claims["RD04"].reason == "the restart is exact: there is nothing to explain"
    assert claims["RD06"].sentence == "exact with at least one strategy and network: on 4 ranks pytorch_ddp (cpu)"


def test_nineteen_repeats_are_no_claim_and_one_that_differs_is() -> None:
    few = found(tables(*exact_run()[1:]))["RD01"]
    assert few.verdict == "not_measured" and few.reason and few.reason.startswith("19 repeats with equal bits; 20")
    odd = leg("again", "run_to_run", False, cause="reduction_order")
    one = found(tables(odd, *exact_run()[:2]))["RD01"]
    assert one.verdict == "contradicts" and "1 of 3 repeats not equal" in one.sentence
    assert "; reduction_order: the order in which ranks' gradients are added up" in one.sentence and one.recommendation
    stray = found(tables(leg("again", "run_to_run", False, cause="parameter")))["RD01"]
    assert stray.recommendation is None, "nothing was restored, so no checkpoint is to blame"


def test_a_restart_that_differs_is_explained_by_a_transplant() -> None:
    cure = ["buffer", "rng"]
    odd = leg("restored", "restart", False, cure=cure, cured="all", cause="rng", kinds=cure)
    cured = leg("transplant-rng", "transplant", cure=cure)
    claims = found(tables(odd, cured, kinds=carried(buffer="partly", rng="missing")))
    assert claims["RD02"].verdict == "contradicts" and claims["RD02"].level == "warning"
    assert "step 2 behind the restore, rank 1: buffer model.1.mean, 16 of 16 elements, at most 99 ulp" in (
        claims["RD02"].sentence
    )
    assert claims["RD03"].verdict == "contradicts" and claims["RD03"].value == 2.0
    assert claims["RD04"].verdict == "supports" and "training itself needs rng" in claims["RD04"].sentence
    assert claims["RD06"].verdict == "supports" and claims["RD06"].sentence.endswith("on 4 ranks none (cpu)")


def test_the_answer_in_one_sentence() -> None:
    odd = leg("restored", "restart", False, run="c/r2", cure=["buffer", "rng"], cause="rng", strategy="single_writer")
    planted = leg("restored", "restart", False, run="c/r3", faults="rank 0 ...", cause="optimizer")
    question = RestartDeterminism()
    assert question.in_short(question.answer(tables(*exact_run(), odd, planted))) == (
        "Training repeats bit by bit in 1 of 1 configuration (20 repeats or more); a restart is exact in 1 of 2; "
        "the others differ by buffer + rng (1)."
    )
    assert question.in_short(question.answer(tables())) == ""


def test_the_figures_show_each_place_and_tell_equal_names_apart() -> None:
    odd = leg("restored", "restart", False, True, run="c/r2", conditions="y", commit="c9")
    question = RestartDeterminism()
    answer = question.answer(tables(*exact_run(), odd, leg("restored", "restart", run="c/r3", ranks=2)))
    found = {drawing.name: drawing for drawing in question.drawings(answer)}
    assert list(found) == ["map", "map-2", "times", "times-2"]
    (place,) = found["map-2"].figure.axes
    texts = {text.get_text() for text in place.texts}
    assert {"exact 20/20", "exact 1/1", "trains\nexactly 1/1", "2: exact 1/1", "n.m.", "saved"} <= texts
    labels = [label.get_text() for label in place.get_yticklabels()]
    names = "pytorch_ddp torch_dcp, dcp, conditions"
    assert labels == [f"{names} x", f"{names} y"]
    shown = [view.columns["conditions"] for view in question.views(answer) if "4 ranks" in view.title]
    assert shown == [["x", "y"]] * 3


def test_one_rank_alone_does_not_contradict_the_paper() -> None:
    alone = leg("restored", "restart", ranks=1, nodes=1)
    many = leg("restored", "restart", False, run="c/r2")
    claim = found(tables(alone, many))["RD06"]
    assert claim.verdict == "supports" and claim.sentence.endswith("on 1 rank pytorch_ddp; on 4 ranks none (cpu)")


def test_a_restart_whose_training_is_exact_is_no_warning() -> None:
    claims = found(tables(leg("restored", "restart", False, True, cure=["buffer"], cause="buffer")))
    assert claims["RD02"].level == "info" and "training itself goes on with equal bits" in claims["RD02"].sentence


@pytest.mark.parametrize(
    ("more", "verdict", "words"),
    [
        ({"cause": "reduction_order"}, "contradicts", "the cause is reduction_order"),
        ({"notes": ["no transplant: training differs from run to run as well"]}, "not_measured", "run to run"),
    ],
)
def test_what_no_transplant_cures(more: dict[str, Any], verdict: str, words: str) -> None:
    claim = found(tables(leg("restored", "restart", False, **more)))["RD04"]
    assert claim.verdict == verdict and words in claim.sentence


def test_transplants_that_do_not_help_leave_the_cause_open() -> None:
    claim = found(tables(leg("restored", "restart", False), leg("transplant-rng", "transplant", False)))["RD04"]
    assert claim.verdict == "contradicts" and "the cause is not found" in claim.sentence


def test_elsewhere_differs_or_is_refused() -> None:
    odd = found(tables(leg("elsewhere-1", "elsewhere", False, leg_ranks=1)))["RD05"]
    assert odd.verdict == "contradicts" and "1 of 1 restore not equal" in odd.sentence
    refused = found(tables(leg("elsewhere-1", "elsewhere", None, reason="same number only")))["RD05"]
    assert (refused.verdict, refused.reason) == ("not_measured", "same number only")


def test_the_largest_part_of_the_time_is_named() -> None:
    slow = found(tables(*exact_run()))["RD07"]
    assert slow.sentence.startswith("start takes 5 of 6.71 s (75 %), read 0.5 s with 0 % of the pages")
    assert found(tables(*exact_run(read_s=50.0)))["RD07"].verdict == "supports"
    unknown = found(tables(*exact_run(read_s=None)))["RD07"]
    assert unknown.verdict == "not_measured" and unknown.reason == RUN["split_reason"]


def test_planted_faults_stand_apart_and_say_nothing_of_the_paper() -> None:
    answer = RestartDeterminism().answer(tables(leg("restored", "restart", False, faults="rank all flip", run="c/r2")))
    paper = next(finding for finding in answer.findings if finding.code == "RD06")
    assert paper.verdict == "not_measured"
    both = RestartDeterminism().answer(
        tables(leg("restored", "restart", False, faults="planted", run="c/r2"), *exact_run())
    )
    assert [bool(row["faults"]) for row in both.rows] == [False, True]


def test_without_such_runs_it_says_so() -> None:
    answer = RestartDeterminism().answer(tables())
    assert answer.rows == [] and answer.notes[0].startswith("No run tests restart")
    assert [finding.verdict for finding in answer.findings] == ["not_measured"]


# ---- from run directories


def done(paths: RunDir) -> Path:
    """Give a played run the state file of one that is done."""
    for state in ("queued", "running", "done"):
        paths.write_state(state=state)
    write_json(paths.manifest, {"code": {"commit": "c0ffee", "modified": False}})
    return paths.path


def played(base: Path, faults: list[Fault] | None = None, **changes: Any) -> Path:
    play(base, faults, **changes)
    (file,) = base.glob("*/restart.json")
    return done(RunDir(file.parent))


def test_a_run_is_read_whole_and_kept_out_of_the_other_questions(tmp_path: Path) -> None:
    path = played(tmp_path, restart={"elsewhere": [1]})
    made = collect([path])
    assert made.left_out.is_empty() and made.runs.is_empty() and made.saves.is_empty()
    assert cli.exit_code(made) == ExitCode.OK
    assert set(made.laws["verdict"]) == {laws.KEPT}
    (row,) = RestartDeterminism().answer(made).rows
    head = "numpy_toy, single_writer, npz_plain, small with momentum, buffered, every 2 steps, 2 ranks on cpu"
    assert row["group"].startswith(head)
    assert (row["again_exact"], row["restart_exact"], row["elsewhere_exact"]) == (1, 1, 1)
    assert row["digest_s"] > 0 and row["digest_bytes"] > 3 * 30720 * 4 and row["step_s"] > 0
    assert Scaling().answer(made, False).rows == []
    both = collect([path, plant(tmp_path / "other", Plan())])
    assert both.runs.height == 1 and both.restarts["run"].n_unique() == 1


def test_a_planted_fault_is_labelled(tmp_path: Path) -> None:
    path = played(tmp_path, [Fault(rank="all", at="restore", action="drop", what="optimizer", leg="restored")])
    (row,) = RestartDeterminism().answer(collect([path])).rows
    assert row["faults"] == "rank all drop optimizer at restore (restored)"
    assert row["cure"] == ["optimizer"] and row["carried_optimizer"] == "missing"


def test_a_run_without_its_report_is_left_out(tmp_path: Path) -> None:
    path = played(tmp_path)
    (path / "restart.json").unlink()
    made = collect([path])
    assert made.restarts.is_empty() and "restart.json" in made.left_out["file"][0]
    assert made.left_out.filter(pl.col("scope") == "run").height == 1
