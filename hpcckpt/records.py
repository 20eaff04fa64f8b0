"""The words of a trace: record types, phase names, units and the schema version. Defined once, here.

A rank's file holds one JSON object a line, each with its `type`. Times are CLOCK_MONOTONIC
nanoseconds of the rank's own clock (fields end in `_ns`); sizes are bytes (`_bytes`).
The last line of a complete file is an `End`; a file without one belongs to a rank that died.
Nothing here writes a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from hpcckpt.errors import TraceError

SCHEMA_VERSION = 1

# Phases of a save on one rank: exclusive wall time on the training thread, in this order.
WAIT_BEFORE = "wait_before"  # until the slowest rank arrives; in no stall
GATHER = "gather"  # device to host, collectives to the writer
SERIALIZE = "serialize"  # objects to bytes
WRITE = "write"  # union of the write calls
SYNC = "sync"  # fsync
COMMIT = "commit"  # rename, marker, metadata
WAIT_INSIDE = "wait_inside"  # collectives inside the mechanism
WAIT_AFTER = "wait_after"  # at the barrier behind the save
BACKGROUND = "background"  # apart from the stall: asynchronous strategies

# What a rank cannot tell apart it records under a composite name; the analysis splits it with the I/O trace.
SERIALIZE_WRITE = "serialize+write"
WRITE_SYNC = "write+sync"

STALL_PHASES = (GATHER, SERIALIZE, SERIALIZE_WRITE, WRITE, WRITE_SYNC, SYNC, COMMIT, WAIT_INSIDE, WAIT_AFTER)
PHASES = (WAIT_BEFORE, *STALL_PHASES, BACKGROUND)
IDLE_PHASES = (WAIT_INSIDE, WAIT_AFTER)

# Kinds of state that a checkpoint can hold.
STATE_KINDS = ("parameter", "optimizer", "buffer", "rng", "data_position", "other")
KINDS = (*STATE_KINDS, "container")

# Legs of a run.
TRAIN = "train"
CONTROL = "control"


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=str.lower):
    """Base of every line."""


class Start(Record, frozen=True, kw_only=True):
    """First line: who this rank is, and what it found."""

    schema_version: int
    t_ns: int
    run_id: str
    leg: str
    rank: int
    size: int
    node: str
    """Node as the tables name it: a host name, or virtualNN on a machine that plays several nodes."""
    virtual_node: bool
    host: str
    pid: int
    boot_id: str
    cores: int
    """Cores that this process may use."""
    ranks_on_host: int
    threads: int
    thread_level: str
    """MPI's granted thread level."""
    versions: dict[str, str]
    """Of the libraries that train, and `device`: where the model lies (cpu, where nothing says otherwise)."""
    data: str
    """Which data set trains: CIFAR-10's files, scikit-learn's digits, or seeded synthetic images."""
    parameters: int
    """Number of parameters of the model."""
    barrier: str
    """How this rank waits: poll, spin or none."""


class Clock(Record, frozen=True, kw_only=True):
    """This rank's clock against rank 0's: rank 0's time = own time + offset, within +- error."""

    t_ns: int
    offset_ns: int
    error_ns: int
    method: str
    """same_boot or ping_pong."""


class Beacon(Record, frozen=True, kw_only=True):
    """A one-byte traced write between two clock reads: aligns an I/O log with this rank's clock."""

    path: str
    before_ns: int
    after_ns: int


class Probe(Record, frozen=True, kw_only=True):
    """Small durable writes in scratch, once per host: what is behind fsync here."""

    host: str
    path: str
    filesystem: str
    mount_options: str
    count: int
    median_s: float | None
    max_s: float | None
    reason: str | None
    """Why durable numbers are not measured here, None where they can be."""


class Drain(Record, frozen=True, kw_only=True):
    """Waiting, untimed, until the host's dirty and write-back pages are low, or after the last save."""

    when: str
    """before_leg or after_last_save."""
    seconds: float
    dirty_before_bytes: int
    dirty_after_bytes: int
    reached: bool


class Step(Record, frozen=True, kw_only=True):
    """One training step."""

    index: int
    begin_ns: int
    end_ns: int
    loss: float


class Span(Record, frozen=True, kw_only=True):
    """One phase of one save on this rank. A save may hold several spans of a phase."""

    generation: int
    phase: str
    begin_ns: int
    end_ns: int


class Save(Record, frozen=True, kw_only=True):
    """One checkpoint as this rank saw it."""

    generation: int
    step: int
    directory: str
    arrive_ns: int
    """When the rank came to the barrier before the save."""
    begin_ns: int
    """When it left that barrier: the stall begins."""
    done_ns: int
    """When its own part was over."""
    end_ns: int
    """When it went on behind the barrier after the save: the stall ends."""
    state_bytes: int
    """Bytes of the whole job's logical state, each replica counted once."""
    planned_bytes: int
    """Bytes that the strategy's plan gave to this rank."""
    rss_before_bytes: int | None
    rss_peak_bytes: int | None
    rss_reason: str | None
    write_chars_bytes: int | None
    """Growth of wchar in /proc/self/io over the save."""
    storage_bytes: int | None
    """Growth of write_bytes in /proc/self/io over the save."""
    io_reason: str | None
    pruned: bool = False
    cpu_ns: int | None = None
    """CPU time of the whole process between begin and end, all threads; None in traces from before it was kept."""


