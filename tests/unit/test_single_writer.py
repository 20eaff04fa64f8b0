"""The single-writer question on planted campaigns: each finding present and absent, predictions, timelines."""

from __future__ import annotations

import io
import json
import time
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
from analysis.figures import save_svg
from analysis.finding import Finding
from analysis.more_writers import alone, predicted, storage
from analysis.single_writer import SingleWriter
from analysis.tables import Tables
from analysis.timeline import CALLS, SPANS, Timeline
from analysis.timeline_figure import drawn
from hpcckpt.errors import ExitCode
from tests.unit.planted import Plan, plant_all, read_trace
from tests.unit.planted_faults import plan as faulty


def tables(root: Path, plans: Sequence[Plan]) -> Tables:
    return collect([plant_all(root, plans)], read_trace)


def answer(root: Path, plans: Sequence[Plan]) -> Answer:
    return SingleWriter().answer(tables(root, plans))


def finding(found: Answer, code: str, group: str = "") -> Finding:
    mine = [f for f in found.findings if f.code == code and group in f.group]
    assert len(mine) == 1, [f.group for f in mine]
    return mine[0]


def repeats(count: int, **changes: Any) -> list[Plan]:
    base = Plan(**changes)
    return [replace(base, repeat=i + 1, write_s=base.write_s + 0.001 * i) for i in range(count)]


def grid(per_node_s: float, **changes: Any) -> list[Plan]:
    return [plan for n in (2, 4, 8) for plan in repeats(3, nodes=n, write_s=0.5 + per_node_s * n, **changes)]


def test_one_writer_has_all_bytes_and_the_others_wait(tmp_path: Path) -> None:
    row = answer(tmp_path, repeats(3, nodes=4)).rows[0]
    assert (row["writers_seen_max"], row["writing_nodes"], row["top_rank"], row["top_node"]) == (1, 1, 0, "virtual000")
    assert (row["top_share"], row["top_write_share"], row["top_node_share"]) == (1.0, 1.0, 1.0)
    assert row["written_bytes"] == 10_000_000
    assert row["per_writer_bytes_per_s"] == pytest.approx(1e7 / 0.051)
    assert row["serial_share"] == pytest.approx(0.072 / 0.082)
    assert row["idle_share"] == pytest.approx(0.072 / 0.082)
    assert row["others_idle_rank_s"] == pytest.approx(3 * 0.072)
    assert row["idle_share_of_window"] == pytest.approx(3 * 0.072 * 3 / (4 * (0.6 + 3 * 0.082)))


def test_writers_of_several_nodes_share_bytes_and_seconds(tmp_path: Path) -> None:
    plans = repeats(2, nodes=2, ranks_per_node=2, writers=(0, 1, 2, 3), bytes_of={3: 40_000_000})
    row = answer(tmp_path, plans).rows[0]
    assert (row["writers_seen_max"], row["writing_nodes"], row["top_rank"]) == (4, 2, 3)
    assert row["top_share"] == pytest.approx(4 / 7)
    assert row["top_write_share"] == pytest.approx(1 / 4)
    assert (row["writers_at_once_mean"], row["writers_at_once_max"]) == (pytest.approx(4.0), 4)
    assert row["aggregate_bytes_per_s"] == pytest.approx(7e7 / row["writing_s"], rel=0.02)


def test_without_a_trace_every_number_has_its_reason(tmp_path: Path) -> None:
    row = answer(tmp_path, repeats(2, nodes=2, log="none")).rows[0]
    for name in ("top_share", "top_write_share", "writing", "per_writer", "aggregate", "n_writers"):
        assert "no I/O log" in row[f"{name}_reason"], name


