"""The findings OV01 to OV07: where the cost of checkpoints comes from, and what is mistaken for it.

That the stall equals the overhead is SC03's claim; here is what explains the difference. Each finding
speaks of one group. Thresholds stand here with their reasons; nothing is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from analysis.deciding import MECHANISM_NOTE, grows, placed, slope_words
from analysis.finding import Finding, counted, not_measured, signed
from analysis.stats import fit_line

Row = dict[str, Any]
AGREE_SHARE = 0.10
"""Two ways of counting agree within this share of the stall: the steps beside a save differ by as much."""
SERIALIZE_OVER_WRITE = 3.0
"""Three times the write time is no copying any more."""
UNCOMPRESSED_SHARE = 0.5
"""Where the same state takes at least this share uncompressed, it is the container that takes the time."""
IDLE_S = 0.001
"""Idle rank-seconds below a millisecond are the clock's."""
BUSY_CORES = 0.5
"""A rank that waits and keeps half a core busy spins: it takes the core from whoever works."""
WAITING = 0.5
"""Share of the stall's rank-seconds from which most ranks only wait."""
GPU_IDLE = 0.5
"""Below it a GPU does mostly nothing."""


def findings(title: str, rows: Sequence[Row]) -> list[Finding]:
    """All findings of one group."""
    mine = [row for row in rows if row["group"] == title]
    claims: list[Callable[[str, Sequence[Row]], Finding]] = [
        explained, slower_steps, compression, idle_grows, spins, gpu_idles, arrives_late,
    ]  # fmt: skip
    return [claim(title, mine) for claim in claims]


def _claim(code: str, claim: str, group: str, holds: bool, rows: Sequence[Row], **more: Any) -> Finding:
    level = more.pop("level", "warning" if holds else "ok")
    return Finding(
        code=code, claim=claim, group=group, verdict="supports" if holds else "contradicts", level=level,
        evidence=[run for row in rows for run in row["evidence"]], **more,
    )  # fmt: skip


def _missing(code: str, claim: str, group: str, rows: Sequence[Row], reason: str | None, unit: str) -> Finding:
    evidence = [run for row in rows for run in row["evidence"]]
    return not_measured(code, claim, group, reason or "no checkpoints", evidence, unit=unit)


def _most_ranks(rows: Sequence[Row], *names: str) -> Row | None:
    """The row with most ranks that has all these numbers."""
    known = [row for row in rows if all(row[name] is not None for name in names)]
    return max(known, key=lambda row: row["ranks"], default=None)


def _bounds(row: Row, stem: str) -> str:
    return f"{signed(row[f'{stem}_s'])} s [{signed(row[f'{stem}_low_s'])}, {signed(row[f'{stem}_high_s'])}]"


def explained(group: str, rows: Sequence[Row]) -> Finding:
    """OV01: stall and slower steps add up to what the control says; if not, how much is left."""
    code, claim = "OV01", "stall and slower steps explain the whole overhead against the control"
    row = _most_ranks(rows, "rest_s", "stall_s")
    if row is None or row["rest_runs"] < 2:
        reason = "one run" if row else next((each["rest_reason"] for each in rows if each["rest_reason"]), None)
        return _missing(code, claim, group, rows, reason, "s")
    allowed, low, high = AGREE_SHARE * row["stall_s"], row["rest_low_s"], row["rest_high_s"]
    parts = f"of {_bounds(row, 'control')} a checkpoint, the stall is {row['stall_s']:.4g} s and slower steps are "
    parts += f"{signed(row['slower_steps_s'])} s; " if row["slower_steps_s"] is not None else "not measured; "
    words = f"{parts}left: {_bounds(row, 'rest')} over {counted(row['rest_runs'], 'run')}, at {row['place']}"
    if high - low > row["stall_s"]:
        reason = f"the runs scatter by more than the stall: {words}"
        return _missing(code, claim, group, [row], reason, "s")
    decision = placed(low, high, row["rest_runs"], -allowed, allowed)
    if decision.side is None:
        return _missing(code, claim, group, [row], f"{decision.reason}: {words}", "s")
    return _claim(
        code, claim, group, decision.side == "within", [row], value=row["rest_s"], unit="s", low=low, high=high,
        sentence=f"{words}{decision.note}", level="ok" if decision.side == "within" else "warning",
        recommendation=_why_apart(row),
    )  # fmt: skip


