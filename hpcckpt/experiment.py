"""An experiment (axes and settings) and the runs it stands for. No I/O, no framework.

An axis is a list; one value of each axis and one repeat make a run. The identity of a run is a
hash of everything that its numbers depend on; what merely carries it (partition, account, paths)
is left out, so that the same measurement keeps its name.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from typing import Any, Literal

import msgspec

from hpcckpt import planting
from hpcckpt.errors import SpecError, nearest
from hpcckpt.numbers import MOST_RANKS, at_least, at_most, not_negative, positive
from hpcckpt.planting import FAULT_POINTS, Fault
from hpcckpt.records import CONTROL, SCHEMA_VERSION, TRAIN
from hpcckpt.restart import spec as restart_spec
from hpcckpt.restart.spec import Restart
from hpcckpt.structs import to_struct

__all__ = ["Axes", "Experiment", "Fault", "FAULT_POINTS", "Job", "Point", "Restart", "Run", "Settings", "to_struct"]

NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What names directories, jobs and locks: no separator, no leading dot or dash, no blank."""

Kind = Literal["parameter", "optimizer", "buffer", "rng", "data_position", "other"]
"""The kinds of state that can be left out of a checkpoint: `records.KINDS` without containers."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is the same in every run of a campaign."""

    steps: int = 7
    """Traced steps of a leg; the first is warm-up and lies before the window."""
    batch_per_rank: int = 8
    optimizer: Literal["sgd", "momentum", "adam"] = "momentum"
    scaling: Literal["weak", "strong"] = "weak"
    """weak: the batch per rank is fixed. strong: the whole job's batch is (rank 1's batch, divided)."""
    data: str | None = None
    """Directory of CIFAR-10's binary or python files; None looks for none."""
    barrier: Literal["poll", "spin", "none"] = "poll"
    keep: int | Literal["all"] = "all"
    """Generations kept on disk while a leg runs."""
    keep_files: bool = False
    """Leave the checkpoint files in scratch after the inventory is written."""
    verify: Literal["ends", "all", "none"] = "ends"
    """Which generations are read back: first and last, all, or none."""
    digest_every_step: bool = False
    include: list[Kind] | None = None
    """Kinds of state that a checkpoint holds; None: all. A restore leaves the others as they are."""
    exclude: list[str] = []
    """Patterns (`model.0.*`) of entry names that a checkpoint leaves out, whatever their kind."""
    frozen: list[str] = []
    """Patterns of parameter names (without `model.`) that are not trained."""
    leg_limit_s: float = 600.0
    """A leg that runs longer is stopped and counted as hung."""
    drain_limit_s: float = 20.0
    seed: int = 1
    restart: Restart | None = None
    """Test determinism and restart instead of measuring saves: other legs, and every state compared."""


Determinism = Literal["default", "off", "on"]
"""Of a framework's switches: as its adapter has them, as the libraries come, or all set. Each adapter lists its own."""
AXES = ("framework", "model", "strategy", "format", "nodes", "ranks_per_node", "interval_steps", "durable")
RESTART_AXES = ("determinism",)
"""Axes that only runs that test restart have."""


class Axes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Values of each axis; every combination that is possible is a run."""

    framework: list[str]
    model: list[str] = msgspec.field(default_factory=lambda: ["small"])
    strategy: list[str]
    format: list[str]
    nodes: list[int] = msgspec.field(default_factory=lambda: [1, 2, 4, 8])
    ranks_per_node: list[int] = msgspec.field(default_factory=lambda: [1])
    interval_steps: list[int] = msgspec.field(default_factory=lambda: [2])
    durable: list[bool] = msgspec.field(default_factory=lambda: [False])
    determinism: list[Determinism] = msgspec.field(default_factory=lambda: ["default"])


class Only(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where every key of `when` (axis to value, or to a list of values) holds, only these node counts are kept.

    "ends" = the smallest and largest.
    """

    when: dict[str, Any]
    nodes: list[int] | Literal["ends"]


