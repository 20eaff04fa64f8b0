"""What the runs ran on: their manifests, and which of their entries differ.

A manifest is a best effort and may lack anything: what it does not say is `not recorded`. Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from analysis.finding import counted
from analysis.tables import Tables
from analysis.view import View
from hpcckpt.rundir import RunDir, read_bytes

NOT_RECORDED = "not recorded"
_OF_ONE_RUN = ("schema_version", "scratch.path")
_OF_SET_UP = ("setup.stages.", "setup.seconds.", "setup.ranks.", "setup.record_version")
_SHOWN_ENVIRONMENTS = 6
Flat = dict[str, str]


class Environment(msgspec.Struct, frozen=True):
    """One environment and the runs that had it."""

    entries: Flat
    runs: list[str]


def environments(tables: Tables) -> list[Environment]:
    """Distinct manifests of the counted runs, the most frequent first."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run, path in tables.runs.select("run", "path").iter_rows():
        entries = {key: value for key, value in flat(_read(RunDir(path).manifest)).items() if key not in _OF_ONE_RUN}
        found.setdefault(tuple(entries.items()), []).append(run)
    return sorted((Environment(dict(e), runs) for e, runs in found.items()), key=lambda each: -len(each.runs))


def views(found: list[Environment]) -> list[View]:
    """What all have in common and what differs; the set-up's own record apart."""
    shown = found[:_SHOWN_ENVIRONMENTS]
    keys = list(dict.fromkeys(key for each in shown for key in each.entries if not key.startswith(_OF_SET_UP)))
    own = [key for key in keys if not key.startswith("setup.")]
    set_up = [key for key in keys if key.startswith("setup.")]
    more = len(found) - len(shown)
    below = [f"{more} more environments are not shown; every run's is its manifest.json"] if more else []
    made = [_view("Environment, by the runs' manifests", own, shown, below)]
    return made + ([_view("Set-up: what `make setup` chose and installed", set_up, shown, [])] if set_up else [])


def _view(title: str, keys: list[str], found: list[Environment], below: list[str]) -> View:
    columns = {"entry": keys}
    for number, each in enumerate(found, start=1):
        heading = counted(len(each.runs), "run") if len(found) == 1 else f"{number}\n{counted(len(each.runs), 'run')}"
        columns[heading] = [each.entries.get(key, NOT_RECORDED) for key in keys]
    return View(title=title, columns=columns, left=list(columns), below=below)


def machines(found: list[Environment]) -> list[str]:
    """`vm: AMD EPYC, 2 cores, 23.5 GiB` of every host that a manifest names."""
    return list(dict.fromkeys(_machine(each.entries) for each in found))


def _machine(entries: Flat) -> str:
    memory = entries.get("host.memory_bytes", "")
    parts = [
        entries.get("host.processor") or entries.get("host.machine", ""),
        f"{entries['host.cores']} cores" if "host.cores" in entries else "",
        f"{int(memory) / 2**30:.1f} GiB" if memory.isdecimal() else "",
        f"kernel {entries['host.kernel']}" if "host.kernel" in entries else "",
        f"scratch on {entries['scratch.filesystem']}" if "scratch.filesystem" in entries else "",
    ]
    return f"{entries.get('host.name', 'host ' + NOT_RECORDED)}: {', '.join(filter(None, parts)) or NOT_RECORDED}"


def entry(found: list[Environment], *keys: str) -> list[str]:
    """Distinct values of the first of the keys that a manifest has."""
    values = (next((each.entries[key] for key in keys if key in each.entries), NOT_RECORDED) for each in found)
    return list(dict.fromkeys(values))


def versions(tables: Tables) -> dict[str, list[str]]:
    """Framework -> the versions that its runs rest on, by the identity in their `run.json`."""
    found: dict[str, dict[str, None]] = {}
    for framework, path in tables.runs.select("framework", "path").iter_rows():
        packages = _mapping(_read(RunDir(path).manifest), "packages")
        identity = _mapping(_mapping(_read(RunDir(path).run), "run"), "identity")
        text = ", ".join(f"{name} {value}" for name, value in identity.items() if name in packages)
        found.setdefault(framework, {})[text or f"versions {NOT_RECORDED}"] = None
    return {framework: list(texts) for framework, texts in sorted(found.items())}


def flat(value: Any, key: str = "") -> Flat:
    """Nested entries under dotted keys, as texts."""
    if isinstance(value, Mapping) and value:
        return {k: v for name, part in value.items() for k, v in flat(part, f"{key}.{name}" if key else name).items()}
    if isinstance(value, Mapping):
        return {key: "none"} if key else {}
    if isinstance(value, list):
        return {key: "; ".join(map(str, value))}
    return {key: {True: "yes", False: "no", None: "none"}.get(value, value) if _is_flag(value) else str(value)}


def _is_flag(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _mapping(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _read(path: Path) -> Mapping[str, Any]:
    """The JSON object in the file; one entry that says why where there is none."""
    try:
        found = msgspec.json.decode(read_bytes(path))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return {path.name: f"not measured: {why}"}
    return found if isinstance(found, Mapping) else {path.name: "not measured: holds no entries"}


def distinct(values: Iterable[Any]) -> str:
    """The different values in order, joined for a sentence."""
    return ", ".join(str(value) for value in dict.fromkeys(values))
