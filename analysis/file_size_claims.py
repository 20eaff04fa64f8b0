"""The findings FS01 to FS08 of the question on file sizes, from its rows.

Thresholds stand here with their reasons; nothing is counted or shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from analysis.finding import Finding, Level, counted, not_measured
from analysis.own import asynchronous, base_strategy, is_own
from analysis.rows import Row

DIFFERS = 0.05
"""Sizes that differ by less differ by containers and small entries only."""
CHANGES = 0.01
"""Share by which the last checkpoint must differ from the first: counters and positions change less."""
SMALL_FILE_BYTES = 1 << 20
SMALL_CALL_BYTES = 64 << 10
"""Smaller calls cost a network file system a request each, unless it caches them."""
SMALL_CHECKPOINT_BYTES = 64 << 20
"""Below it no size of calls costs more than a part of a second, on any file system."""
MOSTLY = 0.5
CLEARLY = 0.55
"""Share from which most is something else: momentum alone makes one half and some buffers."""
PAPER = "(arXiv 2012.00825)"


def findings(row: Row, draggers: Sequence[Row]) -> list[Finding]:
    """FS04 to FS08 for one row about sizes."""
    mine = [each for each in draggers if each["group"] == row["group"]]
    return [progress(row), dragged(row, mine), small_calls(row), small_files(row), beside_parameters(row)]


def across(rows: Sequence[Row]) -> list[Finding]:
    """FS01 to FS03, which compare rows."""
    return [*formats(rows), *models(rows), chainer_varies(rows)]


def formats(rows: Sequence[Row]) -> list[Finding]:
    """FS01, per model and place, over frameworks and formats that hold the state once."""
    code, claim = "FS01", f"files of the same model differ in size by framework and format {PAPER}"
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["checkpoint_bytes"] and row["once_bytes"] == row["logical_bytes"]:
            groups[f"{row['model']}, {row['place']}"].append(row)
    found = [_formats(code, claim, group, each) for group, each in groups.items() if len(each) > 1]
    if found:
        return found
    return [not_measured(code, claim, "all", "no model was saved in two ways, each holding the state once", [])]


def _formats(code: str, claim: str, group: str, rows: Sequence[Row]) -> Finding:
    ordered = sorted(rows, key=lambda row: row["checkpoint_bytes"])
    small, large = ordered[0], ordered[-1]
    value = large["checkpoint_bytes"] / small["checkpoint_bytes"]
    differs = value >= 1 + DIFFERS
    return Finding(
        code=code, claim=claim, group=group, value=value, unit="largest/smallest",
        verdict="supports" if differs else "contradicts", level="info" if differs else "ok",
        sentence=f"{_name(large)} writes {_mb(large)}, {_name(small)} {_mb(small)}: {value:.3f} times as much",
        evidence=[run for row in (small, large) for run in row["evidence"]],
    )  # fmt: skip


def _name(row: Row) -> str:
    return f"{row['framework']} {row['strategy']} {row['format']}"


def _mb(row: Row) -> str:
    return f"{row['checkpoint_bytes'] / 1e6:.4g} MB"


def _by_model(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that differ in the model only, where there are two models."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["size_over_contents"] is not None:
            groups[f"{_name(row)}, every {row['interval_steps']} steps, {row['place']}"].append(row)
    return {group: each for group, each in groups.items() if len({row["model"] for row in each}) > 1}


def _spread(rows: Sequence[Row]) -> float:
    values = [row["size_over_contents"] for row in rows]
    return float(max(values) / min(values) - 1)


def _points(rows: Sequence[Row]) -> str:
    """Each model once with its ratio, or with both ends where its rows differ; smallest first."""
    found: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: row["size_over_contents"]):
        found.setdefault(row["model"], []).append(f"{row['size_over_contents']:.3f}")
    ends = {model: list(dict.fromkeys([texts[0], texts[-1]])) for model, texts in found.items()}
    return ", ".join(f"{model} {' to '.join(texts)}" for model, texts in ends.items())


def models(rows: Sequence[Row]) -> list[Finding]:
    """FS02: the size of a byte of state on disk depends on the model."""
    code, claim = "FS02", "bytes on disk per byte of state vary with the model"
    found = [_models(code, claim, group, each) for group, each in _by_model(rows).items()]
    return found or [not_measured(code, claim, "all", "no framework and format with two models", [])]


def _models(code: str, claim: str, group: str, rows: Sequence[Row]) -> Finding:
    value, varies = _spread(rows), _spread(rows) >= DIFFERS
    return Finding(
        code=code, claim=claim, group=group, value=value, unit="largest/smallest - 1",
        verdict="supports" if varies else "contradicts", level="info" if varies else "ok",
        sentence=f"file bytes over bytes of state: {_points(rows)}",
        evidence=[run for row in rows for run in row["evidence"]],
        recommendation="Size the scratch by the model's own measurement, not by another's." if varies else None,
    )  # fmt: skip


def chainer_varies(rows: Sequence[Row]) -> Finding:
    """FS03, the paper's finding: Chainer's file sizes vary most with the model."""
    code, claim = "FS03", f"Chainer's file sizes vary more with the model than the other frameworks' {PAPER}"
    groups = [mine for mine in _by_model(rows).values() if _usual(mine[0], rows)]
    chainer = [each for each in groups if each[0]["framework"].startswith("chainer")]
    others = [each for each in groups if not each[0]["framework"].startswith("chainer")]
    evidence = [run for each in groups for row in each for run in row["evidence"]]
    if not chainer or not others:
        missing = "Chainer" if not chainer else "another framework"
        return not_measured(code, claim, "all", f"these runs hold no two models of {missing}", evidence)
    shared = set.intersection(*({row["model"] for row in each} for each in groups))
    if len(shared) < 2:
        return not_measured(code, claim, "all", "no two models were saved by all of the frameworks", evidence)
    mine, theirs = (
        sorted(([row for row in each if row["model"] in shared] for each in side), key=_spread)
        for side in (chainer, others)
    )
    words = f"file bytes over bytes of state, over {', '.join(sorted(shared))}, each framework by what its users do: "
    words += "; ".join(f"{100 * _spread(each):.1f} % with {_name(each[0])}" for each in (*mine, *theirs))
    # A framework with several formats varies with the one that is chosen: only what holds for all of them counts.
    least, most = _spread(mine[0]) - _spread(theirs[-1]), _spread(mine[-1]) - _spread(theirs[-1])
    if least < DIFFERS <= most:
        return not_measured(code, claim, "all", f"it depends on the format that is chosen: {words}", evidence)
    return Finding(
        code=code, claim=claim, group="all", value=least, unit="difference of largest/smallest", evidence=evidence,
        verdict="supports" if least >= DIFFERS else "contradicts", level="info", sentence=words,
    )  # fmt: skip


def _usual(row: Row, rows: Sequence[Row]) -> bool:
    """Whether its strategy is the framework's own mechanism, or what its users do by hand where there is none here."""
    name = row["framework"]
    alike = [each for each in rows if each["framework"] == name]
    own = [each for each in alike if is_own(name, each["strategy"]) and not asynchronous(each["strategy"])]
    return bool(row["strategy"] == base_strategy(name, own or alike))