def _why_apart(row: Row) -> str:
    """Where to look for what is left over."""
    if row["rest_s"] < 0:
        return "Training caught up on what the stall held back, or the control ran slower: compare their steps."
    if row["wait_before_s"] > row["rest_s"] / 2:
        return (
            f"The ranks wait up to {row['wait_before_s']:.3g} s before a save, which is in no stall: look for what "
            "makes them come apart."
        )
    if row["background_s"]:
        return "Work behind the stall takes cores and memory from training: its time is not in the stall."
    return "A few long steps, which a median passes over, may follow the saves: look at the longest ones."


def slower_steps(group: str, rows: Sequence[Row]) -> Finding:
    """OV02: training itself is slower with checkpoints, outside the stalls."""
    code, claim = "OV02", "steps are slower in the training with checkpoints than in the control"
    row = _most_ranks(rows, "slower_steps_s", "stall_s")
    if row is None or row["slower_steps_runs"] < 2:
        reason = "one run" if row else next((each["slower_steps_reason"] for each in rows), None)
        return _missing(code, claim, group, rows, reason, "s")
    allowed, low, high = AGREE_SHARE * row["stall_s"], row["slower_steps_low_s"], row["slower_steps_high_s"]
    words = f"slower steps add {_bounds(row, 'slower_steps')} to each checkpoint, a stall is {row['stall_s']:.4g} s, "
    words += f"at {row['place']}"
    decision = placed(low, high, row["slower_steps_runs"], top=allowed)
    if decision.side is None:
        return _missing(code, claim, group, [row], f"{decision.reason}: {words}", "s")
    return _claim(
        code, claim, group, decision.side == "above", [row], value=row["slower_steps_s"], unit="s", low=low, high=high,
        sentence=f"{words}{decision.note}",
        recommendation="Write-back and work behind the stall take cores and memory bandwidth from the steps.",
    )  # fmt: skip


def compression(group: str, rows: Sequence[Row]) -> Finding:
    """OV03: compressing takes far longer than writing what it makes."""
    code, claim = "OV03", "compression is on the critical path"
    row = _most_ranks(rows, "serialize_s", "write_s", "compression")
    if row is None:
        reason = next((each["serialize_reason"] or each["compression_reason"] for each in rows), None)
        return _missing(code, claim, group, rows, reason, "ratio")
    ratio = row["serialize_s"] / row["write_s"] if row["write_s"] else 0.0
    # Files may be larger than their tensors, compressed or not: a container of many small arrays outweighs the gain.
    plain, other = row["uncompressed_s"], row["uncompressed_format"]
    container = plain is not None and plain >= UNCOMPRESSED_SHARE * row["serialize_s"]
    holds = row["compresses"] and ratio >= SERIALIZE_OVER_WRITE and not container
    saved = 1 - 1 / row["compression"] if row["compression"] else 0.0
    size = "no smaller" if abs(saved) < 0.001 else f"{100 * abs(saved):.1f} % {'smaller' if saved > 0 else 'larger'}"
    files = f"{'compressed' if row['compresses'] else 'uncompressed'} files, with their containers {size} than"
    beside = f"; uncompressed, as {other}, serializing takes {plain:.3g} s" if plain is not None else ""
    return _claim(
        code, claim, group, holds, [row], value=ratio, unit="ratio",
        sentence=f"serializing takes {row['serialize_s']:.3g} s and writing {row['write_s']:.3g} s, for {files} "
        f"the tensors in them, at {row['place']}{beside}",
        recommendation="Write uncompressed where the mechanism can, as npz_plain: saving these bytes costs more time.",
        for_developers="Let users choose: no compression by default, or a fast one that runs beside the writing.",
    )  # fmt: skip


def idle_grows(group: str, rows: Sequence[Row]) -> Finding:
    """OV04: what a checkpoint costs in rank-seconds of waiting grows with ranks, even where the stall does not."""
    code, claim = "OV04", "idle rank-seconds per checkpoint grow with ranks"
    known = [row for row in rows if row["idle_rank_s"] is not None]
    points = [(float(row["ranks"]), value) for row in known for value in row["idle_per_run"]]
    fit = fit_line([x for x, _ in points], [y for _, y in points])
    span = max((x for x, _ in points), default=0.0) - min((x for x, _ in points), default=0.0)
    most = max((row["idle_rank_s"] for row in known), default=0.0)
    decision = grows(fit, max(AGREE_SHARE * most, IDLE_S) / span if span else 0.0, "rank-s per rank", "rank")
    if decision.side is None:
        return _missing(code, claim, group, known or rows, decision.reason, "rank-s/rank")
    virtual, several = known[0]["virtual_nodes"], [row for row in known if row["ranks"] > 1]
    all_write = all((row["writers_declared_max"] or 0) >= row["ranks"] for row in several)
    return _claim(
        code, claim, group, decision.side == "above", known, value=fit.slope, unit="rank-s/rank", low=fit.slope_low,
        high=fit.slope_high, level=("info" if virtual else "warning") if decision.side == "above" else "ok",
        sentence=f"{slope_words(fit, 'rank-seconds per rank')}{f' ({MECHANISM_NOTE})' if virtual else ''}",
        recommendation=None if virtual else _SLOWEST if all_write else _SAME_WRITERS,
    )  # fmt: skip


