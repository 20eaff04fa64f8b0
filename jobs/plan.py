"""An experiment, a site and a command line become a plan: the runs of a campaign before it is on disk.

Decides nothing about directories and writes nothing; `campaign` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hpcckpt import registry
from hpcckpt.errors import SpecError
from hpcckpt.experiment import (
    Experiment,
    Point,
    Run,
    check,
    fingerprint,
    for_size,
    points,
    runs,
    with_nodes,
)
from hpcckpt.strategies.base import supports
from jobs import identity
from jobs.site import Site


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A combination of the axes that is no run, and why."""

    framework: str
    strategy: str
    format: str
    reason: str


Combination = tuple[str, str, str, str]
"""Framework, strategy, format, model."""


@dataclass(frozen=True)
class Request:
    """What a command line changes of an experiment; None changes nothing."""

    nodes: int | None = None
    ranks_per_node: int | None = None
    repeats: int | None = None
    axes: dict[str, list[Any]] | None = None
    data: str | None = None


@dataclass(frozen=True)
class Plan:
    """A campaign before it has a directory."""

    experiment: Experiment
    experiment_file: Path
    site: Site
    scratch: Path
    tracer: str
    runs: list[Run]
    skipped: list[Skipped]

    @property
    def name(self) -> str:
        digest = fingerprint([self.experiment, self.experiment.axes.nodes])
        return f"{self.experiment.name}-{self.site.name}-{digest[:8]}"


def resolve(experiment: Experiment, site: Site, request: Request) -> Experiment:
    """The experiment as this site runs it, with the command line's changes."""
    sized = for_size(experiment, site.size)
    changes: dict[str, Any] = {"sizes": {}}  # the sizes that were not chosen are no part of the campaign
    if request.axes:
        changes["axes"] = msgspec.structs.replace(sized.axes, **request.axes)
    if request.repeats is not None:
        if request.repeats < 1:
            raise SpecError(f"--repeats {request.repeats}: must be at least 1")
        changes["repeats"] = request.repeats
    if request.data is not None:
        _check_data("--data", request.data)
        changes["settings"] = msgspec.structs.replace(sized.settings, data=str(Path(request.data).absolute()))
    result = with_nodes(msgspec.structs.replace(sized, **changes), request.nodes, request.ranks_per_node)
    largest = max(result.axes.nodes, default=0)
    if site.max_nodes is not None and largest > site.max_nodes:
        raise SpecError(f"{largest} nodes: site {site.name} has at most {site.max_nodes}")
    data = result.settings.data
    # A relative path is the job's to find: only here is it known to be this machine's.
    if data is not None and (site.executor == "local" or Path(data).is_absolute()):
        _check_data(f"{experiment.name}: settings.data", data)
    try:
        check(result)
    except SpecError as error:  # the file by itself was sound in every size
        raise SpecError(f"command line: {error}") from error
    return result


def _check_data(key: str, directory: str) -> None:
    """Every rank would fail at its start, after a wait in the queue."""
    if not directory or not Path(directory).is_dir():
        raise SpecError(f"{key}: {directory!r} is no directory; give the folder of CIFAR-10's own files")


def make(experiment: Experiment, file: Path, site: Site, scratch: Path, tracer: str) -> Plan:
    """All runs of a resolved experiment, each with the identity of its own framework and format."""
    kept, skipped = _supported(experiment)
    if not kept:
        why = f"no combination is possible: {skipped[0].reason}" if skipped else "its rules leave no run"
        raise SpecError(f"{file}: {why}")
    expanded = _expand(experiment, site, identity.of_site(site, scratch, tracer), kept)
    return Plan(experiment, file, site, scratch, tracer, expanded, skipped)


def _supported(experiment: Experiment) -> tuple[set[Combination], list[Skipped]]:
    """What can run, and what cannot with its reason: a reason that holds for all models is listed once."""
    kept: set[Combination] = set()
    skipped: dict[tuple[str, ...], Skipped] = {}
    for key in dict.fromkeys(map(_combination, points(experiment))):
        framework, strategy, format_, model = key
        reason = supports(framework, strategy, format_) or _refuses(framework, model)
        if reason is None:
            kept.add(key)
        else:
            entry = Skipped(framework=framework, strategy=strategy, format=format_, reason=reason)
            skipped[framework, strategy, format_, reason] = entry
    return kept, list(skipped.values())


def _refuses(framework: str, model: str) -> str | None:
    refused: str | None = registry.load("hpcckpt.frameworks", framework).refuses(
        registry.load("hpcckpt.models", model)
    )
    return refused


def _expand(experiment: Experiment, site: Site, shared: dict[str, str], kept: set[Combination]) -> list[Run]:
    """The runs in the experiment's shuffled order; each one's identity holds its own libraries only."""
    known: dict[tuple[str, int], Run] = {}
    for framework, format_ in dict.fromkeys((k[0], k[2]) for k in sorted(kept)):
        axes = msgspec.structs.replace(experiment.axes, framework=[framework], format=[format_])
        part = msgspec.structs.replace(experiment, axes=axes)
        own = shared | identity.of_parts(framework, format_, site.python_of(framework))
        known |= {_key(run.point, run.repeat): run for run in runs(part, own)}
    order = [run for run in runs(experiment, shared) if _combination(run.point) in kept]
    return [known[_key(run.point, run.repeat)] for run in order]


def _key(point: Point, repeat: int) -> tuple[str, int]:
    return fingerprint(point), repeat


def _combination(point: Point) -> Combination:
    return point.framework, point.strategy, point.format, point.model