def progress(row: Row) -> Finding:
    """FS04: the size changes as training goes on."""
    code, claim, value = "FS04", "a checkpoint's size changes as training goes on", row["last_over_first_ratio"]
    if value is None:
        return not_measured(code, claim, row["group"], row["last_over_first_reason"], row["evidence"])
    changes = abs(value - 1) >= CHANGES
    return Finding(
        code=code, claim=claim, group=row["group"], value=value, unit="last/first", evidence=row["evidence"],
        low=row["last_over_first_low_ratio"], high=row["last_over_first_high_ratio"],
        verdict="supports" if changes else "contradicts", level="info" if changes else "ok",
        sentence=f"the last checkpoint of a run has {value:.4f} times the first one's bytes ("
        f"{row['first_bytes'] / 1e6:.4g} to {row['last_bytes'] / 1e6:.4g} MB, {counted(row['runs'], 'run')})",
        recommendation="Measure a late checkpoint too: the first one compresses otherwise." if changes else None,
    )  # fmt: skip


def dragged(row: Row, draggers: Sequence[Row]) -> Finding:
    """FS05: a tensor drags a larger storage into the file."""
    code, claim = "FS05", "a tensor drags a larger storage into the file"
    if not row["storages_known"]:
        plain = "no storage was read back: the format holds plain arrays, or nothing was verified"
        reason = row["files_reason"] or plain
        return not_measured(code, claim, row["group"], reason, row["evidence"])
    value = sum(each["dragged_bytes"] for each in draggers)
    words = "no tensor of the files that were read back is smaller than its storage"
    if draggers:
        most = draggers[0]
        what = f"{most['tensor']} ({most['tensor_bytes']} bytes in a storage of {most['storage_bytes']})"
        words = f"{len(draggers)} tensors drag {value / 1e6:.4g} MB at most; first of them {what}"
    return Finding(
        code=code, claim=claim, group=row["group"], value=float(value), unit="bytes", evidence=row["evidence"],
        verdict="supports" if draggers else "contradicts", level="warning" if draggers else "ok", sentence=words,
        recommendation="Save a clone of the view instead of the view." if draggers else None,
        for_developers="Write only the part of a storage that the saved tensors use." if draggers else None,
    )  # fmt: skip


