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
    arrays: Arrays, fresh: Mapping[str, np.ndarray], kinds: Mapping[str, str], fault: Fault
) -> tuple[Arrays, str]:
    """(`arrays` with the fault in them, what was done in words). `fresh`: values of a start without a restore."""
    found = {key: array.copy() for key, array in arrays.items()}
    if fault.action == "drop":
        return _drop(found, fresh, kinds, str(fault.what))
    if fault.action == "shift":
        found[POSITION] = np.asarray(found[POSITION] + 1, dtype=found[POSITION].dtype)
        return found, f"{POSITION} + 1"
    if fault.action == "swap":
        one, other = _equal_shaped(found, kinds)
        found[one], found[other] = found[other], found[one]
        return found, f"{one} and {other} exchanged"
    if fault.action == "flip":
        return _flip(found, kinds, fault.what)
    raise SpecError(f"faults: {fault.action!r} is no fault of arrays")


def _drop(found: Arrays, fresh: Mapping[str, np.ndarray], kinds: Mapping[str, str], what: str) -> tuple[Arrays, str]:
    gone = [key for key in found if kinds.get(key) == what or fnmatchcase(key, what)]
    if not gone:
        raise SpecError(f"faults: nothing to leave out: no entry is of kind {what!r} or matches it")
    for key in gone:
        if key in fresh:
            found[key] = fresh[key].copy()
        else:
            del found[key]
    return found, f"left out: {', '.join(gone[:4])}{' ...' if len(gone) > 4 else ''}"


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
        raise SpecError("faults: no two tensors of equal shape to exchange")
    return min(alike, key=lambda pair: kinds[pair[0]] != kinds[pair[1]])


def _flip(found: Arrays, kinds: Mapping[str, str], what: str | None) -> tuple[Arrays, str]:
    """The lowest bit of the middle element: the smallest error there is."""
    keys = [k for k in found if (fnmatchcase(k, what) if what else kinds.get(k) == "parameter") and found[k].size]
    if not keys:
        raise SpecError(f"faults: no entry matches {what!r}")
    key = max(keys, key=lambda name: found[name].size)
    raw = np.ascontiguousarray(found[key]).copy()
    flat = raw.reshape(-1)
    flat.view(np.uint8)[len(flat) // 2 * flat.dtype.itemsize] ^= 1  # little-endian: the lowest bit
    found[key] = raw.reshape(found[key].shape)
    return found, f"one bit of {key}"
