"""An experiment (axes and settings) and the runs it stands for. No I/O, no framework.

An axis is a list; one value of each axis and one repeat make a run. The identity of a run is a
hash of everything that its numbers depend on; what merely carries it (partition, account, paths)
is left out, so that the same measurement keeps its name.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import inspect

from hpcckpt.errors import SpecError, nearest
from hpcckpt.records import CONTROL, SCHEMA_VERSION, STALL_PHASES, TRAIN, WAIT_AFTER

T = TypeVar("T")

NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What names directories, jobs and locks: no separator, no leading dot or dash, no blank."""
MOST_RANKS = 1_000_000
"""Of nodes, and of ranks per node: more is a slip of the keyboard."""

# Where a fault can be planted.
AFTER_SAVE = "after_save"
CONTROL_POINTS = ("before_save", "step")
FAULT_POINTS = (*CONTROL_POINTS, AFTER_SAVE, *(phase for phase in STALL_PHASES if phase != WAIT_AFTER))

Kind = Literal["parameter", "optimizer", "buffer", "rng", "data_position", "other"]
"""The kinds of state that can be left out of a checkpoint: `records.KINDS` without containers."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A planted fault, to prove that the suite sees it. Runs with faults are never pooled with others."""

    rank: int
    at: str
    """`before_save`, `step`, the name of a phase that the rank enters, or `after_save` (for `corrupt` only)."""
    action: Literal["sleep", "kill", "raise", "hang", "corrupt"]
    seconds: float = 0.0
    generation: int | None = None
    """Which generation (or step, where `at = "step"`); every one when left out."""
    leg: str = TRAIN


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


AXES = ("framework", "model", "strategy", "format", "nodes", "ranks_per_node", "interval_steps", "durable")


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


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One value of every axis."""

    framework: str
    model: str
    strategy: str
    format: str
    nodes: int
    ranks_per_node: int
    interval_steps: int
    durable: bool


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the axes, one repeat: the fresh job that statistics count."""

    run_id: str
    experiment: str
    point: Point
    repeat: int
    """1-based."""
    legs: list[str]
    """In the order in which they are run: odd repeats start with the control."""
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


def to_struct(plain: dict[str, Any], kind: type[T], where: str = "") -> T:
    """The struct of plain data; the SpecError of a wrong value has its dotted key, below `where`, in front."""
    values = list(_walk(plain, inspect.type_info(kind), where))
    for key, value, info in values:
        known = _choices(value, _alternatives(info)) if isinstance(value, str) else None
        if known is not None:
            raise SpecError(f"{key}: unknown value {value!r}; {known}")
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as failure:
        raise SpecError(_explain(failure, where, [(key, value) for key, value, _ in values])) from failure


def _explain(failure: msgspec.ValidationError, where: str, values: list[tuple[str, Any]]) -> str:
    """The decoder's complaint with the key in front: `axes.nodes[1]: expected int, got str`."""
    text, _, path = str(failure).replace("`", "").partition(" - at ")
    path = _dotted(where, re.sub(r"^\$\.?", "", path).replace("[...]", ".*"))
    missing = re.fullmatch("Object missing required field (.*)", text)
    if "*" in path:  # the decoder hides a table's own keys; what it got there, or missed, tells which one it is
        pattern, got = re.escape(path).replace(r"\*", r"[^.\[]+"), text.rpartition("got ")[2]
        for key, value in values:
            if not re.fullmatch(pattern, key):
                continue
            if missing[1] not in value if missing else _TOML_TYPES.get(type(value)) == got:
                path = key
                break
    if missing:
        return f"missing required key {_dotted(path, missing[1])!r}; add it"
    text = f"{text[0].lower()}{text[1:]}"
    return f"{path}: {text}" if path else text


_TOML_TYPES = {dict: "object", list: "array", str: "str", int: "int", float: "float", bool: "bool"}


def _walk(value: Any, info: inspect.Type, where: str) -> Iterator[tuple[str, Any, inspect.Type]]:
    """Each value with its dotted key and the type that belongs there, outermost first."""
    yield where, value, info
    for key, item, below in _children(value, info, where):
        yield from _walk(item, below, key)


def _children(value: Any, info: inspect.Type, where: str) -> Iterator[tuple[str, Any, inspect.Type]]:
    if isinstance(info, inspect.StructType) and isinstance(value, dict):
        fields = ((field.encode_name, field.type) for field in info.fields)
        yield from ((_dotted(where, key), value[key], kind) for key, kind in fields if key in value)
    elif isinstance(info, inspect.DictType) and isinstance(value, dict):
        yield from ((_dotted(where, key), item, info.value_type) for key, item in value.items())
    elif isinstance(value, list):
        lists = (part for part in _alternatives(info) if isinstance(part, inspect.ListType))
        yield from ((f"{where}[{i}]", item, part.item_type) for part in lists for i, item in enumerate(value))


def _choices(word: str, alternatives: tuple[inspect.Type, ...]) -> str | None:
    """What could be meant by a word that is none of the literals; None where it may stand."""
    literals = [name for part in alternatives if isinstance(part, inspect.LiteralType) for name in part.values]
    if not literals or word in literals:
        return None
    hint = nearest(word, map(str, literals))
    others = {inspect.IntType: "a whole number", inspect.ListType: "a list"}
    also = [others[type(part)] for part in alternatives if type(part) in others]
    return hint if hint.endswith("?") else " or ".join([hint, *also])


def _alternatives(info: inspect.Type) -> tuple[inspect.Type, ...]:
    return info.types if isinstance(info, inspect.UnionType) else (info,)


def _dotted(where: str, key: str) -> str:
    return f"{where}.{key}" if where and key else where or key