class Replica(Record, frozen=True, kw_only=True):
    """Digest of this rank's parameters at a step, and whether all ranks of the group held the same."""

    step: int
    where: str
    """after_first_step, save or end."""
    digest: str
    equal: bool | None
    """None: compared later, from all ranks' lines, unless `reason` says that nothing can be compared."""
    reason: str | None = None


class Window(Record, frozen=True, kw_only=True):
    """The window that overheads are taken over: barrier after warm-up to barrier after the last step."""

    begin_ns: int
    end_ns: int
    steps: int
    saves: int
    paused_ns: int
    cpu_ns: int | None = None
    """CPU time of the whole process in the window, pauses included."""


class Resumed(Record, frozen=True, kw_only=True):
    """The leg goes on where an earlier launch of it was cut off: state and data position are a generation's."""

    t_ns: int
    generation: int
    step: int
    """Step behind which that generation was taken."""
    launch: int
    """How many launches of this leg came before."""
    restore_ns: int
    cached: float | None = None
    """Share of the files' pages that lay in memory before they were read."""
    lacking: list[str] = []
    """Keys of what the checkpoint does not hold, which go on from a fresh start's values: random states, statistics."""


class Restored(Record, frozen=True, kw_only=True):
    """In a test of restart: this rank began with a checkpoint of the train leg, and when it did what."""

    born_ns: int
    """When the rank's Python began."""
    ready_ns: int
    """When the framework had been started."""
    begin_ns: int
    """When all ranks had agreed on a generation, and the reading began."""
    end_ns: int
    generation: int
    step: int
    """Step behind which that generation was taken."""
    cached: float | None
    """Share of the files' pages that lay in memory before they were read."""
    lacking: list[str]
    """Keys of the live state that the checkpoint does not hold: they keep the values of the start."""
    transplanted: list[str] = []
    """Keys that were taken from the reference afterwards."""
    faults: list[str] = []
    """What was planted in the state that was loaded, in words."""


class Digests(Record, frozen=True, kw_only=True):
    """In a test of restart: digests of all that this rank holds, at one point of its training."""

    step: int
    when: str
    """fresh: before a restore; loaded: behind it, where the checkpoint was taken; step: behind a step; whole: the same
    as loaded or step, but of whole entries where ranks hold parts."""
    kinds: dict[str, dict[str, str]]
    """Kind -> key -> xxh3-128. Beside the kinds of state: gradient, data_order (sample ids) and loss of that step."""
    cost_ns: int
    """Time that this record took."""
    bytes: int
    """Bytes that were digested."""
    lacking: dict[str, str] = {}
    """Kinds that cannot be seen here, each with its reason."""


class Gpu(Record, frozen=True, kw_only=True):
    """How busy this rank's GPU was over the leg, as NVML samples it; empty with a reason where there is none."""

    t_ns: list[int]
    busy: list[float]
    """Fractions of the driver's own sample period (a sixth of a second to one), at `t_ns`."""
    reason: str | None


class Verified(Record, frozen=True, kw_only=True):
    """What this rank read back of a generation."""

    generation: int
    equal: bool | None
    tensors: int
    reason: str | None
    """What differed, or why it was not verified."""
    read_ns: int | None = None
    """Time that the reading took, digests left out."""
    cached: float | None = None
    """Share of the files' pages that lay in memory before: reads of those say nothing about the disk."""


class End(Record, frozen=True, kw_only=True):
    """The closing line. Only `ok` counts as done."""

    t_ns: int
    status: str
    """ok, failed, stopped or terminated."""
    error: str | None = None
    inside: list[str] = []
    """Phases that were open when the rank ended, outermost first."""


LINES = (
    Start | Clock | Beacon | Probe | Drain | Step | Span | Save | Replica | Window | Resumed | Restored | Digests | Gpu
    | Verified | End
)  # fmt: skip

_encoder = msgspec.json.Encoder(enc_hook=str)  # versions may be subclasses of str
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(LINES)


def encode(record: Record) -> bytes:
    """One line of a rank's file, newline included."""
    return _encoder.encode(record) + b"\n"


def decode(line: bytes, where: str = "line") -> Record:
    """The record of one line. Raises TraceError, naming `where`, for anything else."""
    try:
        record: Record = _decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise TraceError(f"{where}: not a record of schema {SCHEMA_VERSION}: {error}") from error
    return record


def read_up_to_damage(path: Path, word: bytes = b"") -> list[Any]:
    """A rank's records up to the first line that is none: a killed rank may leave half a line, or no file.

    With `word`, only lines that have it in their head: the tag of a type, in quotes.
    """
    found: list[Any] = []
    try:
        lines = path.read_bytes().splitlines()
        found.extend(decode(line) for line in lines if word in line[:_TAG_BYTES])
    except (OSError, TraceError):
        pass  # what is missing then, whoever asks will miss
    return found


