"""The laws that a run must keep before its numbers mean anything, judged from its records.

Laws 3 and 4 (replicas equal, read-back equal) make a run's numbers meaningless when broken;
laws 1 and 2 (coverage, unattributed time) flag it. Nothing is read here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from hpcckpt.records import Replica, Verified

Row = dict[str, Any]
KEPT, BROKEN, NOT_MEASURED = "kept", "broken", "not_measured"
COVERAGE, UNATTRIBUTED = "L1_coverage", "L2_unattributed"
REPLICAS, READBACK = "L3_replicas", "L4_readback"
DECISIVE = (REPLICAS, READBACK)
"""A run that breaks one of these is in no pooled number."""


def law(run: str, name: str, verdict: str, detail: str) -> Row:
    """A row of the table `laws`."""
    return {"run": run, "law": name, "verdict": verdict, "detail": detail}


def coverage(run: str, saves: Sequence[Row]) -> Row:
    """Law 1 over all checkpoints of a run."""
    broken = [save for save in saves if save["coverage_ok"] is False]
    if broken:
        worst = max(broken, key=lambda save: max(1 - save["coverage_min"], save["coverage_max"] - 1))
        extreme = f"{worst['coverage_min']:.4f} to {worst['coverage_max']:.4f}"
        detail = f"{len(broken)} of {len(saves)} checkpoints; generation {worst['generation']}: {extreme}"
        return law(run, COVERAGE, BROKEN, detail)
    unknown = next((save for save in saves if save["coverage_ok"] is None), None)
    if unknown or not saves:
        return law(run, COVERAGE, NOT_MEASURED, unknown["coverage_reason"] if unknown else "no checkpoints")
    return law(run, COVERAGE, KEPT, f"{len(saves)} checkpoints")


def unattributed(run: str, saves: Sequence[Row]) -> Row:
    """Law 2 over all checkpoints of a run."""
    broken = [save for save in saves if not save["unattributed_ok"]]
    if broken:
        worst = max(broken, key=lambda save: abs(save["unattributed_max_s"]))
        share = f"{worst['unattributed_max_s']:.4f} s of {worst['stall_s']:.4f} s"
        detail = f"{len(broken)} of {len(saves)} checkpoints; generation {worst['generation']}: {share}"
        return law(run, UNATTRIBUTED, BROKEN, detail)
    if not saves:
        return law(run, UNATTRIBUTED, NOT_MEASURED, "no checkpoints")
    return law(run, UNATTRIBUTED, KEPT, f"{len(saves)} checkpoints")


def replicas(run: str, legs: Mapping[str, Mapping[int, Sequence[Replica]]]) -> Row:
    """Law 3: at each point of each leg all ranks hold equal parameters. `legs`: leg -> rank -> digests."""
    compared, why = 0, "no digests recorded"
    for leg, ranks in legs.items():
        points: dict[tuple[int, str], dict[int, Replica]] = defaultdict(dict)
        for rank, digests in ranks.items():
            for digest in digests:
                if digest.equal is None and digest.reason:
                    why = digest.reason  # nothing of this rank can be compared here
                    continue
                points[digest.step, digest.where][rank] = digest
        for (step, where), found in sorted(points.items()):
            place = f"{leg}, step {step} ({where})"
            if differing := _differing(found):
                return law(run, REPLICAS, BROKEN, f"{place}: {differing} other parameters")
            if absent := set(ranks) - set(found):
                return law(run, REPLICAS, NOT_MEASURED, f"{place}: rank {min(absent)} recorded no digest")
            compared += 1
    if not compared:
        return law(run, REPLICAS, NOT_MEASURED, why)
    return law(run, REPLICAS, KEPT, f"{compared} points compared")


def _differing(found: dict[int, Replica]) -> str | None:
    """Which ranks differ from most of them, as the head of a sentence; None where all agree."""
    open_ = {rank: replica.digest for rank, replica in sorted(found.items()) if replica.equal is not True}
    ranks = _odd(open_) or [rank for rank in open_ if found[rank].equal is False]
    if not ranks:
        return None
    return f"rank {ranks[0]} holds" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} hold"


def _odd(digests: dict[int, str]) -> list[int]:
    """Ranks without the most frequent digest; where several are as frequent, without that of the first rank."""
    ranking = Counter(digests.values()).most_common(2)
    tie = len(ranking) == 2 and ranking[0][1] == ranking[1][1]
    usual = next(iter(digests.values())) if tie else ranking[0][0] if ranking else None
    return [rank for rank, digest in digests.items() if digest != usual]


def readback(run: str, generations: Sequence[int], found: Sequence[Verified]) -> Row:
    """Law 4: what was read back equals what was saved, at least for the first and the last generation."""
    if wrong := next((item for item in found if item.equal is False), None):
        return law(run, READBACK, BROKEN, f"generation {wrong.generation}: {wrong.reason or 'differs'}")
    if not generations:
        return law(run, READBACK, NOT_MEASURED, "no checkpoints")
    for generation in (generations[0], generations[-1]):
        mine = [item for item in found if item.generation == generation]
        if not mine or not all(item.equal for item in mine):  # several read, where nodes write to their own disks
            reason = next((item.reason for item in mine if item.reason), "not read back")
            return law(run, READBACK, NOT_MEASURED, f"generation {generation}: {reason}")
    doubtful = {item.generation for item in found if not item.equal}
    equal = len({item.generation for item in found} - doubtful)
    return law(
        run,
        READBACK,
        KEPT,
        f"{equal} of {len(generations)} generations read back equal, the rest not verified",
    )