_SAME_WRITERS = "Each added rank waits for the same writers: let ranks share the work, or wait for none."
_SLOWEST = "All ranks write, and wait for the slowest of them: look at who that is, and at what they share."


def spins(group: str, rows: Sequence[Row]) -> Finding:
    """OV05: ranks that wait keep their cores busy."""
    code, claim = "OV05", "waiting ranks keep their cores busy"
    row = _most_ranks([row for row in rows if row["ranks"] > 1], "cpu_others", "idle_share")
    if row is None:
        reason = next((each["cpu_others_reason"] for each in rows if each["cpu_others_reason"]), None)
        return _missing(code, claim, group, rows, reason or "no run has more than one rank", "cores")
    if row["idle_share"] < WAITING:
        reason = f"ranks wait {100 * row['idle_share']:.0f} % of the stall: what they compute hides how they wait"
        return _missing(code, claim, group, rows, reason, "cores")
    return _claim(
        code, claim, group, row["cpu_others"] >= BUSY_CORES, [row], value=row["cpu_others"], unit="cores",
        sentence=f"a rank that writes nothing keeps {row['cpu_others']:.2f} cores busy during a save and waits most of "
        f"it, barrier: {row['barrier']}, at {row['place']}",
        for_developers="Let collectives that wait for a writer sleep between polls.",
        recommendation="Let waiting yield: poll with pauses, OMPI_MCA_mpi_yield_when_idle=1, or fewer ranks per core.",
    )  # fmt: skip


def gpu_idles(group: str, rows: Sequence[Row]) -> Finding:
    """OV06: the GPUs do nothing while the checkpoint is taken."""
    code, claim = "OV06", "GPUs idle during the stall"
    row = _most_ranks(rows, "gpu_saving")
    if row is None:
        reason = next((each["gpu_saving_reason"] for each in rows if each["gpu_saving_reason"]), None)
        return _missing(code, claim, group, rows, reason, "fraction")
    holds = row["gpu_saving"] < GPU_IDLE
    return _claim(
        code, claim, group, holds, [row], value=row["gpu_saving"], unit="fraction",
        sentence=f"GPUs are busy {100 * row['gpu_saving']:.0f} % of the stall of {row['stall_s']:.3g} s, "
        f"at {row['place']}",
        recommendation="Copy to the host and go on: write behind the stall.",
        for_developers="Offer a save that returns once the state is on the host.",
    )  # fmt: skip


def arrives_late(group: str, rows: Sequence[Row]) -> Finding:
    """OV07: ranks wait longer for the last one to come to the save than for the save."""
    code, claim = "OV07", "waiting for the last rank to arrive takes longer than the checkpoint"
    row = _most_ranks([row for row in rows if row["ranks"] > 1], "before_more_s", "stall_s")
    if row is None:
        alone = rows and all(each["ranks"] == 1 for each in rows)
        reason = "no run has more than one rank" if alone else next((each["stall_reason"] for each in rows), None)
        return _missing(code, claim, group, rows, reason, "s")
    words = f"ranks wait up to {row['wait_before_s']:.3g} s for the last one to arrive, a stall is "
    words += f"{row['stall_s']:.3g} s, at {row['place']}"
    decision = placed(row["before_more_low_s"], row["before_more_high_s"], row["before_more_runs"], top=0.0)
    if decision.side is None:
        return _missing(code, claim, group, [row], f"{decision.reason}: {words}", "s")
    return _claim(
        code, claim, group, decision.side == "above", [row], value=row["wait_before_s"], unit="s",
        sentence=f"{words}{decision.note}",
        recommendation="That is imbalance of the steps, which checkpoints only show: balance the ranks first.",
    )  # fmt: skip