def check(experiment: Experiment) -> None:
    """Raises SpecError for what the types allow and no run can mean.

    Looks at the experiment as it would run: of one size, with a command line's changes or without.
    """
    check_name("name", experiment.name)
    _at_least("repeats", experiment.repeats, 1)
    _check_settings(experiment.settings)
    _check_counts(experiment.axes, experiment.settings.steps)
    if experiment.faults:
        found = points(experiment)
        for index, fault in enumerate(experiment.faults):
            _check_fault_words(f"faults[{index}]", fault, experiment.settings)
            _check_fault_numbers(f"faults[{index}]", fault, experiment.settings.steps, found)


def check_name(key: str, name: str) -> None:
    """Raises SpecError for a name that could not be a directory's or a job's."""
    if not NAME.fullmatch(name):
        raise SpecError(
            f"{key}: {name!r} must be 1 to 64 letters, digits, dots, underscores or dashes, "
            "the first a letter or a digit"
        )


def _at_least(key: str, value: float, least: float) -> None:
    if not value >= least:  # so that nan fails too
        raise SpecError(f"{key}: {value} must be at least {least}")


def _positive(key: str, seconds: float) -> None:
    if not (math.isfinite(seconds) and seconds > 0):
        raise SpecError(f"{key}: {seconds} must be finite and more than 0")


def _not_negative(key: str, seconds: float) -> None:
    if not (math.isfinite(seconds) and seconds >= 0):
        raise SpecError(f"{key}: {seconds} must be finite and at least 0")


def _check_settings(settings: Settings) -> None:
    _at_least("settings.steps", settings.steps, 2)
    _at_least("settings.batch_per_rank", settings.batch_per_rank, 1)
    _at_least("settings.seed", settings.seed, 0)
    if settings.keep != "all":
        _at_least("settings.keep", settings.keep, 1)
    _positive("settings.leg_limit_s", settings.leg_limit_s)
    _not_negative("settings.drain_limit_s", settings.drain_limit_s)
    if settings.include == []:
        raise SpecError("settings.include: [] must name at least one kind of state; left out, it means all")


def _check_counts(axes: Axes, steps: int) -> None:
    for axis in ("nodes", "ranks_per_node", "interval_steps"):
        for count in getattr(axes, axis):
            _at_least(f"axes.{axis}", count, 1)
            if axis != "interval_steps" and count > MOST_RANKS:
                raise SpecError(f"axes.{axis}: {count} must be at most {MOST_RANKS}")
            if axis == "interval_steps" and count >= steps:
                raise SpecError(
                    f"axes.interval_steps: {count} must be less than settings.steps ({steps}): "
                    "no checkpoint would be written"
                )


def _check_fault_words(where: str, fault: Fault, settings: Settings) -> None:
    """A fault that is planted where nothing ever happens would prove nothing."""
    for key, word, known in (("leg", fault.leg, (TRAIN, CONTROL)), ("at", fault.at, FAULT_POINTS)):
        if word not in known:
            raise SpecError(f"{where}.{key}: unknown value {word!r}; {nearest(word, known)}")
    if (fault.action == "corrupt") != (fault.at == AFTER_SAVE):
        raise SpecError(
            f"{where}.at: {fault.at!r} with action {fault.action!r} can never happen: "
            f"'corrupt' needs at = {AFTER_SAVE!r}, and nothing else can be planted there"
        )
    if fault.leg == CONTROL and fault.at not in CONTROL_POINTS:
        raise SpecError(
            f"{where}.at: {fault.at!r} can never happen in the control, which saves nothing; "
            f"known there: {', '.join(CONTROL_POINTS)}"
        )
    if fault.at == AFTER_SAVE and settings.barrier == "none":
        raise SpecError(
            f"{where}.at: {fault.at!r} can never happen with settings.barrier = 'none', "
            "which leaves no pause behind a save"
        )


def _check_fault_numbers(where: str, fault: Fault, steps: int, found: list[Point]) -> None:
    ranks = (point.nodes * point.ranks_per_node for point in found)
    _below(f"{where}.rank", fault.rank, ranks, "number of ranks")
    if fault.at == "step":
        _below(f"{where}.generation", fault.generation or 0, [steps], "number of steps")
    else:
        saves = ((steps - 1) // point.interval_steps for point in found)
        _below(f"{where}.generation", fault.generation or 0, saves, "number of generations")
    _not_negative(f"{where}.seconds", fault.seconds)
    if fault.action == "sleep":
        _positive(f"{where}.seconds", fault.seconds)


def _below(key: str, value: int, counts: Iterable[int], what: str) -> None:
    """The largest count decides: beyond it, the fault would happen in no run at all."""
    most = max(counts, default=None)
    if value < 0 or (most is not None and value >= most):
        bound = "" if most is None else f" and less than {most}, the largest {what} of any run"
        raise SpecError(f"{key}: {value} must be at least 0{bound}")


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
    for axis in AXES:
        if not getattr(axes, axis):
            raise SpecError(f"{experiment.name}: axes.{axis}: an axis needs at least one value")
    rules = [("only.when", rule.when) for rule in experiment.only]
    for where, rule in [*rules, *(("exclude", entry) for entry in experiment.exclude)]:
        for key in rule:
            if key not in AXES:
                raise SpecError(f"{experiment.name}: {where}: unknown axis {key!r}; {nearest(key, AXES)}")
    values = itertools.product(*(dict.fromkeys(getattr(axes, axis)) for axis in AXES))
    combinations = (Point(**dict(zip(AXES, value, strict=True))) for value in values)
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
    legs = [CONTROL, TRAIN] if repeat % 2 else [TRAIN, CONTROL]
    digest = fingerprint([point, repeat, experiment.settings, experiment.faults, identity, SCHEMA_VERSION])
    durable = "durable" if point.durable else "buffered"
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
