"""The remedies question on planted campaigns: pairs, costs, best intervals, each finding both ways."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from analysis import cli
from analysis.best_interval import daly_s, lost_share, young_s
from analysis.cli import Answer
from analysis.collect import collect
from analysis.finding import Finding
from analysis.memory import Memory
from analysis.own import asynchronous, base_strategy, is_own
from analysis.remedies import Remedies
from analysis.tables import Tables
from hpcckpt.errors import ExitCode
from tests.unit.planted import Plan, plant_all, read_trace

SHARDED: dict[str, Any] = {"strategy": "sharded", "writers": (0, 1), "file_bytes": 5_000_000, "copies": False}


def tables(root: Path, plans: Sequence[Plan]) -> Tables:
    return collect([plant_all(root, plans)], read_trace)


def answer(root: Path, plans: Sequence[Plan]) -> Answer:
    return Remedies().answer(tables(root, plans))


def finding(found: Answer, code: str, group: str) -> Finding:
    mine = [f for f in found.findings if f.code == code and group in f.group]
    assert len(mine) == 1, [f.group for f in mine]
    return mine[0]


def row(found: Answer, strategy: str) -> dict[str, Any]:
    mine = [row for row in found.rows if row["strategy"] == strategy]
    assert len(mine) == 1
    return mine[0]


def repeats(count: int, **changes: Any) -> list[Plan]:
    base = Plan(**{"nodes": 2} | changes)
    return [replace(base, repeat=i + 1, write_s=base.write_s + 0.001 * i) for i in range(count)]


def test_differences_are_taken_between_runs_of_one_repeat(tmp_path: Path) -> None:
    """Runs drift by 1 s from repeat to repeat, and the other strategy always takes 10 ms less."""
    drift = [replace(p, write_s=0.05 + p.repeat) for p in repeats(3)]
    other = [replace(p, write_s=p.write_s - 0.01) for p in (replace(p, **SHARDED) for p in drift)]
    found = row(answer(tmp_path, [*drift, *other]), "sharded")
    assert (found["base"], found["pairs"]) == ("single_writer", 3)
    for part in ("", "_low", "_high"):
        assert found[f"stall_more{part}_s"] == pytest.approx(-0.01)
    assert found["checkpoint_ratio"] == pytest.approx(1.0)
    assert found["files_more"] == 1


def test_the_base_itself_and_a_lonely_strategy_have_reasons(tmp_path: Path) -> None:
    found = answer(tmp_path / "a", [*repeats(2), *repeats(2, **SHARDED)])
    base = row(found, "single_writer")
    assert base["is_base"]
    assert base["stall_more_reason"] == "it is what the others are compared with"
    lonely = answer(tmp_path / "b", repeats(2))
    assert row(lonely, "single_writer")["stall_more_reason"] == "no other strategy to compare with"
    assert any("Nothing to compare" in note for note in lonely.notes)


def test_rm01_less_not_less_and_too_wide(tmp_path: Path) -> None:
    base = repeats(3)
    less = finding(answer(tmp_path / "a", [*base, *repeats(3, write_s=0.01, **SHARDED)]), "RM01", "sharded")
    assert (less.verdict, less.value) == ("supports", pytest.approx(-0.04))
    same = finding(answer(tmp_path / "b", [*base, *repeats(3, **SHARDED)]), "RM01", "sharded")
    assert same.verdict == "contradicts"
    more = finding(answer(tmp_path / "c", [*base, *repeats(3, write_s=0.2, **SHARDED)]), "RM01", "sharded")
    assert more.verdict == "contradicts"
    wide = [replace(p, write_s=0.02 * p.repeat + 0.01) for p in repeats(3, **SHARDED)]
    found = finding(answer(tmp_path / "d", [*base, *wide]), "RM01", "sharded")
    assert "too large to tell" in (found.reason or "")
    one = finding(answer(tmp_path / "e", [*repeats(1), *repeats(1, **SHARDED)]), "RM01", "sharded")
    assert "one pair of runs" in (one.reason or "")
    two = answer(tmp_path / "f", [*repeats(2), *repeats(2, write_s=0.01, **SHARDED)])
    assert "2 pairs: fewer than 3" in (finding(two, "RM01", "sharded").reason or "")


@pytest.mark.parametrize(("write_s", "verdict"), [(0.2, "supports"), (0.01, "contradicts")])
def test_rm02_the_papers_finding_on_chainer(tmp_path: Path, write_s: float, verdict: str) -> None:
    chainer = {"framework": "chainer_chainermn", "format": "npz"}
    base = repeats(3, strategy="chainer_snapshot", **chainer)
    many = repeats(3, strategy="chainermn_multi_node", writers=(0, 1), write_s=write_s, **chainer)
    plans = [replace(plan, virtual_nodes=False) for plan in (*base, *many)]
    found = finding(answer(tmp_path / "a", plans), "RM02", "chainermn_multi_node")
    assert found.verdict == verdict
    assert "2 writers" in found.sentence
    one = finding(answer(tmp_path / "b", [*base, *many]), "RM02", "chainermn_multi_node")
    assert "virtual nodes share one machine's cores" in (one.reason or "")
    assert "one machine with 1 ranks per core: mechanism, not scaling" in (one.reason or "")


def test_rm02_speaks_of_chainer_only(tmp_path: Path) -> None:
    found = answer(tmp_path, [*repeats(2), *repeats(2, **SHARDED)])
    assert not [f for f in found.findings if f.code == "RM02"]


@pytest.mark.parametrize(("cached", "verdict"), [(1.0, "supports"), (0.0, "contradicts")])
def test_rm03_reads_from_memory(tmp_path: Path, cached: float, verdict: str) -> None:
    taken = tables(tmp_path, repeats(2))
    reads = taken.reads.with_columns(read_s=pl.lit(0.5), cached=pl.lit(cached))
    found = Remedies().answer(msgspec.structs.replace(taken, reads=reads))
    assert (finding(found, "RM03", "").verdict, found.rows[0]["read_s"]) == (verdict, 0.5)
    unread = msgspec.structs.replace(taken, reads=taken.reads.clear())
    assert finding(Remedies().answer(unread), "RM03", "").verdict == "not_measured"


def test_rm04_copies_cost_bytes_and_shares_do_not(tmp_path: Path) -> None:
    copies = {"strategy": "replicated", "writers": (0, 1)}
    found = answer(tmp_path / "a", [*repeats(2), *repeats(2, **copies)])
    assert finding(found, "RM04", "replicated").verdict == "supports"
    assert row(found, "replicated")["checkpoint_ratio"] == 2
    own = {"strategy": "node_writer"}
    found = answer(tmp_path / "b", [*repeats(2), *repeats(2, **own)])
    assert finding(found, "RM04", "node_writer").verdict == "contradicts"
    fat = repeats(2, rss_extra={0: 10**8 + 10**7}, **own)
    found = answer(tmp_path / "c", [*repeats(2), *fat])
    assert finding(found, "RM04", "node_writer").verdict == "supports"


@pytest.mark.parametrize(("background", "verdict"), [(0.9, "supports"), (0.1, "contradicts")])
def test_rm05_work_behind_the_stall_against_the_interval(tmp_path: Path, background: float, verdict: str) -> None:
    taken = tables(tmp_path / "a", repeats(3))
    saves = taken.saves.with_columns(background_s=pl.lit(background))
    found = Remedies().answer(msgspec.structs.replace(taken, saves=saves))
    assert finding(found, "RM05", "").verdict == verdict
    one = tables(tmp_path / "b", repeats(1))
    one = msgspec.structs.replace(one, saves=one.saves.with_columns(background_s=pl.lit(background)))
    assert "1 run: fewer than 3" in (finding(Remedies().answer(one), "RM05", "").reason or "")
    assert not [f for f in Remedies().answer(taken).findings if f.code == "RM05"]


def test_rm06_a_stated_interval_far_from_the_best(tmp_path: Path) -> None:
    question = Remedies()
    taken = tables(tmp_path, repeats(3))
    found = question.answer(taken)
    best = found.rows[0]["best_s"]
    assert best == pytest.approx(math.sqrt(2 * 0.082 * 86400), rel=0.01)
    assert found.rows[0]["best_low_s"] < best < found.rows[0]["best_high_s"]
    assert finding(found, "RM06", "").verdict == "supports"
    question.every_s = best
    near = finding(question.answer(taken), "RM06", "")
    assert (near.verdict, near.value) == ("contradicts", pytest.approx(0, abs=1e-6))
    assert "restarts not counted" in near.sentence
    assert near.recommendation is None


def test_rm06_recommends_an_interval_only_where_it_was_measured(tmp_path: Path) -> None:
    def asked(tmp: str, **changes: Any) -> Finding:
        return finding(answer(tmp_path / tmp, repeats(3, **changes)), "RM06", "")

    buffered, virtual = asked("a", virtual_nodes=False), asked("b", durable=True, sync_s=0.1)
    real = asked("c", durable=True, sync_s=0.1, virtual_nodes=False)
    assert "stall, buffered, so without the time to the disk" in buffered.sentence
    assert "every 24 h (--mtbf: assumed, not measured)" in buffered.sentence
    assert str(buffered.recommendation).startswith("Measure durable checkpoints first")
    assert "measure it again" in str(virtual.recommendation)
    assert "one machine: mechanism, not scaling" in virtual.sentence
    assert str(real.recommendation).startswith("Save every")


def test_rm06_takes_the_overhead_where_it_is_surely_more_than_the_stall(tmp_path: Path) -> None:
    slower = answer(tmp_path / "a", repeats(3, step_extra_s=0.2)).rows[0]
    assert slower["cost_s"] == pytest.approx(0.482)
    assert slower["best_s"] == pytest.approx(daly_s(0.482, 86400))
    unsure = [replace(p, step_extra_s=0.1 * p.repeat) for p in repeats(3)]
    assert answer(tmp_path / "b", unsure).rows[0]["cost_s"] == pytest.approx(0.082)


def test_memory_is_the_fullest_save_s_as_in_the_question_on_memory(tmp_path: Path) -> None:
    taken = tables(tmp_path, [*repeats(2), *repeats(2, **SHARDED)])
    first = pl.when(pl.col("generation") == 0).then(5 * 10**7).otherwise(0)
    ranks = taken.rank_saves.with_columns(rss_peak_bytes=pl.col("rss_peak_bytes") + first)
    taken = msgspec.structs.replace(taken, rank_saves=ranks)
    extra = {each["strategy"]: each["extra_bytes"] for each in Memory().answer(taken).rows}
    assert extra == {each["strategy"]: each["memory_bytes"] for each in Remedies().answer(taken).rows}
    assert set(extra.values()) == {1.5e8}


def test_the_stalls_interval_is_carried_to_the_best_interval(tmp_path: Path) -> None:
    wide = [replace(p, write_s=0.05 * p.repeat) for p in repeats(3)]
    found = answer(tmp_path, wide).rows[0]
    assert found["best_low_s"] == pytest.approx(daly_s(found["stall_low_s"], 86400))
    assert found["best_high_s"] == pytest.approx(daly_s(found["stall_high_s"], 86400))


def test_daly_is_the_minimum_of_what_is_lost() -> None:
    for stall, mtbf in ((1.0, 3600.0), (60.0, 86400.0), (300.0, 3600.0)):
        best = daly_s(stall, mtbf)
        least = min(lost_share(stall, mtbf, best * factor / 100) for factor in range(20, 500))
        assert lost_share(stall, mtbf, best) == pytest.approx(least, rel=2e-3)
        assert young_s(stall, mtbf) == pytest.approx(best, rel=0.2)


def test_lost_shares_at_their_ends() -> None:
    assert lost_share(0.0, 1e12, 100.0) == pytest.approx(0.0, abs=1e-6)
    assert lost_share(10.0, 1e12, 90.0) == pytest.approx(0.1)
    assert lost_share(1.0, 1e-3, 1e6) == 1.0
    assert lost_share(1.0, 3600.0, 60.0, behind_s=30.0) > lost_share(1.0, 3600.0, 60.0)
    assert daly_s(100.0, 10.0) == 10.0


def test_the_next_save_waits_for_the_work_behind(tmp_path: Path) -> None:
    taken = tables(tmp_path, repeats(2))
    saves = taken.saves.with_columns(background_s=pl.lit(5000.0))
    found = Remedies().answer(msgspec.structs.replace(taken, saves=saves)).rows[0]
    assert found["best_s"] == 5000.0


def measured(strategy: str, writers: int, ranks: int = 4) -> dict[str, Any]:
    return {"strategy": strategy, "writers_declared_max": writers, "ranks": ranks, "runs": 1}


def test_the_base_is_what_a_frameworks_users_have() -> None:
    chainer = [measured("chainermn_multi_node", 4), measured("chainer_snapshot", 1), measured("single_writer", 1)]
    assert base_strategy("chainer_chainermn", chainer) == "chainer_snapshot"
    torch = [measured("torch_dcp", 4), measured("torch_dcp_async", 4), measured("single_writer", 1)]
    assert base_strategy("pytorch_horovod", torch) == "single_writer"
    assert base_strategy("pytorch_fsdp", torch) == "torch_dcp"
    tensorflow = [measured("tf_checkpoint", 1), measured("sharded", 4)]
    assert base_strategy("tensorflow_horovod", tensorflow) == "tf_checkpoint"
    assert base_strategy("unknown", [measured("no_such", 1)]) == "no_such"
    assert base_strategy("unknown", []) is None
    assert is_own("pytorch_ddp", "torch_dcp") and not is_own("pytorch_ddp", "sharded")
    assert asynchronous("torch_dcp_async") and not asynchronous("gone")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    campaign = plant_all(tmp_path, [*repeats(2, log="darshan"), *repeats(2, log="darshan", **SHARDED)])
    out, figure = io.StringIO(), tmp_path / "out.svg"
    options = [str(campaign), "--mtbf", "4", "--interval", "10"]
    assert cli.main(Remedies(), [*options, "--figure", str(figure)], out) == ExitCode.OK
    assert "sharded" in figure.read_text()
    text = " ".join(out.getvalue().split())
    assert "every 4 hours" in text and "time to restart is not measured" in text
    out = io.StringIO()
    assert cli.main(Remedies(), [*options, "--json", "--against", "sharded"], out) == ExitCode.OK
    rows = json.loads(out.getvalue())["rows"]
    assert {each["base"] for each in rows} == {None, "sharded"} or {each["base"] for each in rows} == {"sharded"}
    assert {each["every_s"] for each in rows} == {600.0}
    for wrong, words in ((["--mtbf", "0"], "must be more than 0"), (["--against", "none"], "these runs have")):
        assert cli.main(Remedies(), [str(campaign), *wrong]) == ExitCode.BAD_SPEC
        assert words in capsys.readouterr().err


def test_every_cell_has_a_number_or_a_reason(tmp_path: Path) -> None:
    question = Remedies()
    plans = [*repeats(1, generations=0), *repeats(1, rss_before=None, control=False, **SHARDED)]
    for view in question.views(question.answer(tables(tmp_path, plans))):
        cells = [cell for column in view.columns.values() for cell in column]
        assert "None" not in " ".join(cells)
        assert not any("no reason recorded" in line for line in view.below), view.below