def small_calls(row: Row) -> Finding:
    """FS06: the file is written in small calls."""
    code, claim, value = "FS06", "checkpoints are written in small calls", row["bytes_per_call"]
    if value is None:
        return not_measured(code, claim, row["group"], row["write_calls_reason"], row["evidence"])
    small, large = value < SMALL_CALL_BYTES, (row["checkpoint_bytes"] or 0) >= SMALL_CHECKPOINT_BYTES
    level: Level = ("warning" if large else "info") if small else "ok"
    little = "" if large or not small else ", which is little to write in any calls"
    size = "" if row["checkpoint_bytes"] is None else f", {_mb(row)} in all{little}"
    return Finding(
        code=code, claim=claim, group=row["group"], value=value, unit="bytes/call", evidence=row["evidence"],
        verdict="supports" if small else "contradicts", level=level,
        sentence=f"{row['write_calls']:.0f} write calls per checkpoint with {value / 1024:.4g} KiB each on average"
        f"{size}",
        recommendation="Give the writer a larger buffer." if small else None,
        for_developers=f"Write in calls of at least {SMALL_CALL_BYTES >> 10} KiB." if small else None,
    )  # fmt: skip


def small_files(row: Row) -> Finding:
    """FS07: a checkpoint is many small files."""
    code, claim, count = "FS07", "most files of a checkpoint are small", row["files"]
    if not count:
        return not_measured(code, claim, row["group"], row["files_reason"] or "no files", row["evidence"])
    share = row["small_files"] / count
    many = share > MOSTLY and count > 1
    return Finding(
        code=code, claim=claim, group=row["group"], value=share, unit="fraction", evidence=row["evidence"],
        verdict="supports" if many else "contradicts", level="info" if many else "ok",
        sentence=f"{row['small_files']:.0f} of {count:.0f} files of a checkpoint are below 1 MiB",
        recommendation="Let fewer ranks write, or several share a file." if many else None,
    )  # fmt: skip


def beside_parameters(row: Row) -> Finding:
    """FS08: most of a checkpoint is something else than parameters."""
    code, claim, whole = "FS08", "most of a checkpoint is something else than parameters", row["logical_bytes"]
    if not whole or row["parameter_bytes"] is None:
        reason = row["logical_reason"] or "the inventory lists no contents of kind parameter"
        return not_measured(code, claim, row["group"], reason, row["evidence"])
    share = 1 - row["parameter_bytes"] / whole
    mostly = share >= CLEARLY
    return Finding(
        code=code, claim=claim, group=row["group"], value=share, unit="fraction", evidence=row["evidence"],
        verdict="supports" if mostly else "contradicts", level="info" if mostly else "ok",
        sentence=f"{100 * share:.1f} % of the contents are no parameters: the checkpoint holds "
        f"{whole / row['parameter_bytes']:.3g} times the parameters' bytes",
        recommendation="Where only the parameters are needed later, save them apart." if mostly else None,
    )  # fmt: skip
