"""The findings RD01 to RD08 of the question on determinism and restart, from its rows.

Thresholds stand here with their reasons; nothing is counted or shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.finding import Finding, counted, not_measured
from analysis.restart_rows import LOST
from hpcckpt.records import NO_TRANSPLANT, STATE_KINDS

Row = dict[str, Any]
REPEATS = 20
"""Repeats that must agree before training is called deterministic: what depends on timing shows now and then only."""
REMEDIES = {
    "rng": "Save the random states of every rank, and those that layers keep for themselves.",
    "buffer": "Save each rank's batch-norm statistics, or make them equal before the save; decide whose are wanted.",
    "optimizer": "Save the optimizer with its slots; wrap it before its state is loaded.",
    "data_position": "Save the position in the data, with the order that it refers to.",
    "other": "Save counters and schedules of optimizer and trainer.",
    "parameter": "The checkpoint holds other parameters than it should: read it back after the save.",
    "reduction_order": "Fix the order of the sums: no fusion by timing, one allreduce algorithm (switches on).",
    "forward_arithmetic": "Use the framework's deterministic kernels (switches on).",
    "backward_arithmetic": "Use the framework's deterministic kernels (switches on).",
}
ALTERED = "The restore brings back other values than were saved: read the checkpoint back, and compare."
CAUSES = {
    "reduction_order": "the order in which ranks' gradients are added up: samples, state and loss were equal",
    "forward_arithmetic": "the forward pass, or what no digest covers: samples and state were equal, the loss was not",
    "backward_arithmetic": "the backward pass: samples, state and loss were equal, the gradients were not",
    "data_order": "other samples",
}
"""What follows from the first difference where no state was restored."""


def findings(row: Row) -> list[Finding]:
    """All but RD06 for one group."""
    return [claim(row) for claim in (repeats, exact, carries, explained, elsewhere, reading, saving)]


def where(row: Row, name: str) -> str:
    """A difference in words, with its numbers. `name` is what its columns begin with: restart_first."""
    step, when, rank, kind, tensor, elements, of, ulp, reason = (
        row[f"{name}_{each}"]
        for each in ("step", "when", "rank", "kind", "tensor", "elements", "of_elements", "ulp", "reason")
    )
    place = "behind the restore" if when == "loaded" else "behind the step"
    head = f"first at step {step} {place}, rank {rank}: {kind} {tensor}"
    if elements is None:
        return f"{head} ({reason})"
    far = f", at most {ulp} ulp apart" if ulp is not None else ""
    return f"{head}, {elements} of {of} elements{far}" + (f" ({reason})" if reason and ulp is not None else "")


def _made(code: str, claim: str, row: Row, holds: bool, level: Any, sentence: str, **more: Any) -> Finding:
    verdict: Any = "supports" if holds else "contradicts"
    return Finding(
        code=code, claim=claim, verdict=verdict, level="ok" if holds else level, group=row["group"],
        sentence=sentence, evidence=row["evidence"], **more,
    )  # fmt: skip


def repeats(row: Row) -> Finding:
    """RD01: run to run."""
    code, claim = "RD01", "training repeats bit by bit from run to run"
    legs, equal = row["again_legs"], row["again_exact"]
    if not legs:
        return not_measured(code, claim, row["group"], row["again_reason"], row["evidence"])
    if equal < legs:
        cause = row["again_cause"] if row["again_cause"] in CAUSES else None  # else state changed outside of a step
        words = f"; {cause}: {CAUSES[cause]}" if cause else ""
        return _made(
            code, claim, row, False, "warning",
            f"{legs - equal} of {counted(legs, 'repeat')} not equal, {where(row, 'again_first')}{words}",
            value=float(equal), unit="repeats", recommendation=REMEDIES.get(cause or ""),
        )  # fmt: skip
    if legs < REPEATS:
        reason = f"{counted(legs, 'repeat')} with equal bits; {REPEATS} are asked for before it is called deterministic"
        return not_measured(code, claim, row["group"], reason, row["evidence"])
    sentence = f"all of {legs} repeats have equal bits"
    return _made(code, claim, row, True, "ok", sentence, value=float(legs), unit="repeats")


def exact(row: Row) -> Finding:
    """RD02: a restart."""
    code, claim = "RD02", "a restart goes on with equal bits"
    legs, equal, trains = row["restart_legs"], row["restart_exact"], row["restart_trains"]
    if not legs:
        return not_measured(code, claim, row["group"], row["restart_reason"], row["evidence"])
    if equal == legs:
        sentence = f"{counted(legs, 'restart')} with equal bits, up to the last step"
        return _made(code, claim, row, True, "ok", sentence, value=float(legs), unit="restarts")
    training = "" if trains < legs else "; training itself goes on with equal bits"
    return _made(
        code, claim, row, False, "info" if trains == legs else "warning",
        f"{legs - equal} of {counted(legs, 'restart')} not equal, {where(row, 'restart_first')}{training}",
        value=float(equal), unit="restarts",
    )  # fmt: skip


def carries(row: Row) -> Finding:
    """RD03: the checkpoint carries everything."""
    code, claim = "RD03", "the checkpoint carries all state of all ranks"
    verdicts = {kind: row[f"carried_{kind}"] for kind in STATE_KINDS}
    if None in verdicts.values():
        reason = row["carried_reason"] or row["restart_reason"] or "nothing was restored"
        return not_measured(code, claim, row["group"], reason, row["evidence"])
    lost = {kind: verdict for kind, verdict in verdicts.items() if set(verdict.split(" / ")) & set(LOST)}
    if not lost:
        kept = [kind for kind, verdict in verdicts.items() if verdict == "saved"]
        return _made(code, claim, row, True, "ok", f"restored: {', '.join(kept)}", value=0.0, unit="kinds")
    words = ", ".join(f"{kind} {verdict}" for kind, verdict in lost.items())
    return _made(
        code, claim, row, False, "warning", f"{words}: {'; '.join(row['lost'][:4])}", value=float(len(lost)),
        unit="kinds", recommendation=" ".join(dict.fromkeys(_remedy(kind, verdict) for kind, verdict in lost.items())),
    )  # fmt: skip


def _remedy(kind: str, verdict: str) -> str:
    return ALTERED if "altered" in verdict else REMEDIES[kind]


def explained(row: Row) -> Finding:
    """RD04: the cause by transplant."""
    code, claim = "RD04", "what differs after a restart is state that the checkpoint failed to carry"
    if not row["restart_legs"] or row["restart_exact"] == row["restart_legs"]:
        reason = row["restart_reason"] or "the restart is exact: there is nothing to explain"
        return not_measured(code, claim, row["group"], reason, row["evidence"])
    if row["cure"]:
        return _made(
            code, claim, row, True, "ok", f"{_cured(row)}{_of_training(row)}", value=float(len(row["transplants"])),
            unit="transplants", recommendation=" ".join(REMEDIES[kind] for kind in row["cure"]),
        )  # fmt: skip
    if row["explanations"]:
        differing = counted(row["restart_legs"] - row["restart_exact"], "restart")
        sentence = f"not alike: of {differing} that differ: {', '.join(row['explanations'])}"
        return _made(code, claim, row, False, "warning", sentence)
    cause = row["restart_cause"]
    why = next((note for note in row["notes"] if note.startswith(NO_TRANSPLANT)), None)
    if cause is None and why:
        return not_measured(code, claim, row["group"], why.removeprefix(NO_TRANSPLANT), row["evidence"])
    if cause is None:
        sentence = f"no: none of {counted(len(row['transplants']), 'transplant')} made the bits agree"
        return _made(code, claim, row, False, "warning", f"{sentence}; the cause is not found")
    known = f" ({row['known']})" if row["known"] and "reduction_order" in cause else ""
    grafted = f"{' and '.join(row['restart_kinds'])} taken from the reference"
    state = grafted if row["transplants"] else "equal state"
    return _made(
        code, claim, row, False, "warning", f"no: with {state} training still differs; the cause is {cause}{known}",
        recommendation=" ".join(REMEDIES[each] for each in cause.split(" + ") if each in REMEDIES),
    )  # fmt: skip


def _cured(row: Row) -> str:
    agree = "training goes on with equal bits" if row["cured"] == "training" else "the bits agree"
    return f"with {' and '.join(row['cure'])} taken from the reference at step {row['stop']}, {agree}"


def _of_training(row: Row) -> str:
    """Where less is needed for training than for all bits."""
    cause = row["restart_cause"]
    fewer = row["cured"] == "all" and cause and set(cause.split(" + ")) < set(row["cure"])
    return f"; training itself needs {cause} only" if fewer else ""


def elsewhere(row: Row) -> Finding:
    """RD05: restored on another number of ranks."""
    code, claim = "RD05", "on another number of ranks the restored state has equal bits"
    legs, equal = row["elsewhere_legs"], row["elsewhere_exact"]
    if not legs:
        return not_measured(code, claim, row["group"], row["elsewhere_reason"], row["evidence"])
    ranks = ", ".join(map(str, row["elsewhere_ranks"]))
    left = "".join(f"; not compared: {words}" for words in row["elsewhere_failed"])
    if equal == legs:
        sentence = f"saved on {row['ranks']}, restored on {ranks} ranks{left}"
        return _made(code, claim, row, True, "ok", sentence, value=float(legs), unit="restores")
    first = where(row, "elsewhere_first")
    sentence = f"saved on {row['ranks']} ranks, {legs - equal} of {counted(legs, 'restore')} not equal, {first}{left}"
    return _made(code, claim, row, False, "warning", sentence, value=float(equal), unit="restores")


def saving(row: Row) -> Finding:
    """RD08: the leg that saves, up to its checkpoint."""
    code, claim = "RD08", "up to its checkpoint the leg that saves trains as the reference does"
    legs, equal = row["saving_legs"], row["saving_exact"]
    if not legs:
        return not_measured(code, claim, row["group"], row["saving_reason"], row["evidence"])
    if equal == legs:
        sentence = f"{counted(legs, 'leg')} with equal bits"
        return _made(code, claim, row, True, "ok", sentence, value=float(legs), unit="legs")
    return _made(
        code, claim, row, False, "warning",
        f"{legs - equal} of {counted(legs, 'leg')} not equal, {where(row, 'saving_first')}: what a restart changes is "
        "mixed with it", value=float(equal), unit="legs",
    )  # fmt: skip


def paper(rows: Sequence[Row]) -> Finding:
    """RD06, the paper's finding. Runs with planted faults say nothing of it."""
    code, claim = "RD06", "no framework restarts 100 % reproducibly (arXiv 2012.00825)"
    judged = [row for row in rows if not row["faults"] and row["restart_legs"]]
    evidence = [run for row in judged for run in row["evidence"]]
    if not judged:
        return not_measured(code, claim, "all", "no run tests restart without planted faults", evidence)
    sizes = sorted({row["ranks"] for row in judged})
    able = {size: _exact_on(judged, size) for size in sizes}
    several = [size for size in sizes if size > 1] or sizes  # one rank alone has nothing to reduce
    most = max((len(able[size]) for size in several), default=0)
    words = "; ".join(f"on {counted(size, 'rank')} {', '.join(able[size]) or 'none'}" for size in sizes)
    devices = ", ".join(sorted({row["device"] for row in judged}))
    return Finding(
        code=code, claim=claim, group="all", verdict="contradicts" if most else "supports", level="info",
        value=float(most), unit="frameworks", evidence=evidence,
        sentence=f"exact with at least one strategy and network: {words} ({devices})",
    )  # fmt: skip


def _exact_on(rows: Sequence[Row], ranks: int) -> list[str]:
    """Frameworks with a row of so many ranks all of whose restarts are exact."""
    exact_ones = (row for row in rows if row["ranks"] == ranks and row["restart_exact"] == row["restart_legs"])
    return sorted({row["framework"] for row in exact_ones})


def reading(row: Row) -> Finding:
    """RD07: where the time of a restart goes."""
    code, claim = "RD07", "reading the checkpoint is the largest part of a restart's time"
    if row["largest_part"] is None or row["read_s"] is None:
        reason = row["split_reason"] or row["restart_reason"] or "no times"
        return not_measured(code, claim, row["group"], reason, row["evidence"])
    part = row["largest_part"]
    share = 100 * row[f"{part}_s"] / row["restart_s"]
    pages = "unknown" if row["cached"] is None else f"{100 * row['cached']:.0f} %"
    sentence = (
        f"{part} takes {row[f'{part}_s']:.3g} of {row['restart_s']:.3g} s ({share:.0f} %), read {row['read_s']:.3g} s "
        f"with {pages} of the pages in memory before"
    )
    return _made(code, claim, row, part == "read", "info", sentence, value=row["read_s"], unit="s")
