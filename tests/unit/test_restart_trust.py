"""What is claimed of a restart only where it was seen: deviations before it, other runs' reports, rows side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from analysis.collect import collect
from analysis.finding import Finding
from analysis.restart_determinism import RestartDeterminism
from hpcckpt import rank as ranks
from hpcckpt.errors import RunError
from hpcckpt.experiment import Fault
from hpcckpt.records import RestartReport
from hpcckpt.restart.dumps import Dumps
from hpcckpt.restart.spec import death
from hpcckpt.rundir import RunDir, read_json, write_json
from hpcckpt.strategies.changed_only import ChangedOnly
from hpcckpt.tracing.spans import Trace
from jobs.restarts import Sequel
from tests.unit.restarting import job, play, run_leg
from tests.unit.test_restart_determinism import leg, played, tables
from tests.unit.test_restart_planted import planted


def claims(path: Path) -> dict[str, Finding]:
    answer = RestartDeterminism().answer(collect([path]))
    return {finding.code: finding for finding in answer.findings}


def test_a_leg_that_saves_and_differs_is_not_the_checkpoint_s_fault(tmp_path: Path) -> None:
    fault = Fault(rank="all", at="step", action="reorder", leg="train", generation=1)
    found = claims(played(tmp_path, [fault], nodes=3))
    assert found["RD08"].verdict == "contradicts" and "first at step 1 behind the step" in found["RD08"].sentence
    assert found["RD03"].verdict == "supports", "it brought back what was saved"
    assert found["RD04"].verdict == "not_measured"
    assert "leg train differs without a restart as well" in str(found["RD04"].reason)


def test_without_transplants_no_cause_is_claimed(tmp_path: Path) -> None:
    found = claims(played(tmp_path, planted("drop", what="optimizer"), restart={"transplant": False}))
    assert found["RD02"].verdict == "contradicts" and found["RD04"].verdict == "not_measured"
    assert found["RD04"].reason == "settings.restart.transplant = false"


def test_a_part_of_the_runs_that_agrees_with_a_transplant_is_a_part() -> None:
    odd = leg("restored", "restart", False, run="c/r2", kinds=["optimizer"])
    cured = odd | {"run": "c/r3", "cure": ["optimizer"], "cured": "all", "cause": "optimizer"}
    exact = leg("restored", "restart")
    answer = RestartDeterminism().answer(tables(exact, cured))
    (one,) = (finding for finding in answer.findings if finding.code == "RD04")
    assert one.sentence == "with optimizer taken from the reference at step 2, the bits agree"
    answer = RestartDeterminism().answer(tables(exact, cured, odd))
    (both,) = (finding for finding in answer.findings if finding.code == "RD04")
    assert both.sentence == "not alike: of 2 restarts that differ: optimizer (1), not found (1)"
    other = odd | {"run": "c/r4", "cure": ["rng"], "cured": "all", "cause": "rng"}
    answer = RestartDeterminism().answer(tables(cured, other))
    (row,) = answer.rows
    assert row["cure"] is None and row["explanations"] == ["optimizer (1)", "rng (1)"]
    assert RestartDeterminism().views(answer)[0].columns["cause"] == ["optimizer (1), rng (1)"]


def test_a_cure_of_training_says_no_more() -> None:
    odd = leg("restored", "restart", False, kinds=["rng"], cure=["rng"], cured="training", cause="rng")
    answer = RestartDeterminism().answer(tables(odd))
    (one,) = (finding for finding in answer.findings if finding.code == "RD04")
    assert one.sentence == "with rng taken from the reference at step 2, training goes on with equal bits"


def test_optimizer_and_sums_are_both_named(tmp_path: Path) -> None:
    found = claims(played(tmp_path, planted("drop", what="optimizer") + planted("reorder"), nodes=3))
    assert found["RD04"].sentence.startswith(
        "no: with optimizer taken from the reference training still differs; the cause is optimizer + reduction_order"
    )


def altered(report: RestartReport, index: int, **changes: Any) -> RestartReport:
    """The report with one comparison changed."""
    found = list(report.comparisons)
    found[index] = msgspec.structs.replace(found[index], **changes)
    return msgspec.structs.replace(report, comparisons=found)


@pytest.mark.parametrize("what", ["optimizer", "rng"])
def test_a_rank_on_another_node_gets_what_it_had_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """On nodes' own disks rank 1 sees no dump of rank 0's."""
    plain = Dumps.read

    def read(self: Dumps, name: str, rank: int, when: str, step: int) -> dict[str, np.ndarray]:
        return {} if threading.current_thread().name == f"rank{1 - rank}" else plain(self, name, rank, when, step)

    monkeypatch.setattr(Dumps, "read", read)
    found, _ = play(tmp_path, planted("drop", what=what))
    assert found.cure == [what] and found.cured == "all", found.notes


def test_what_no_rank_can_reach_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dumps, "read", lambda *_: {})
    with pytest.raises(RunError, match="not every rank can reach step 2 of the reference: this one lacks optimizer"):
        play(tmp_path, planted("drop", what="optimizer"))


def test_random_states_that_differ_before_the_save_are_not_the_checkpoint_s_fault(tmp_path: Path) -> None:
    found = claims(played(tmp_path, planted("flip", at="step", leg="train", generation=2, what="rng*")))
    assert found["RD08"].verdict == "contradicts" and found["RD03"].verdict == "supports"
    assert found["RD04"].verdict == "not_measured" and "leg train differs" in str(found["RD04"].reason)


@pytest.mark.parametrize(
    ("nodes", "per_node", "number", "layout"),
    [(2, 2, 1, (1, 1)), (2, 2, 2, (1, 2)), (2, 2, 3, None), (1, 4, 2, (1, 2)), (1, 1, 2, None), (4, 1, 2, (2, 1))],
)
def test_other_numbers_of_ranks_fit_into_the_job(
    tmp_path: Path, nodes: int, per_node: int, number: int, layout: tuple[int, int] | None
) -> None:
    paths, made = job(tmp_path, nodes=nodes, ranks_per_node=per_node, restart={"elsewhere": [number]})
    sequel = Sequel(paths, msgspec.structs.replace(made, virtual_nodes=True, site={"one_machine": True}))
    if layout:
        point = sequel.job_of(f"elsewhere-{number}").run.point
        assert sequel.following() == [f"elsewhere-{number}"] and (point.nodes, point.ranks_per_node) == layout
    else:
        assert sequel.following() == [] and "don't fit into" in str(sequel.found[f"elsewhere-{number}"].reason)


def test_only_the_planned_death_is_marked(tmp_path: Path) -> None:
    paths, made = job(tmp_path, restart={"kill": 0})
    train = paths.leg("train")
    trace = Trace(train.rank_file(0))
    ranks._mark_death(made, train, trace, Fault(rank=0, at="step", action="kill"))
    assert train.read_death() is None
    with trace.inside("save"), trace.phase(1, "commit"):
        ranks._mark_death(made, train, trace, death(made.run.settings.restart, 2))  # type: ignore[arg-type]
    found = train.read_death()
    assert found and found[2] == ["save", "commit"]


DAMAGES: list[tuple[Callable[[RestartReport], RestartReport], str]] = [
    (lambda report: msgspec.structs.replace(report, run_id="other"), "is of run other"),
    (
        lambda report: msgspec.structs.replace(report, comparisons=[*report.comparisons, report.comparisons[-1]]),
        "leg restored stands there twice",
    ),
    (lambda report: msgspec.structs.replace(report, comparisons=[]), "leg again was not compared"),
    (
        lambda report: msgspec.structs.replace(
            report, carried=[msgspec.structs.replace(report.carried[0], kind="nonsense")]
        ),
        "what was carried is told of nonsense, not of parameter",
    ),
    (lambda report: msgspec.structs.replace(report, stop=4), "stopped behind step 4 of 6"),
    (lambda report: msgspec.structs.replace(report, cure=["banana"]), "banana is said to help, and no transplant"),
    (
        lambda report: msgspec.structs.replace(
            report, carried=[msgspec.structs.replace(row, verdict="banana") for row in report.carried]
        ),
        "'banana' is no verdict",
    ),
    (lambda report: altered(report, 0, about="restart"), "leg again of 2 ranks is called restart"),
    (lambda report: altered(report, -1, ranks=1), "leg restored of 1 ranks"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES)
def test_a_report_that_is_not_this_run_s_is_not_believed(
    tmp_path: Path, damage: Callable[[RestartReport], RestartReport], words: str
) -> None:
    path = played(tmp_path)
    report: RestartReport = read_json(path / "restart.json", RestartReport)
    write_json(path / "restart.json", damage(report))
    made = collect([path])
    assert made.restarts.is_empty() and words in made.left_out["reason"][0]


def test_a_leg_that_was_compared_and_is_gone_is_missed(tmp_path: Path) -> None:
    path = played(tmp_path, restart={"elsewhere": [1]})
    RunDir(path).leg("elsewhere-1").rank_file(0).unlink()
    made = collect([path])
    assert made.restarts.is_empty() and "00000.jsonl of it is gone" in made.left_out["reason"][0]


def test_ranks_whose_digests_are_missing_leave_the_restart_unmeasured(tmp_path: Path) -> None:
    paths, made = job(tmp_path)
    sequel = Sequel(paths, made)
    for name in made.run.legs:
        run_leg(paths, made, name)
        if name == "restored":
            file = paths.leg(name).rank_file(1)
            kept = [line for line in file.read_bytes().splitlines(keepends=True) if b'"digests"' not in line[:24]]
            file.write_bytes(b"".join(kept))
        sequel.after(name)
    report = sequel.report()
    restored = next(each for each in report.comparisons if each.leg == "restored")
    assert restored.exact is None and restored.reason == "rank 1 has no digests of step 2 (loaded)"
    assert {row.verdict for row in report.carried} == {"not_measured"}


def test_rows_of_equal_names_and_other_intervals_are_told_apart() -> None:
    rows: list[dict[str, Any]] = [
        leg("restored", "restart", run=f"c/{number}", interval_steps=interval, durable=durable)
        for number, (interval, durable) in enumerate([(1, True), (1, False), (2, True), (2, False)])
    ]
    question = RestartDeterminism()
    answer = question.answer(tables(*rows))
    assert len({row["group"] for row in answer.rows}) == 4
    titles = [view.title for view in question.views(answer) if view.title.startswith("Determinism")]
    assert len(titles) == 2 and "durable" in titles[0] + titles[1]
    assert all(len(set(zip(*view.columns.values(), strict=True))) == 2 for view in question.views(answer)[::3])


def test_a_checkpoint_that_refers_back_reads_older_files_too(tmp_path: Path) -> None:
    for name in ("generation-00000", "generation-00001"):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "part00000-of-00001.npz", x=np.zeros(1))
    strategy = object.__new__(ChangedOnly)
    assert len(strategy.reads(tmp_path / "generation-00001")) == 2
