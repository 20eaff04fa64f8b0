"""What a checkpoint carries: kind by kind, from the state that was saved, that of a fresh start, and that restored.

Measured and not declared: a kind is saved where a restore brought back what a fresh start has otherwise. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from hpcckpt.records import STATE_KINDS, Carried, Digests
from hpcckpt.restart.compare import FRESH, LOADED, STEP, Point, Seen

Points = Mapping[Point, Digests]

NONE_OF_THEM = "this framework, model and optimizer have no such state"
EXAMPLES = 4


def carried(restored: Seen, saved: Seen, step: int) -> list[Carried]:
    """One row per kind of state, over all ranks. `saved`: of the leg that saved, whatever the reference had."""
    gap = next((words for rank in restored if (words := _gap(restored[rank], saved.get(rank, {}), step, rank))), None)
    if gap:
        return [Carried(kind=kind, verdict="not_measured", entries=0, restored=0, reason=gap) for kind in STATE_KINDS]
    return [_of_kind(kind, restored, saved, step) for kind in STATE_KINDS]


def _gap(points: Points, saved: Points, step: int, rank: int) -> str | None:
    if (STEP, step) not in saved:
        return f"rank {rank} has no digests of what it saved behind step {step}"
    lacking = [when for when in (FRESH, LOADED) if (when, step) not in points]
    return f"rank {rank} has no digests of the state {lacking[0]} at step {step}" if lacking else None


def _of_kind(kind: str, restored: Seen, saved: Seen, step: int) -> Carried:
    entries, back, lost = 0, 0, 0
    odd: dict[str, list[int]] = defaultdict(list)
    for rank, points in restored.items():
        before, fresh, after = (
            found.kinds.get(kind, {}) for found in (saved[rank][STEP, step], points[FRESH, step], points[LOADED, step])
        )
        entries += len(before)
        for key, digest in before.items():
            if after.get(key) != digest:
                odd[key].append(rank)
                lost += after.get(key) in (None, fresh.get(key))
            elif fresh.get(key) != digest:
                back += 1
    differing = sum(map(len, odd.values()))
    named = [f"{key} (rank {', '.join(map(str, ranks))})" for key, ranks in sorted(odd.items())]
    more = [f"and {len(named) - EXAMPLES} more"] if len(named) > EXAMPLES else []
    verdict = _verdict(entries, back, lost, differing)
    return Carried(
        kind=kind,
        verdict=verdict,
        entries=entries,
        restored=back,
        differing=named[:EXAMPLES] + more,
        reason=NONE_OF_THEM if verdict == "not_applicable" else None,
    )


def _verdict(entries: int, back: int, lost: int, differing: int) -> str:
    if not entries:
        return "not_applicable"
    if not differing:
        return "saved" if back else "unchanged"
    if back:
        return "partly"
    return "missing" if lost == differing else "altered"