_TAG_BYTES = 24
"""A line begins with its type."""

# What a test of restart found: `restart.json`, written by the driver, which sees all legs.

RESTART_PARTS = ("detect", "suite", "launch", "start", "agree", "read", "prepare", "first_step")
"""Death to the launcher's end; the suite's own work between two legs; launcher to the last rank's Python; imports and
start of the framework; agreeing on a generation and dropping cached pages; reading and taking over; barriers before the
first step; that step. Each ends when the last rank is through."""
NO_TRANSPLANT = "no transplant: "
"""A note that begins so says why no cause was looked for, or not to the end."""
_ABOUT = {
    "again": "run_to_run", TRAIN: "saving", "restored": "restart", "elsewhere": "elsewhere",
    "transplant": "transplant",
}  # fmt: skip


def about_of(leg: str) -> str | None:
    """What the comparison of a leg is about, as in `Comparison`; None for a leg that is no such one."""
    return _ABOUT.get(leg.partition("-")[0])


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first place where a leg is not the reference, bit by bit."""

    step: int
    when: str
    """loaded or step, as in `Digests`."""
    rank: int
    kind: str
    tensor: str
    elements: int | None = None
    """That differ; None: see `reason`."""
    of_elements: int | None = None
    ulp: int | None = None
    """Largest distance in units in the last place; None for what is no floating-point number."""
    largest: float | None = None
    """Largest absolute difference of two values."""
    tensors: int = 1
    """Tensors of that kind that differ there, over all ranks."""
    ranks: list[int] = []
    """Ranks on which something of that kind differs there."""
    reason: str | None = None
    """Why elements and distances are not known."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One leg against the reference."""

    leg: str
    about: str
    """run_to_run, saving (the leg that saves, up to its stop), restart, elsewhere or transplant."""
    ranks: int
    points: int
    """Points of training that were compared, each on every rank."""
    first: Difference | None = None
    """Of anything; None: all bits are equal."""
    training: Difference | None = None
    """The first in what is computed: loss, gradients, parameters, optimizer, buffers, the order of the data."""
    cause: str | None = None
    """Of the first difference in training: kinds of state, reduction_order, forward_arithmetic or backward_arithmetic;
    None: not found."""
    kinds: list[str] = []
    """Kinds that differ where training begins (behind the restore)."""
    reason: str | None = None
    """Why nothing was compared: then neither `first` nor `training` means anything."""
    transplanted: list[str] = []
    lacking: dict[str, str] = {}
    """Kinds that cannot be seen, each with its reason."""

    @property
    def exact(self) -> bool | None:
        """Whether all bits are equal; None: not compared."""
        return None if self.reason or not self.points else self.first is None

    @property
    def trains_exactly(self) -> bool | None:
        """Whether what is computed has equal bits; None: not compared."""
        return None if self.reason or not self.points else self.training is None


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one kind of state over a checkpoint and a restore, on all ranks."""

    kind: str
    verdict: str
    """saved; missing: as a fresh start has it; altered: neither that nor as saved; partly: some of it is as saved;
    unchanged: a fresh start has the same values, so nothing is proved; not_applicable; not_measured."""
    entries: int
    """Entries of all ranks: what ranks hold in common counts on each."""
    restored: int
    """Of these, those that a fresh start has otherwise and the restore brought back."""
    differing: list[str] = []
    """Keys that are not as they were saved, each with the ranks where."""
    reason: str | None = None


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a restart went: parts in seconds, in their order, to the end of the first step."""

    parts_s: dict[str, float]
    reasons: dict[str, str] = {}
    """Parts that were not measured, each with its reason."""
    cached: float | None = None
    """Share of the checkpoint's pages that lay in memory before the read; None: not known."""
    cold: str = ""
    """What was done to make the read cold."""


class RestartReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that a test of restart found."""

    run_id: str
    stop: int
    steps: int
    comparisons: list[Comparison] = []
    carried: list[Carried] = []
    split: Split | None = None
    cure: list[str] | None = None
    """Kinds that, taken from the reference, make bits agree; None: none do, or none were looked for."""
    cured: str | None = None
    """all: every bit agrees with them; training: all that is computed does."""
    notes: list[str] = []


# Columns of the inventory (Parquet), one row per tensor or slice in a file.
INVENTORY_COLUMNS: dict[str, str] = {
    "generation": "int64",
    "step": "int64",
    "file": "string",  # path relative to the leg's checkpoint directory
    "rank": "int64",  # writer
    "node": "string",
    "file_bytes": "int64",  # on disk, after commit
    "format": "string",
    "tensor": "string",
    "label": "string",  # its name in the file: the tensor, or TENSOR#OFFSET:SHAPE for a slice
    "kind": "string",
    "dtype": "string",
    "shape": "string",  # JSON list: global shape
    "offset_bytes": "int64",  # of this slice in the flattened tensor
    "tensor_bytes": "int64",  # logical bytes of this slice
    "storage_bytes": "int64",  # of the storage that the file holds for it: larger for a saved view; null: not read back
    "digest": "string",  # xxh3-128 of the slice's bytes
    "replica_group": "string",
}