class Size(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a site of this size changes: axes and settings, by name."""

    axes: dict[str, list[Any]] = {}
    settings: dict[str, Any] = {}
    only: list[Only] = []


class Experiment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One experiment file."""

    name: str
    question: str
    axes: Axes
    repeats: int = 5
    settings: Settings = Settings()
    sizes: dict[str, Size] = {}
    """`small` for a workstation, `full` for a cluster: the site says which it is."""
    only: list[Only] = []
    exclude: list[dict[str, Any]] = []
    """Combinations to leave out: axis to value, or to a list of values; all of an entry's keys must match."""
    faults: list[Fault] = []


class Point(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One value of every axis."""

    framework: str
    model: str
    strategy: str
    format: str
    nodes: int
    ranks_per_node: int
    interval_steps: int
    durable: bool
    determinism: Determinism = "default"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the axes, one repeat: the fresh job that statistics count."""

    run_id: str
    experiment: str
    point: Point
    repeat: int
    """1-based."""
    legs: list[str]
    """In the order in which they are run: odd repeats start with the control. Of a restart test, those of its spec."""
    settings: Settings
    faults: list[Fault]
    identity: dict[str, str]
    """What else the identity rests on: site, scratch's file system, tracer, versions."""

    @property
    def ranks(self) -> int:
        return self.point.nodes * self.point.ranks_per_node


def for_size(experiment: Experiment, size: str) -> Experiment:
    """The experiment as a site of `size` runs it. A size that the file does not name changes nothing."""
    chosen = experiment.sizes.get(size)
    if chosen is None:
        return experiment
    axes = _replace(experiment.axes, chosen.axes, f"sizes.{size}.axes")
    settings = _replace(experiment.settings, chosen.settings, f"sizes.{size}.settings")
    return msgspec.structs.replace(
        experiment, axes=axes, settings=settings, only=experiment.only + chosen.only
    )


def with_nodes(experiment: Experiment, largest: int | None, ranks_per_node: int | None) -> Experiment:
    """The same experiment on at most `largest` nodes: the listed counts up to it, and itself."""
    changes: dict[str, list[Any]] = {}
    if largest is not None:
        if largest < 1:
            raise SpecError(f"--nodes {largest}: must be at least 1")
        changes["nodes"] = sorted({n for n in experiment.axes.nodes if n <= largest} | {largest})
    if ranks_per_node is not None:
        if ranks_per_node < 1:
            raise SpecError(f"--ranks-per-node {ranks_per_node}: must be at least 1")
        changes["ranks_per_node"] = [ranks_per_node]
    return msgspec.structs.replace(experiment, axes=_replace(experiment.axes, changes, "axes"))


def _replace(struct: Any, changes: dict[str, Any], where: str) -> Any:
    known = struct.__struct_fields__
    for key in changes:
        if key not in known:
            raise SpecError(f"{where}: unknown key {key!r}; {nearest(key, known)}")
    return to_struct({**msgspec.to_builtins(struct), **changes}, type(struct), where)


def check(experiment: Experiment) -> None:
    """Raises SpecError for what the types allow and no run can mean.

    Looks at the experiment as it would run: of one size, with a command line's changes or without.
    """
    check_name("name", experiment.name)
    at_least("repeats", experiment.repeats, 1)
    _check_settings(experiment.settings)
    _check_counts(experiment.axes, experiment.settings.steps)
    restart = experiment.settings.restart
    if restart is None and experiment.axes.determinism != ["default"]:
        raise SpecError("axes.determinism: only runs that test restart have this axis; add settings.restart")
    if experiment.faults or restart:
        _check_points(experiment, restart)


def _check_points(experiment: Experiment, restart: Restart | None) -> None:
    """What needs the points of the axes: faults, and tests of restart."""
    settings, found = experiment.settings, points(experiment)
    ranks = [p.nodes * p.ranks_per_node for p in found]
    if restart:
        restart_spec.check(restart, settings, (p.interval_steps for p in found), ranks)
    legs = restart_spec.planned_legs(restart) if restart else []
    for index, fault in enumerate(experiment.faults):
        planting.check_words(f"faults[{index}]", fault, settings.barrier, legs)
        steps = restart_spec.steps_of(fault.leg, restart, settings.steps)
        saves = [restart_spec.saves_in(steps, p.interval_steps) for p in found]
        planting.check_numbers(f"faults[{index}]", fault, steps.stop, zip(ranks, saves, strict=True), steps.start)
    planting.check_twice(experiment.faults)


def check_name(key: str, name: str) -> None:
    """Raises SpecError for a name that could not be a directory's or a job's."""
    if not NAME.fullmatch(name):
        raise SpecError(
            f"{key}: {name!r} must be 1 to 64 letters, digits, dots, underscores or dashes, "
            "the first a letter or a digit"
        )


def _check_settings(settings: Settings) -> None:
    at_least("settings.steps", settings.steps, 2)
    at_least("settings.batch_per_rank", settings.batch_per_rank, 1)
    at_least("settings.seed", settings.seed, 0)
    if settings.keep != "all":
        at_least("settings.keep", settings.keep, 1)
    positive("settings.leg_limit_s", settings.leg_limit_s)
    not_negative("settings.drain_limit_s", settings.drain_limit_s)
    if settings.include == []:
        raise SpecError("settings.include: [] must name at least one kind of state; left out, it means all")


def _check_counts(axes: Axes, steps: int) -> None:
    for axis in ("nodes", "ranks_per_node", "interval_steps"):
        for count in getattr(axes, axis):
            at_least(f"axes.{axis}", count, 1)
            if axis != "interval_steps":
                at_most(f"axes.{axis}", count, MOST_RANKS)
            if axis == "interval_steps" and count >= steps:
                raise SpecError(
                    f"axes.interval_steps: {count} must be less than settings.steps ({steps}): "
                    "no checkpoint would be written"
                )


def check_rules(experiment: Experiment) -> None:
    """Raises SpecError for a value in a rule that its axis never has: such a rule would do nothing.

    Looks at a whole file, with all sizes: a size, or a command line, may use a part of an axis only.
    """
    rules = [(f"exclude[{i}]", entry) for i, entry in enumerate(experiment.exclude)]
    rules += [(f"only[{i}].when", rule.when) for i, rule in enumerate(experiment.only)]
    for name, size in experiment.sizes.items():
        rules += [(f"sizes.{name}.only[{i}].when", rule.when) for i, rule in enumerate(size.only)]
    for where, rule in rules:
        for axis, wanted in rule.items():
            known = [*getattr(experiment.axes, axis)]
            for size in experiment.sizes.values():
                known += size.axes.get(axis, [])
            for value in wanted if isinstance(wanted, list) else [wanted]:
                _check_rule_value(f"{where}.{axis}", value, known, axis)


def _check_rule_value(key: str, value: Any, known: list[Any], axis: str) -> None:
    # true == 1 in Python, but not in an experiment file
    if any(type(value) is type(other) and value == other for other in known):
        return
    names = [str(other).lower() if isinstance(other, bool) else str(other) for other in dict.fromkeys(known)]
    words = isinstance(value, str) and all(isinstance(other, str) for other in known)
    hint = nearest(value, names) if words else f"known: {', '.join(names)}"
    raise SpecError(f"{key}: {value!r} is no value of axes.{axis}; {hint}")


def points(experiment: Experiment) -> list[Point]:
    """Every combination of the axes that the `only` rules leave, in the order of the axes."""
    axes = experiment.axes
    known = (*AXES, *RESTART_AXES)
    for axis in known:
        if not getattr(axes, axis):
            raise SpecError(f"{experiment.name}: axes.{axis}: an axis needs at least one value")
    rules = [("only.when", rule.when) for rule in experiment.only]
    for where, rule in [*rules, *(("exclude", entry) for entry in experiment.exclude)]:
        for key in rule:
            if key not in known:
                raise SpecError(f"{experiment.name}: {where}: unknown axis {key!r}; {nearest(key, known)}")
    values = itertools.product(*(dict.fromkeys(getattr(axes, axis)) for axis in known))
    combinations = (Point(**dict(zip(known, value, strict=True))) for value in values)
    return [point for point in combinations if _kept(point, experiment)]


def _kept(point: Point, experiment: Experiment) -> bool:
    if any(
        all(_is(getattr(point, key), value) for key, value in entry.items()) for entry in experiment.exclude
    ):
        return False
    ends = {min(experiment.axes.nodes), max(experiment.axes.nodes)}
    for rule in experiment.only:
        applies = all(_is(getattr(point, key), value) for key, value in rule.when.items())
        if applies and point.nodes not in (ends if rule.nodes == "ends" else rule.nodes):
            return False
    return True


def _is(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, list) else bool(value == wanted)


def runs(experiment: Experiment, identity: dict[str, str]) -> list[Run]:
    """All runs of the experiment: repeat by repeat, each repeat's points shuffled by the recorded seed.

    Shuffling within a repeat keeps slow drifts of the machine from falling on one point, and an
    interrupted campaign still holds whole repeats.
    """
    order = random.Random(experiment.settings.seed)
    result = []
    for repeat in range(1, experiment.repeats + 1):
        batch = [_run(experiment, point, repeat, identity) for point in points(experiment)]
        order.shuffle(batch)
        result += batch
    return result


def _run(experiment: Experiment, point: Point, repeat: int, identity: dict[str, str]) -> Run:
    restart = experiment.settings.restart
    legs = [CONTROL, TRAIN] if repeat % 2 else [TRAIN, CONTROL]
    if restart:
        legs = restart_spec.planned_legs(restart)
    digest = fingerprint([point, repeat, experiment.settings, experiment.faults, identity, SCHEMA_VERSION])
    durable = "durable" if point.durable else "buffered"
    if point.determinism != "default":
        durable += f"-deterministic-{point.determinism}"
    name = (
        f"{point.framework}-{point.strategy}-{point.format}-{point.model}"
        f"-n{point.nodes:03d}x{point.ranks_per_node}-i{point.interval_steps}-{durable}-r{repeat:02d}-{digest[:8]}"
    )
    return Run(
        run_id=name,
        experiment=experiment.name,
        point=point,
        repeat=repeat,
        legs=legs,
        settings=experiment.settings,
        faults=experiment.faults,
        identity=identity,
    )


def fingerprint(value: Any) -> str:
    """Hex digest of any spec or record: equal content, equal digest, on every machine."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What `run.json` holds: a run, and the place where it runs."""

    run: Run
    campaign: str
    site: dict[str, Any]
    """The resolved site, as plain data."""
    scratch: str
    """Directory of this run's checkpoints; a leg writes below `scratch/LEG/`."""
    virtual_nodes: bool
    """One machine plays all nodes: rank // ranks_per_node is the node."""
    tracer: str
    """I/O tracer: a name of hpcckpt.tracing.io."""