def test_sw01_needs_growth_and_waiting(tmp_path: Path) -> None:
    found = finding(answer(tmp_path / "a", grid(0.05)), "SW01")
    assert (found.verdict, found.level) == ("supports", "info")
    assert found.value == pytest.approx(0.05, rel=0.01)
    assert "one machine: mechanism" in found.sentence
    assert (found.recommendation, found.for_developers) == (None, None)
    cluster = finding(answer(tmp_path / "g", grid(0.05, virtual_nodes=False)), "SW01")
    assert (cluster.level, "one machine" in cluster.sentence) == ("warning", False)
    assert cluster.recommendation and cluster.for_developers
    assert finding(answer(tmp_path / "b", grid(0.0)), "SW01").verdict == "contradicts"
    busy = grid(0.05, slow_s=dict.fromkeys(range(1, 8), 0.9))
    assert finding(answer(tmp_path / "c", busy), "SW01").verdict == "contradicts"
    assert finding(answer(tmp_path / "d", repeats(3, nodes=2)), "SW01").verdict == "not_measured"
    unrest = [replace(p, write_s=p.write_s + 0.4 * (p.repeat - 1)) for p in grid(0.05)]
    assert "too large to tell" in (finding(answer(tmp_path / "f", unrest), "SW01").reason or "")
    several = answer(tmp_path / "e", [replace(p, writers=(0, 1)) for p in grid(0.05)])
    assert not [f for f in several.findings if f.code == "SW01"]


def test_sw02_only_chainer_writes_from_many_nodes(tmp_path: Path) -> None:
    chainer = Plan(framework="chainer_chainermn", strategy="chainermn_multi_node", format="npz", writers=(0, 1))
    torch = Plan(framework="pytorch_horovod", format="torch_zip")
    dcp = replace(torch, strategy="torch_dcp", format="dcp", writers=(0, 1))
    assert finding(answer(tmp_path / "a", [chainer, torch]), "SW02").verdict == "supports"
    also = finding(answer(tmp_path / "b", [chainer, torch, dcp]), "SW02")
    assert also.verdict == "contradicts"
    assert "pytorch_horovod (torch_dcp)" in also.sentence
    assert finding(answer(tmp_path / "c", [torch]), "SW02").verdict == "not_measured"


def test_sw03_several_ranks_on_one_path(tmp_path: Path) -> None:
    plans = repeats(2, nodes=2, writers=(0, 1))
    assert finding(answer(tmp_path / "a", plans), "SW03").verdict == "contradicts"
    campaign = plant_all(tmp_path / "b", plans)
    for file in campaign.glob("*/legs/train/inventory.parquet"):
        same = pl.format("generation-{}/state.npz", pl.col("generation"))
        pl.read_parquet(file).with_columns(file=same, file_bytes=pl.lit(5_000_000)).write_parquet(file)
    found = finding(SingleWriter().answer(collect([campaign], read_trace)), "SW03")
    assert (found.verdict, found.level, found.value) == ("supports", "critical", 6)
    assert "2 ranks on 2 nodes wrote generation-0/state.npz, 2.00 bytes written for each one stored" in found.sentence
    for file in campaign.glob("*/legs/train/inventory.parquet"):
        pl.read_parquet(file).with_columns(file_bytes=pl.lit(10_000_000)).write_parquet(file)
    found = finding(SingleWriter().answer(collect([campaign], read_trace)), "SW03")
    assert (found.verdict, found.level) == ("supports", "info")


def test_sw04_a_writer_that_is_slow_for_its_bytes(tmp_path: Path) -> None:
    late = {(2, generation): 0.2 for generation in range(3)}
    slow = repeats(2, nodes=4, writers=(0, 1, 2, 3), durable=True, sync_s=0.05, fsync_s=late)
    found = finding(answer(tmp_path / "a", slow), "SW04")
    assert found.verdict == "supports"
    assert "rank 2 in most checkpoints" in found.sentence
    assert "most of it fsync" in found.sentence
    assert "in one run only" in (finding(answer(tmp_path / "d", slow[:1]), "SW04").reason or "")
    even = answer(tmp_path / "b", repeats(2, nodes=4, writers=(0, 1, 2, 3)))
    assert finding(even, "SW04").verdict == "contradicts"
    assert finding(answer(tmp_path / "c", repeats(2)), "SW04").reason == "there is only one writer"


def test_sw04_a_larger_share_is_not_a_slow_writer(tmp_path: Path) -> None:
    larger = repeats(2, nodes=4, writers=(0, 1, 2, 3), bytes_of={1: 1000})
    assert finding(answer(tmp_path, larger), "SW04").verdict == "contradicts"


