"""A run that tests restart to its rows: one per leg that was compared with the reference, and what was carried.

What differs and why was found by the run's driver, while all states were there; here it is only read,
and laid beside the run's facts. Such runs have no rows in the tables of saves: they measure none.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import msgspec
import polars as pl

from analysis import laws
from analysis.opened import LAW_BROKEN, UNREADABLE, LeftOut, Opened, Row, read_json
from analysis.readers.ranks import RankFile
from analysis.restart_tables import RESTARTS
from analysis.run_rows import commit_of, fault_words
from analysis.tables import frame
from hpcckpt.experiment import fingerprint
from hpcckpt.records import (
    RESTART_PARTS,
    STATE_KINDS,
    TRAIN,
    Comparison,
    Digests,
    Replica,
    RestartReport,
    Save,
    Step,
    Verified,
    about_of,
)

PLACE = ("step", "when", "rank", "kind", "tensor", "elements", "of_elements", "ulp", "largest", "tensors", "reason")
"""What the tables say of a first difference."""
LOST = ("missing", "altered", "partly")
"""Verdicts of what was not carried, or not all of it."""
VERDICTS = (*LOST, "saved", "unchanged", "not_applicable", "not_measured")


def restart_frames(run: Opened, name: str) -> dict[str, pl.DataFrame]:
    """A run's part of the tables. Raises LeftOut where its driver left no report, or one that is not this run's."""
    report: RestartReport = read_json(run.directory.restart, RestartReport)
    if wrong := _mistaken(run, report):
        raise LeftOut(UNREADABLE, run.directory.restart, wrong)
    found = _laws(name, run)
    shared = _shared(name, run, report)
    rows = [shared | _of_leg(comparison) for comparison in report.comparisons]
    carried = [{"run": name, **msgspec.to_builtins(row)} for row in report.carried]
    # What a planted fault breaks is the truth that was planted: the run is told apart by its faults, and stays.
    broken = [law for law in found if law["verdict"] == laws.BROKEN and not run.job.run.faults]
    left = [LeftOut(LAW_BROKEN, run.directory.path, f"{law['law']}: {law['detail']}").row(name) for law in broken]
    parts = {"restarts": rows, "carried": carried, "laws": found, "left_out": left}
    return {table: frame(table, part) for table, part in parts.items()}


def _mistaken(run: Opened, report: RestartReport) -> str | None:
    """Why the report cannot be believed; None where it can."""
    job, restart = run.job.run, run.job.run.settings.restart
    assert restart is not None
    if (report.run_id, report.stop, report.steps) != (job.run_id, restart.stop, job.settings.steps):
        return f"is of run {report.run_id}, stopped behind step {report.stop} of {report.steps}"
    legs = [found.leg for found in report.comparisons]
    if twice := next((leg for leg in legs if legs.count(leg) > 1), None):
        return f"leg {twice} stands there twice"
    if absent := [leg for leg in job.legs[1:] if leg not in legs]:  # the first is the reference
        return f"leg {absent[0]} was not compared"
    if report.carried and [row.kind for row in report.carried] != list(STATE_KINDS):
        told = ", ".join(row.kind for row in report.carried)
        return f"what was carried is told of {told}, not of {', '.join(STATE_KINDS)}"
    if odd := next((row.verdict for row in report.carried if row.verdict not in VERDICTS), None):
        return f"{odd!r} is no verdict on what was carried"
    tried = any(each.about == "transplant" for each in report.comparisons)
    if report.cure and not (tried and set(report.cure) <= set(STATE_KINDS)):
        return f"{' + '.join(report.cure)} is said to help, and no transplant showed it"
    return next((wrong for found in report.comparisons if (wrong := _odd_leg(run, found))), None)


def _odd_leg(run: Opened, found: Comparison) -> str | None:
    """What is wrong with one comparison."""
    about, number = about_of(found.leg), found.leg.rpartition("-")[2]
    ranks = int(number) if about == "elsewhere" and number.isdigit() else run.job.run.ranks
    if (found.about, found.ranks) != (about, ranks):
        return f"leg {found.leg} of {found.ranks} ranks is called {found.about}"
    if found.exact is None:
        return None
    files = (run.directory.leg(found.leg).rank_file(rank) for rank in range(found.ranks))
    lost = next((path for path in files if not path.is_file()), None)
    return f"leg {found.leg} was compared, and {lost.name} of it is gone" if lost else None


def _laws(name: str, run: Opened) -> list[Row]:
    """Laws 3 and 4; a planted fault of one rank breaks the third, as it should."""
    digests = {leg: {file.start.rank: file.all(Replica) for file in files} for leg, files in run.legs.items()}
    saving = run.legs.get(TRAIN, [])
    read_back = [item for file in saving for item in file.all(Verified)]
    saved = [save.generation for file in saving[:1] for save in file.all(Save)]
    if saving:
        return [laws.replicas(name, digests), laws.readback(name, saved, read_back)]
    killed = "the leg that saves was killed: it was restored, and not read back"
    return [laws.replicas(name, digests), laws.law(name, laws.READBACK, laws.NOT_MEASURED, killed)]


def _shared(name: str, opened: Opened, report: RestartReport) -> Row:
    """What is the same in all rows of a run."""
    job, run, point = opened.job, opened.job.run, opened.job.run.point
    restart = run.settings.restart
    assert restart is not None
    reference = opened.legs[run.legs[0]]
    return {
        **dict.fromkeys(RESTARTS),
        "run": name,
        "path": str(opened.directory.path),
        "experiment": run.experiment,
        "site": run.identity.get("site") or job.site.get("name"),
        **{axis: getattr(point, axis) for axis in ("framework", "model", "strategy", "format", "determinism")},
        **{axis: getattr(point, axis) for axis in ("nodes", "interval_steps", "durable")},
        "optimizer": run.settings.optimizer,
        "ranks": run.ranks,
        "repeat": run.repeat,
        "faults": "; ".join(map(fault_words, run.faults)),
        "commit": commit_of(opened.directory),
        "conditions": fingerprint([run.settings, run.identity, job.virtual_nodes])[:8],
        "virtual_nodes": job.virtual_nodes,
        "device": reference[0].start.versions.get("device", "cpu"),
        "stop": report.stop,
        "steps": report.steps,
        "killed": restart.kill,
        "cure": report.cure,
        "cured": report.cured,
        "notes": report.notes,
        **_costs(reference),
        **_split(report),
    }


def _costs(reference: list[RankFile]) -> Row:
    """What the digests of a step cost, beside the step itself; the first of each is left out as warm-up."""
    digests = [[d for d in file.all(Digests) if d.when == "step"][1:] for file in reference]
    steps = [file.all(Step)[1:] for file in reference]
    costs = [max(d.cost_ns for d in at) / 1e9 for at in zip(*digests, strict=False)]
    lengths = [max(s.end_ns - s.begin_ns for s in at) / 1e9 for at in zip(*steps, strict=False)]
    return {
        "digest_s": median(costs) if costs else None,
        "digest_bytes": max((d.bytes for own in digests for d in own), default=None),
        "step_s": median(lengths) if lengths else None,
    }


def _split(report: RestartReport) -> Row:
    if report.split is None:
        return {"split_reason": "nothing was restored"}
    split = report.split
    reasons = [f"{part}: {reason}" for part, reason in split.reasons.items()]
    parts = {f"{part}_s": split.parts_s.get(part) for part in RESTART_PARTS}
    return parts | {"split_reason": "; ".join(reasons) or None, "cached": split.cached}


def _of_leg(found: Any) -> Row:
    row: Row = {
        "leg": found.leg,
        "about": found.about,
        "leg_ranks": found.ranks,
        "points": found.points,
        "exact": found.exact,
        "trains_exactly": found.trains_exactly,
        "reason": found.reason,
        "cause": found.cause,
        "kinds": found.kinds,
    }
    for which, place in (("first", found.first), ("training", found.training)):
        if place is not None:
            plain = msgspec.to_builtins(place)
            row |= {f"{which}_{key}": value for key, value in plain.items() if f"{which}_{key}" in RESTARTS}
    return row
