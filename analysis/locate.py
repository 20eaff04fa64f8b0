"""Where the runs are: what RUNS on a command line means, and which campaign is the newest.

Looks at names and ledgers only; whether a run can be counted is decided by `analysis.collect`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcckpt.errors import RunError, SpecError
from hpcckpt.rundir import CampaignDir, RunDir, read_bytes


def newest_campaign(root: Path) -> Path:
    """The campaign below `root` that was submitted last. Raises RunError where there is none."""
    campaigns = [path for path in root.iterdir() if _is_campaign(path)] if root.is_dir() else []
    if not campaigns:
        raise RunError(f"{root}: no campaign here; submit one, or name run directories")

    def submitted(path: Path) -> tuple[float, str]:
        ledger = CampaignDir(path).ledger
        return (ledger if ledger.exists() else path).stat().st_mtime, path.name

    return max(campaigns, key=submitted)


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Run directories named by `paths`: runs, campaigns, or roots of campaigns. Some may not exist.

    A file is returned as it is, so that it gets listed as left out; a path that does not exist, and
    a directory with no run in it, are mistakes on the command line: SpecError.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise SpecError(f"{path}: no such directory; give runs, campaigns or a root of campaigns")
        for run in _runs_below(path):
            # One run has many names: relative, absolute, through a link. It is listed under the first.
            found.setdefault(run.resolve(), run)
    return list(found.values())


def is_run(path: Path) -> bool:
    """Whether the directory holds anything that only runs have."""
    run = RunDir(path)
    return path.is_dir() and (run.run.exists() or run.state.exists() or run.legs.is_dir())


def _is_campaign(path: Path) -> bool:
    return path.is_dir() and (CampaignDir(path).ledger.is_file() or any(map(is_run, path.iterdir())))


def _runs_below(path: Path) -> list[Path]:
    if is_run(path) or not path.is_dir():
        return [path]
    if _is_campaign(path):
        children = [child for child in path.iterdir() if _of_a_run(child) and not child.name.startswith(".")]
        return sorted({*children, *(path / run_id for run_id in _ledger(path))})
    campaigns = [child for child in sorted(path.iterdir()) if _is_campaign(child)]
    if not campaigns:
        raise SpecError(f"{path}: no run in it; give runs, campaigns or a root of campaigns")
    return [run for campaign in campaigns for run in _runs_below(campaign)]


def _of_a_run(path: Path) -> bool:
    """Whether the directory holds any file of a run, be it damaged; another one is somebody's own."""
    run = RunDir(path)
    return path.is_dir() and (is_run(path) or run.manifest.exists() or run.script.exists())


def bad_ledgers(paths: Sequence[Path]) -> list[tuple[Path, str]]:
    """Ledgers of the campaigns in `paths` that do not say which runs were planned, with the reason."""
    found: dict[Path, tuple[Path, str]] = {}
    for path in paths:
        below = [path, *sorted(path.iterdir())] if path.is_dir() and not is_run(path) else []
        for campaign in below:
            ledger = CampaignDir(campaign).ledger
            if ledger.exists() and (reason := _bad_ledger(ledger)):
                found.setdefault(ledger.resolve(), (ledger, reason))
    return list(found.values())


def _bad_ledger(ledger: Path) -> str | None:
    try:
        runs = msgspec.json.decode(read_bytes(ledger))["runs"]
    except OSError as error:
        return f"the ledger cannot be read ({error.strerror})"
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return f"the ledger is not JSON ({error})"
    except (KeyError, TypeError, IndexError):
        return "the ledger lists no runs: which were planned is not known"
    if not isinstance(runs, list) or not all(map(_run_id, runs)):
        return "the ledger's runs have no identity: which were planned is not known"
    return None


def _run_id(item: Any) -> str | None:
    """A run's identity from its entry in a ledger; None where the entry has none."""
    found = item.get("run_id") if isinstance(item, dict) else item
    return found if isinstance(found, str) and found else None


def impossible(paths: Sequence[Path]) -> list[dict[str, str]]:
    """Combinations that the campaigns of these paths name but cannot run, with the reason."""
    campaigns: dict[Path, None] = {}
    for path in map(Path.absolute, paths):
        below = [child for child in path.iterdir() if _is_campaign(child)] if path.is_dir() else []
        campaigns.update(dict.fromkeys([path.parent, path, *below]))
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for campaign in campaigns:
        for entry in _listed(campaign, "skipped"):
            if not isinstance(entry, dict):
                continue
            row = {key: str(entry.get(key, "")) for key in ("framework", "strategy", "format", "reason")}
            found[tuple(row.values())] = {"campaign": campaign.name, **row}
    return list(found.values())


def _ledger(campaign: Path) -> list[str]:
    """Run identities that the campaign planned; none where its ledger cannot be read."""
    return [run_id for item in _listed(campaign, "runs") if (run_id := _run_id(item))]


def _listed(campaign: Path, key: str) -> list[Any]:
    """One list of the campaign's ledger; empty where there is none that can be read."""
    try:
        found = msgspec.json.decode(read_bytes(CampaignDir(campaign).ledger))[key]
        return found if isinstance(found, list) else []
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError):
        return []