def test_sw05_a_rank_that_works_when_the_others_have_gone(tmp_path: Path) -> None:
    found = finding(answer(tmp_path / "a", repeats(2, nodes=4, unheld=(0,))), "SW05")
    assert (found.verdict, found.value) == ("supports", pytest.approx(0.072, abs=0.002))
    assert found.sentence.startswith("rank 0 goes on")
    assert finding(answer(tmp_path / "b", repeats(2, nodes=4)), "SW05").verdict == "contradicts"
    assert finding(answer(tmp_path / "c", repeats(2, nodes=1)), "SW05").verdict == "not_measured"


def synced(taken: Tables, calls: int | None) -> Tables:
    return msgspec.structs.replace(
        taken, rank_saves=taken.rank_saves.with_columns(fsync_calls=pl.lit(calls, pl.Int64))
    )


def test_sw06_buffered_speed_against_durable(tmp_path: Path) -> None:
    both = [*repeats(3), *repeats(3, durable=True, sync_s=0.4)]
    found = answer(tmp_path / "a", both)
    cached = finding(found, "SW06", "buffered")
    assert (cached.verdict, cached.level) == ("supports", "warning")
    assert cached.value == pytest.approx(0.451 / 0.051, rel=0.02)
    assert finding(found, "SW06", "durable").verdict == "contradicts"
    fast = [*repeats(3), *repeats(3, durable=True, sync_s=0.001)]
    assert finding(answer(tmp_path / "b", fast), "SW06", "buffered").verdict == "contradicts"
    few = answer(tmp_path / "c", [*repeats(2), *repeats(2, durable=True, sync_s=0.4)])
    assert finding(few, "SW06", "buffered").verdict == "not_measured"


def test_sw06_without_durable_runs_only_what_was_synced_tells(tmp_path: Path) -> None:
    """The kernel counts a byte as written when its page becomes dirty: that says nothing of any device."""
    taken = tables(tmp_path, repeats(2))
    found = finding(SingleWriter().answer(synced(taken, 0)), "SW06")
    assert (found.verdict, found.value, found.unit) == ("supports", 0.25, "s")
    assert found.sentence.startswith("buffered and not synced: the page cache took it; after the last save")
    itself = finding(SingleWriter().answer(synced(taken, 1)), "SW06")
    assert "its mechanism synced 2 times in a checkpoint" in (itself.reason or "")
    assert "not in the trace" in (finding(SingleWriter().answer(taken), "SW06").reason or "")
    kernel = {"write_chars_bytes": pl.lit(100), "storage_bytes": pl.lit(40)}
    counted = msgspec.structs.replace(taken, rank_saves=taken.rank_saves.with_columns(**kernel))
    assert finding(SingleWriter().answer(counted), "SW06").verdict == "not_measured"


def test_sw07_writers_that_take_turns(tmp_path: Path) -> None:
    taken = tables(tmp_path / "a", repeats(3, nodes=2, writers=(0, 1), serialize_s=0.01))
    assert finding(SingleWriter().answer(taken), "SW07").verdict == "contradicts"

    def turns(taken: Tables, at_once: float | pl.Expr = 1.0, **more: Any) -> Finding:
        mean = at_once if isinstance(at_once, pl.Expr) else pl.lit(at_once)
        saves = taken.saves.with_columns(writers_at_once_mean=mean, writers_at_once_max=pl.lit(1), **more)
        return finding(SingleWriter().answer(msgspec.structs.replace(taken, saves=saves)), "SW07")

    assert (turns(taken).verdict, turns(taken).level) == ("supports", "info")
    assert "one machine: mechanism, not scaling" in turns(taken).sentence
    assert turns(taken, writing_s=pl.lit(0.001)).verdict == "contradicts"
    scattered = pl.when(pl.col("run").str.ends_with("r01")).then(1.2).otherwise(1.0)
    assert "too large to tell" in (turns(taken, scattered).reason or "")
    one = tables(tmp_path / "b", repeats(1, nodes=2, writers=(0, 1), generations=2))
    assert "1 run: fewer than 3" in (turns(one).reason or "")
    crowded = tables(tmp_path / "c", repeats(3, nodes=4, writers=(0, 1, 2, 3)))
    assert "2 ranks share a core" in (turns(crowded).reason or "")


