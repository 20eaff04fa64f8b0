"""Planted faults in a training state: what they make of the arrays that a restore is about to load.

Refused where nothing would change: a fault that does nothing proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from itertools import combinations

import numpy as np

from hpcckpt.errors import SpecError
from hpcckpt.planting import Fault

Arrays = dict[str, np.ndarray]
POSITION = "data.position"


def damaged(
    arrays: Arrays, fresh: Mapping[str, np.ndarray], kinds: Mapping[str, str], fault: Fault, rank: int | None = None
) -> tuple[Arrays, str]:
    """(`arrays` with the fault in them, what was done in words). `fresh`: values of a start without a restore.

    `rank`: whose state it is. A checkpoint may hold what other ranks own as well, and a rank loads nothing of that.
    """
    found = {key: array.copy() for key, array in arrays.items()}
    mine = [key for key in found if rank is None or _owner(key) in (None, rank)]
    try:
        return found, _damage(found, mine, fresh, kinds, fault)
    except _NothingToChange as nothing:
        where = "" if rank is None else f" on rank {rank}"
        raise SpecError(f"faults: {fault.action!r} would change nothing{where}: {nothing}") from None


class _NothingToChange(Exception):  # noqa: N818 - becomes a SpecError that names the rank
    """Why a fault would do nothing."""


def _owner(key: str) -> int | None:
    """The rank that alone holds an entry."""
    _, at, rank = key.rpartition("@")
    return int(rank) if at and rank.isdecimal() else None


def _damage(
    found: Arrays, mine: list[str], fresh: Mapping[str, np.ndarray], kinds: Mapping[str, str], fault: Fault
) -> str:
    """Change `found` in place, in what the rank holds (`mine`); returns what was done."""
    if fault.action == "drop":
        return _drop(found, mine, fresh, kinds, fault)
    if fault.action == "shift":
        return _shift(found, mine)
    if fault.action == "swap":
        one, other = _equal_shaped({key: found[key] for key in mine}, kinds)
        found[one], found[other] = found[other], found[one]
        return f"{one} and {other} exchanged"
    if fault.action == "flip":
        return _flip(found, mine, kinds, fault.what)
    raise SpecError(f"faults: {fault.action!r} is no fault of arrays")


def _drop(
    found: Arrays, mine: list[str], fresh: Mapping[str, np.ndarray], kinds: Mapping[str, str], fault: Fault
) -> str:
    what = str(fault.what)
    gone = [key for key in mine if kinds.get(key) == what or fnmatchcase(key, what)]
    if not gone:
        raise _NothingToChange(f"no entry that it holds is of kind {what!r} or matches it{_elsewhere(found, what)}")
    changed = [key for key in gone if key not in fresh or not _same(found[key], fresh[key])]
    # Of what each rank has for itself, another one may have something to lose: `all` means them together.
    if not changed and (fault.rank != "all" or all(_owner(key) is None for key in gone)):
        raise _NothingToChange(f"a start without a restore has the same {', '.join(gone[:4])}")
    for key in changed:
        if key in fresh:
            found[key] = fresh[key].copy()
        else:
            del found[key]
    return f"left out: {', '.join(changed[:4]) or 'nothing'}{' ...' if len(changed) > 4 else ''}"


def _elsewhere(found: Arrays, what: str) -> str:
    """Which rank holds what was meant, where that is another one."""
    others = (key for key in found if _owner(key) is not None and fnmatchcase(key, what))
    key = next(others, None)
    return "" if key is None else f"; {key} is held by rank {_owner(key)}: plant it there"


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


def _shift(found: Arrays, mine: list[str]) -> str:
    keys = [key for key in mine if key.partition("@")[0] == POSITION]
    if not keys:
        raise _NothingToChange(f"it holds no {POSITION}")
    for key in keys:
        found[key] = np.asarray(found[key] + 1, dtype=found[key].dtype)
    return f"{', '.join(keys)} + 1"


def _equal_shaped(found: Arrays, kinds: Mapping[str, str]) -> tuple[str, str]:
    """Two tensors of one shape and other values: of one kind where there are such."""
    wanted = ("parameter", "optimizer")
    keys = [key for key in sorted(found) if kinds.get(key) in wanted and found[key].size > 1]
    alike = [
        (one, other)
        for one, other in combinations(keys, 2)
        if found[one].shape == found[other].shape and found[one].tobytes() != found[other].tobytes()
    ]
    if not alike:
        raise _NothingToChange("no two tensors of equal shape have other values")
    return min(alike, key=lambda pair: kinds[pair[0]] != kinds[pair[1]])


def _flip(found: Arrays, mine: list[str], kinds: Mapping[str, str], what: str | None) -> str:
    """The lowest bit of the middle element: the smallest error there is."""
    keys = [k for k in mine if (fnmatchcase(k, what) if what else kinds.get(k) == "parameter") and found[k].size]
    if not keys:
        missing = f"matches {what!r}{_elsewhere(found, what)}" if what else "is a parameter"
        raise _NothingToChange(f"no entry that it holds {missing}")
    key = max(keys, key=lambda name: found[name].size)
    raw = np.ascontiguousarray(found[key]).copy()
    flat = raw.reshape(-1)
    flat.view(np.uint8)[len(flat) // 2 * flat.dtype.itemsize] ^= 1  # little-endian: the lowest bit
    found[key] = raw.reshape(found[key].shape)
    return f"one bit of {key}"
