"""Where the runs are: what RUNS on a command line means, and which campaign is the newest.

Looks at names and ledgers only; whether a run can be counted is decided by `analysis.collect`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcckpt.errors import RunError, SpecError
from hpcckpt.rundir import CampaignDir, RunDir


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

    A path that is nothing of the kind is returned as it is, so that it gets listed as left out;
    one that does not exist is a mistake on the command line: SpecError.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise SpecError(f"{path}: no such directory; give runs, campaigns or a root of campaigns")
        found.update(dict.fromkeys(_runs_below(path)))
    return list(found)


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
        children = [child for child in path.iterdir() if child.is_dir() and not child.name.startswith(".")]
        return sorted({*children, *(path / run_id for run_id in _ledger(path))})
    return [run for child in sorted(path.iterdir()) if _is_campaign(child) for run in _runs_below(child)] or [
        path
    ]


def impossible(paths: Sequence[Path]) -> list[dict[str, str]]:
    """Combinations that the campaigns of these paths name but cannot run, with the reason."""
    campaigns: dict[Path, None] = {}
    for path in map(Path.absolute, paths):
        below = [child for child in path.iterdir() if _is_campaign(child)] if path.is_dir() else []
        campaigns.update(dict.fromkeys([path.parent, path, *below]))
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for campaign in campaigns:
        for entry in _listed(campaign, "skipped"):
            row = {key: str(entry[key]) for key in ("framework", "strategy", "format", "reason")}
            found[tuple(row.values())] = {"campaign": campaign.name, **row}
    return list(found.values())


def _ledger(campaign: Path) -> list[str]:
    """Run identities that the campaign planned; none where its ledger cannot be read."""
    return [str(item["run_id"] if isinstance(item, dict) else item) for item in _listed(campaign, "runs")]


def _listed(campaign: Path, key: str) -> list[Any]:
    """One list of the campaign's ledger; empty where there is none that can be read."""
    try:
        found = msgspec.json.decode(CampaignDir(campaign).ledger.read_bytes())[key]
        return found if isinstance(found, list) else []
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError):
        return []