def test_sw08_more_writers_against_one(tmp_path: Path) -> None:
    one = repeats(3, nodes=4, file_bytes=40_000_000)
    four = repeats(3, nodes=4, strategy="sharded", writers=(0, 1, 2, 3))
    found = answer(tmp_path / "a", [*one, *four])
    assert finding(found, "SW08").verdict == "supports"
    assert finding(found, "SW08").level == "info"
    fast = repeats(3, nodes=4, strategy="sharded", writers=(0, 1, 2, 3), write_s=0.0125)
    assert finding(answer(tmp_path / "b", [*one, *fast]), "SW08").verdict == "contradicts"
    assert finding(answer(tmp_path / "c", four), "SW08").verdict == "not_measured"
    few = answer(tmp_path / "d", [*one[:2], *four[:2]])
    assert "2 runs: fewer than 3" in (finding(few, "SW08").reason or "")


def test_sw08_writers_that_hardly_meet_say_nothing_of_the_storage(tmp_path: Path) -> None:
    one = repeats(3, nodes=4, file_bytes=40_000_000)
    taken = tables(tmp_path, [*one, *repeats(3, nodes=4, strategy="sharded", writers=(0, 1, 2, 3))])

    def beside(**columns: Any) -> Answer:
        return SingleWriter().answer(msgspec.structs.replace(taken, saves=taken.saves.with_columns(**columns)))

    rarely = beside(stall_s=pl.col("stall_s") * 20)
    assert "writes in 3 % of the stall" in (finding(rarely, "SW08").reason or "")
    assert "ask OV03 for compression" in (finding(rarely, "SW08").reason or "")
    several = pl.when(pl.col("writers_seen") > 1)
    alone = beside(writers_at_once_mean=several.then(1.26).otherwise("writers_at_once_mean"))
    assert "of 4 writers 1.26 write at once" in (finding(alone, "SW08").reason or "")
    assert {row["limit_writers"] for row in alone.rows} == {None}


def test_sw10_one_checkpoint_in_which_the_single_writer_is_slow(tmp_path: Path) -> None:
    """0.5 s inside the single writer in one of five checkpoints of one run of two; and the first one, always longer."""
    taken = tables(tmp_path / "a", repeats(2, nodes=4, generations=5))

    def slow(generation: int) -> Finding:
        here = pl.col("run").str.ends_with("r01") & (pl.col("generation") == generation) & (pl.col("rank") == 0)
        ranks = taken.rank_saves.with_columns(own_s=pl.col("own_s") + pl.when(here).then(0.5).otherwise(0.0))
        return finding(SingleWriter().answer(msgspec.structs.replace(taken, rank_saves=ranks)), "SW10")

    found = slow(3)
    assert (found.verdict, found.value) == ("supports", pytest.approx(0.5))
    assert "1 of 10 checkpoints stand out; furthest is rank 0 in checkpoint 3 of" in found.sentence
    assert slow(0).verdict == "contradicts"
    few = finding(answer(tmp_path / "b", repeats(2, nodes=4, generations=2)), "SW10")
    assert few.reason == "no run has 3 checkpoints behind its first, to tell the usual one"


def test_sw09_one_fsync_that_stands_out(tmp_path: Path) -> None:
    durable = {"nodes": 2, "durable": True, "sync_s": 0.05}
    found = finding(answer(tmp_path / "a", repeats(2, **durable, fsync_s={(0, 1): 0.5})), "SW09")
    assert (found.verdict, found.value) == ("supports", pytest.approx(0.55))
    assert "rank 0, checkpoint 1 of" in found.sentence
    assert finding(answer(tmp_path / "b", repeats(2, **durable)), "SW09").verdict == "contradicts"
    assert finding(answer(tmp_path / "c", repeats(2)), "SW09").reason == "nothing was fsynced"


