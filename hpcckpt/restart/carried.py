"""What a checkpoint carries: kind by kind, from the state before it, that of a fresh start, and that behind a restore.

Measured and not declared: a kind is saved where a restore brought back what a fresh start has otherwise. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from hpcckpt.records import Carried, Digests
from hpcckpt.restart.compare import FRESH, LOADED, STATE_KINDS, STEP, Seen

Points = Mapping[tuple[str, int], Digests]

NONE_OF_THEM = "this framework, model and optimizer have no such state"
EXAMPLES = 4


def carried(restored: Seen, reference: Seen, step: int) -> list[Carried]:
    """One row per kind of state, over all ranks."""
    return [_of_kind(kind, restored, reference, step) for kind in STATE_KINDS]


def _of_kind(kind: str, restored: Seen, reference: Seen, step: int) -> Carried:
    entries, back = 0, 0
    odd: dict[str, list[int]] = defaultdict(list)
    for rank, points in restored.items():
        before, fresh, after = (_digests(p, kind) for p in _states(points, reference.get(rank, {}), step))
        entries += len(before)
        for key, digest in before.items():
            if after.get(key) != digest:
                odd[key].append(rank)
            elif fresh.get(key) != digest:
                back += 1
    differing = sum(map(len, odd.values()))
    named = [f"{key} (rank {', '.join(map(str, ranks))})" for key, ranks in sorted(odd.items())]
    more = [f"and {len(named) - EXAMPLES} more"] if len(named) > EXAMPLES else []
    verdict = _verdict(entries, back, differing)
    return Carried(
        kind=kind,
        verdict=verdict,
        entries=entries,
        restored=back,
        differing=named[:EXAMPLES] + more,
        reason=NONE_OF_THEM if verdict == "not_applicable" else None,
    )


def _states(points: Points, reference: Points, step: int) -> tuple[Digests | None, Digests | None, Digests | None]:
    """The state before the checkpoint, that of the fresh start, and that behind the restore."""
    return reference.get((STEP, step)), points.get((FRESH, step)), points.get((LOADED, step))


def _digests(found: Digests | None, kind: str) -> dict[str, str]:
    return {} if found is None else found.kinds.get(kind, {})


def _verdict(entries: int, back: int, differing: int) -> str:
    if not entries:
        return "not_applicable"
    if not differing:
        return "saved" if back else "unchanged"
    return "missing" if not back else "partly"
