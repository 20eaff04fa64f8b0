"""What a site's values may be, so that every script made from them means what it says. Asks no machine.

A script is shell text with a header of one line per option: a line break in a value would end the header
unseen, and a second word would be another option.
"""

from __future__ import annotations

import re
from typing import Any

from hpcckpt import registry
from hpcckpt.errors import SpecError, nearest

WORDS = ("partition", "account", "qos", "constraint", "gres", "reservation", "time")
"""Keys that become one option of the header each."""
OWNED = ("array", "dependency", "job-name", "nodes", "ntasks", "ntasks-per-node", "open-mode", "output", "requeue",
         "no-requeue", "signal", "time", "wrap")  # fmt: skip
"""Options of sbatch that the suite decides: a site that set them would take the ground from under a run."""
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def check(values: dict[str, Any]) -> None:
    """Raises SpecError for the first value that a script cannot carry."""
    for key, value in values.items():
        for text in _texts(value):
            if re.search(r"[\x00-\x1f\x7f]", text):
                raise SpecError(f"{key}: {text!r} holds a line break or another control character")
    _check_header(values)
    for name in values["environment"]:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise SpecError(f"environment: {name!r} is no name of a variable")
    for name in values["pythons"]:
        _check_framework(name)


def _check_header(values: dict[str, Any]) -> None:
    for key in WORDS:
        if values.get(key) is not None and not re.fullmatch(r"[^\s\"'#]+", values[key]):
            raise SpecError(f"{key}: {values[key]!r} must be one word without quotes")
    for option in values["sbatch"]:
        _check_option(option)
    limit = seconds(values["time"]) if values.get("time") else None
    if limit is not None and values["warning_s"] >= limit:
        raise SpecError(f"warning_s: {values['warning_s']} s before the end is before the start of a {limit} s job")


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for text in map(str, pair)]
    return [text for each in value for text in _texts(each)] if isinstance(value, list) else []


def _check_option(option: str) -> None:
    name = re.match(r"--?([\w-]+)", option)
    if name is None:
        raise SpecError(f"sbatch: {option!r} must begin with a dash, as --mail-type=NONE")
    if name[1] in OWNED:
        raise SpecError(f"sbatch: --{name[1]} is the suite's own; leave it out")


def _check_framework(name: str) -> None:
    known = set(registry.names("hpcckpt.frameworks"))
    known |= {framework.partition("_")[0] for framework in known}
    if name not in known:
        raise SpecError(f"pythons: no framework {name!r}; {nearest(name, known)}")


def seconds(limit: str) -> int | None:
    """Seconds of a time limit in Slurm's forms (M, M:S, H:M:S, D-H, D-H:M, D-H:M:S); None for another form."""
    match = _TIME.fullmatch(limit)
    if match is None:
        return None
    days, first, second, third = (None if part is None else int(part) for part in match.groups())
    assert first is not None
    if days is not None:
        return days * 86400 + first * 3600 + (second or 0) * 60 + (third or 0)
    if third is not None:
        return first * 3600 + (second or 0) * 60 + third
    return first * 60 + (second or 0)