ROW: dict[str, Any] = {
    "framework": "f", "format": "x", "strategy": "s", "place": "8 nodes x 1 rank", "site": "local", "durable": True,
    "virtual_nodes": False, "ranks": 8, "ranks_per_core": 1.0, "writers_seen_max": 1, "writers_seen_reason": None,
    "stall_s": 1.0, "serialize_s": 0.2, "put_s": 0.4, "put_reason": None, "written_bytes": 4e8,
    "per_writer_bytes_per_s": 1e9, "aggregate_bytes_per_s": 1e9, "writers_at_once_mean": 8.0, "writing_share": 0.4,
}  # fmt: skip


def prediction(row: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    rows = [row, *others]
    return predicted(row, storage(rows), alone(row, rows))


def test_more_writers_cut_serializing_and_writing_only(tmp_path: Path) -> None:
    four = ROW | {"strategy": "t", "writers_seen_max": 4, "per_writer_bytes_per_s": 1e9, "aggregate_bytes_per_s": 2e9}
    found = prediction(ROW, four)
    assert (found["n_writers"], found["n_writers_reason"]) == (8, None)
    assert found["stall_at_writer_rate_s"] == pytest.approx(0.4 + 0.6 / 8)
    assert found["stall_at_best_aggregate_s"] == pytest.approx(0.4 + 0.2 / 8 + 4e8 / 2e9)
    assert (found["limit_writers"], found["limit_reason"]) == (2.0, None)


def test_ranks_that_share_a_core_do_not_serialize_faster(tmp_path: Path) -> None:
    four = ROW | {"writers_seen_max": 4}
    found = prediction(ROW | {"ranks_per_core": 4.0}, four)
    assert found["stall_at_writer_rate_s"] == pytest.approx(0.4 + 0.2 / 2 + 0.4 / 8)


@pytest.mark.parametrize(("measured", "expected"), [(1, 2), (3, 6), (8, 8)])
def test_no_prediction_beyond_twice_the_measured_writers(measured: int, expected: int) -> None:
    assert prediction(ROW, ROW | {"writers_seen_max": measured})["n_writers"] == expected


def test_virtual_nodes_are_never_extrapolated_from() -> None:
    row = ROW | {"virtual_nodes": True}
    found = prediction(row)
    assert found["n_writers"] is None
    assert "nothing is extrapolated from virtual nodes" in found["n_writers_reason"]
    assert prediction(row, row | {"writers_seen_max": 3})["n_writers"] == 3
    assert prediction(row | {"writers_seen_max": 8})["n_writers_reason"] == "every rank writes already"


def test_a_limit_needs_several_writers_and_one_alone() -> None:
    assert "no run with several writers" in prediction(ROW)["limit_reason"]
    four = ROW | {"writers_seen_max": 4, "aggregate_bytes_per_s": 4e9}
    assert prediction(ROW, four)["limit_reason"] == "not reached by 4 writers"
    assert "no run with one writer" in prediction(four)["limit_reason"]
    limited = four | {"aggregate_bytes_per_s": 1.5e9}
    assert prediction(ROW, limited)["limit_writers"] == 1.5
    assert "somebody writes in 5 %" in prediction(ROW, limited | {"writing_share": 0.05})["limit_reason"]


def test_the_command_line_shows_draws_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    campaign = plant_all(tmp_path, repeats(2, nodes=3, log="darshan"))
    out = io.StringIO()
    figure = tmp_path / "out.svg"
    assert cli.main(SingleWriter(), [str(campaign), "--figure", str(figure), "--checkpoint", "2"], out) == ExitCode.OK
    assert "rank 0 100 % of it" in " ".join(out.getvalue().split())
    text = figure.read_text()
    assert "checkpoint 2 of" in text and "virtual002" in text and "write calls" in text
    again = tmp_path / "again.svg"
    cli.main(SingleWriter(), [str(campaign), "--figure", str(again), "--checkpoint", "2"], io.StringIO())
    assert again.read_bytes() == figure.read_bytes()
    out = io.StringIO()
    assert cli.main(SingleWriter(), [str(campaign), "--json"], out) == ExitCode.OK
    assert json.loads(out.getvalue())["rows"][0]["top_share"] == 1.0
    assert cli.main(SingleWriter(), [str(campaign), "--below", "/x"]) == ExitCode.BAD_SPEC
    assert "belong to --darshan" in capsys.readouterr().err


def test_every_cell_without_a_number_points_to_a_reason(tmp_path: Path) -> None:
    question = SingleWriter()
    for plans in (repeats(2, nodes=2, log="none"), repeats(1, nodes=1, generations=0), repeats(2, nodes=2)):
        found = question.answer(tables(tmp_path / str(len(plans)) / plans[0].log / str(plans[0].nodes), plans))
        for view in question.views(found):
            cells = [cell for column in view.columns.values() for cell in column]
            assert "None" not in " ".join(cells)
            for cell in cells:
                if cell.startswith("n.m."):
                    assert any(line.startswith(cell.removeprefix("n.m. ").split()[0]) for line in view.below), cell
            assert not any("no reason recorded" in line for line in view.below), view.below


def many_ranks(ranks: int) -> Timeline:
    rows = [(r, "n", "wait_after", 0.0, 1.0) for r in range(1, ranks)] + [(0, "n", "serialize+write", 0.0, 1.0)]
    calls = [(0, 0.5, 0.6, 1)]
    return Timeline(
        spans=pl.DataFrame(rows, schema=SPANS, orient="row"),
        calls=pl.DataFrame(calls, schema=CALLS, orient="row"),
        reasons={},
    )


def test_a_thousand_ranks_are_an_image_that_never_loses_the_writer(tmp_path: Path) -> None:
    figure = drawn(many_ranks(1024), "t", "s", True)
    pixels = figure.axes[0].images[0].get_array()
    assert pixels.shape[:2] == (768, 1600)
    assert tuple(pixels[0, 100]) == (0xE0, 0x7B, 0x1A)
    assert tuple(pixels[2, 900]) == (0x11, 0x11, 0x11)
    assert "a line: 4 ranks" in figure.axes[0].get_title(loc="left")
    save_svg(figure, tmp_path / "many.svg")
    assert (tmp_path / "many.svg").stat().st_size < 200_000
    assert not drawn(many_ranks(4), "t", "s", False).axes[0].images


def test_a_thousand_ranks_are_answered_in_seconds(tmp_path: Path) -> None:
    taken = tables(tmp_path, repeats(1, nodes=4))
    ranks = pl.DataFrame({"rank": range(1024)})
    one = taken.rank_saves.filter((pl.col("rank") == 1) & (pl.col("generation") == 0)).drop("rank", "generation")
    many = one.join(pl.DataFrame({"generation": range(20)}), how="cross").join(ranks, how="cross")
    save = taken.saves.head(1).drop("generation").join(pl.DataFrame({"generation": range(20)}), how="cross")
    large = msgspec.structs.replace(
        taken,
        rank_saves=many.with_columns(pl.col("rank").cast(pl.Int64)).select(taken.rank_saves.columns),
        saves=save.select(taken.saves.columns),
    )
    begin = time.process_time()
    SingleWriter().answer(large)
    assert time.process_time() - begin < 5


EXPECTED = {"slow_fsync": {"SW09"}, "after_release": {"SW05"}, "slow_rank": set(), "uneven": set(), "copies": set()}


@pytest.mark.parametrize("fault", [None, *EXPECTED])
def test_sixteen_ranks_with_one_fault_have_its_findings_and_no_others(tmp_path: Path, fault: str | None) -> None:
    plans = [faulty(16, [fault] if fault else [], checkpoints=5, repeat=repeat) for repeat in (1, 2)]
    found = answer(tmp_path, [replace(plan, log="planted") for plan in plans])
    claims = {"SW03", "SW04", "SW05", "SW07", "SW09"}
    assert {f.code for f in found.findings if f.verdict == "supports"} & claims == EXPECTED.get(fault or "", set())
    if fault == "after_release":
        assert finding(found, "SW05").sentence.startswith("rank 10 goes on 1.5 s")
    if fault == "slow_fsync":
        assert "rank 7, checkpoint 2 of" in finding(found, "SW09").sentence
