"""The findings SC01 to SC06 of the scaling question: what is claimed, and what decides it.

Each takes a group of rows (`analysis.pooling`) and gives one finding. Thresholds stand here with
their reasons; nothing is printed or read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import mean

from analysis.deciding import MECHANISM_NOTE, Decision, grows, placed, slope_words
from analysis.finding import Finding, counted, not_measured, signed
from analysis.pooling import Group, Pool, Row
from analysis.stats import Fit, fit_line, median_interval

_BESIDE = (
    "Look at waits before the save, at the steps beside it (write-back, clock rates), and at the control's."
)
_UNSEEN = "Read the tracer's warnings; writes by mmap, sendfile or io_uring are unseen."
_REWRITTEN = (
    "Bytes were written and then written over, or removed: headers that are finished at the end, a file written "
    "twice, a temporary file. Writers and write seconds hold; take the bytes from the disk."
)
AGREE_SHARE = 0.10
"""Overhead and stall may differ by this share of the stall: the steps beside a save differ by as much."""
WAIT_SHARE = 0.5
"""The others wait when together they idle at least this share of (N-1) x stall."""
GROWTH = 0.10
"""Growth over the measured nodes that an interval must exclude, as a share of the stall, to speak against any."""
SPREAD_SHARE = 0.5
"""An interval wider than half its median hides any effect smaller than that."""
STRAGGLE_SHARE, STRAGGLE_S = 0.10, 0.010
"""A rank straggles when it is alone behind by this share of the stall, and by more than time slices."""
STRAGGLE_RUNS = 2
"""One run's slow rank may be anything; the same one in another run is not chance."""
LARGER_SHARE = 1.5
"""A rank with so many times its peers' bytes takes longer by its task: uneven shares, not straggling."""
NOTICED_BYTES = 4096
"""A page: what trace and disk differ by below it is a header, and says nothing of unseen writes."""


def findings(group: Group) -> list[Finding]:
    """All findings of a group, in the order of their codes."""
    return [
        finding
        for claim in (growth, one_writer, overhead_agrees, coverage, spread, straggler)
        if (finding := claim(group)) is not None
    ]


def stall_fit(group: Group) -> Fit:
    """Stall over nodes, each run a point. Only rows with the most frequent number of ranks per node."""
    counts = Counter(pool.ranks_per_node for pool in group.pools)
    per_node = max(counts, key=lambda value: (counts[value], -value))
    pools = [pool for pool in group.pools if pool.ranks_per_node == per_node and pool.reason is None]
    points = [(pool.nodes, value) for pool in pools for value in pool.per_run("stall_s").values()]
    return fit_line([float(x) for x, _ in points], [y for _, y in points])


def _evidence(pools: Sequence[Pool]) -> list[str]:
    return [run for pool in pools for run in pool.evidence]


def _measured(group: Group) -> list[Pool]:
    return [pool for pool in group.pools if pool.reason is None and pool.checkpoints()]


def _why_nothing(group: Group) -> str:
    return next((pool.reason for pool in group.pools if pool.reason), "no checkpoints")


def stall_grows(group: Group) -> tuple[Fit, Decision]:
    """The line of the stall over nodes, and whether it rises: one verdict for all that speak of it."""
    fit = stall_fit(group)
    stalls = [(pool.nodes, pool.over_saves("stall_s").value) for pool in _measured(group)]
    nodes = [n for n, _ in stalls]
    span = max(nodes, default=0) - min(nodes, default=0)
    least = min((value for _, value in stalls if value is not None), default=0.0)
    return fit, grows(fit, GROWTH * least / span if span else 0.0, "s per node", "node")


def growth(group: Group) -> Finding | None:
    """SC01: the stall grows with nodes under one writer. No finding where the plan has several writers."""
    code, claim = "SC01", "the stall grows with nodes under one writer"
    pools = _measured(group)
    if any(save["writers_declared"] != 1 for pool in pools for save in pool.checkpoints()):
        return None
    evidence = _evidence(group.pools)
    if not pools:
        return not_measured(code, claim, group.title, _why_nothing(group), evidence)
    fit, decision = stall_grows(group)
    if decision.side is None:
        return not_measured(code, claim, group.title, str(decision.reason), evidence, unit="s/node")
    supports, virtual = decision.side == "above", bool(group.first["virtual_nodes"])
    words = {"above": "grows", "below": "shrinks", "within": "does not grow measurably"}[decision.side]
    where = f" ({MECHANISM_NOTE})" if virtual else ""
    advice = "Let each node or rank write its share; one writer sets the pace of all."
    return Finding(
        code=code,
        claim=claim,
        verdict="supports" if supports else "contradicts",
        level=("info" if virtual else "warning") if supports else "ok",
        group=group.title,
        sentence=f"the stall {words} with nodes: {slope_words(fit, 's per node')}{where}",
        value=fit.slope,
        unit="s/node",
        low=fit.slope_low,
        high=fit.slope_high,
        recommendation=None if virtual else advice,
        evidence=evidence,
    )


def one_writer(group: Group) -> Finding | None:
    """SC02: one rank writes while the others wait, by the I/O trace, at the largest count of ranks."""
    code, claim = "SC02", "one rank writes while the others wait"
    pools = [pool for pool in _measured(group) if pool.ranks > 1]
    if not pools:
        reason = "no run has more than one rank" if _measured(group) else _why_nothing(group)
        return not_measured(code, claim, group.title, reason, _evidence(group.pools), unit="rank-s")
    largest = max(pools, key=lambda pool: pool.ranks)
    saves = largest.checkpoints()
    unseen = next((save for save in saves if save["writers_seen"] is None), None)
    if unseen:
        return not_measured(code, claim, group.title, unseen["trace_reason"], largest.evidence, unit="rank-s")
    # The writer's own waiting is not the others': with it, the share could exceed all of their time.
    idle, stall = largest.over_saves("others_idle_rank_s"), largest.over_saves("stall_s")
    share = (idle.value or 0.0) / max((largest.ranks - 1) * (stall.value or 0.0), 1e-9)
    writers = sorted({save["writers_seen"] for save in saves})
    supports = writers == [1] and share >= WAIT_SHARE
    who = f"{_span(writers)} of {largest.ranks} ranks wrote" if writers != [0] else "no rank wrote"
    return Finding(
        code=code,
        claim=claim,
        verdict="supports" if supports else "contradicts",
        level="warning" if supports else "ok",
        group=group.title,
        sentence=f"{who}; the others idled {idle.value:.4g} rank-seconds per checkpoint, "
        f"{100 * share:.0f} % of all others waiting the whole stall",
        value=idle.value,
        unit="rank-s",
        low=idle.low,
        high=idle.high,
        recommendation="Share the writing, or take it off the critical path." if supports else None,
        evidence=largest.evidence,
    )


def _span(values: list[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def overhead_agrees(group: Group) -> Finding:
    """SC03: what a checkpoint costs against the control agrees with its stall. One difference per run."""
    code, claim = "SC03", "overhead per checkpoint against the control agrees with the stall"
    pools = _measured(group)
    runs = [
        (run, pool) for pool in pools for run in pool.runs if run["overhead_per_checkpoint_s"] is not None
    ]
    if not runs:
        reasons = (run["overhead_reason"] for pool in group.pools for run in pool.runs)
        reason = next(filter(None, reasons), _why_nothing(group)) if pools else _why_nothing(group)
        return not_measured(code, claim, group.title, reason, _evidence(group.pools), unit="s")
    if len(runs) < 2:
        return not_measured(code, claim, group.title, "one run", [run["run"] for run, _ in runs], unit="s")
    # Overhead is a sum over checkpoints, so it is the mean stall that it must equal, not the median.
    stalls = {run["run"]: mean(save["stall_s"] for save in pool.saves[run["run"]]) for run, pool in runs}
    apart = median_interval([run["overhead_per_checkpoint_s"] - stalls[run["run"]] for run, _ in runs])
    assert apart.value is not None
    assert apart.low is not None
    assert apart.high is not None
    stall, names = mean(stalls.values()), [run["run"] for run, _ in runs]
    allowed = AGREE_SHARE * stall
    numbers = (
        f"{signed(apart.value)} s [{signed(apart.low)}, {signed(apart.high)}] over {counted(apart.n, 'run')}"
    )
    if apart.high - apart.low > stall:
        reason = f"overhead per checkpoint less stall scatters by more than the stall: {numbers}"
        return not_measured(code, claim, group.title, reason, names, unit="s")
    decision = placed(apart.low, apart.high, apart.n, -allowed, allowed)
    if decision.side is None:
        reason = f"{decision.reason}: overhead per checkpoint less stall {numbers}, {allowed:.4g} s counts as equal"
        return not_measured(code, claim, group.title, reason, names, unit="s")
    agrees = decision.side == "within"
    return Finding(
        code=code,
        claim=claim,
        verdict="supports" if agrees else "contradicts",
        level="ok" if agrees else "warning",
        group=group.title,
        sentence=f"overhead per checkpoint less stall: {numbers}; {allowed:.4g} s counts as equal{decision.note}",
        value=apart.value,
        unit="s",
        low=apart.low,
        high=apart.high,
        recommendation=_BESIDE,
        evidence=names,
    )


def coverage(group: Group) -> Finding:
    """SC04: the I/O trace does not hold what is on disk: it says too little of writers and writes."""
    code, claim = "SC04", "coverage is too low, or too high, to trust the I/O trace"
    saves = [save for pool in group.pools for save in pool.checkpoints()]
    broken = [save for save in saves if save["coverage_ok"] is False]
    known = [save for save in saves if save["coverage_min"] is not None]
    open_ = next((save for save in saves if save["coverage_ok"] is None), None)
    if not broken and (open_ or not known):
        reason = open_["coverage_reason"] if open_ else "no checkpoints"
        return not_measured(code, claim, group.title, reason, _evidence(group.pools), unit="fraction")
    low, high = min(save["coverage_min"] for save in known), max(save["coverage_max"] for save in known)
    numbers = f"traced over on-disk bytes: {low:.4f} to {high:.4f}"
    if not broken:
        return Finding(
            code=code, claim=claim, verdict="contradicts", level="ok", group=group.title, sentence=numbers, value=low,
            unit="fraction", low=low, high=high, evidence=_evidence(group.pools),
        )  # fmt: skip
    worst = max(broken, key=_bytes_apart)
    traced, disk = worst["off_traced_bytes"], worst["off_disk_bytes"]
    above = traced > disk
    return Finding(
        code=code,
        claim=claim,
        verdict="supports",
        level="critical" if _bytes_apart(worst) >= NOTICED_BYTES else "info",
        group=group.title,
        sentence=f"rank {worst['off_rank']} in checkpoint {worst['generation']} of {worst['run']}: {traced} bytes "
        f"traced, {disk} on disk, {abs(traced - disk)} too {'many' if above else 'few'}; {numbers}; {len(broken)} of "
        f"{len(saves)} checkpoints outside the format's interval",
        value=worst["coverage_max"] if above else worst["coverage_min"],
        unit="fraction",
        low=low,
        high=high,
        recommendation=_REWRITTEN if above else _UNSEEN,
        evidence=sorted({save["run"] for save in broken}),
    )


def _bytes_apart(save: Row) -> int:
    """By how many bytes trace and disk differ on the rank where they differ most."""
    return abs(int(save["off_traced_bytes"]) - int(save["off_disk_bytes"]))


def spread(group: Group) -> Finding:
    """SC05: runs of one row differ so much that the row cannot tell."""
    code, claim = "SC05", "the spread between runs is too large to tell"
    stalls = [(pool, pool.over_saves("stall_s")) for pool in _measured(group)]
    widths = [(item.relative_width, pool, item) for pool, item in stalls if item.relative_width is not None]
    if not widths:
        reason = "no row has two runs" if stalls else _why_nothing(group)
        return not_measured(code, claim, group.title, reason, _evidence(group.pools), unit="fraction")
    wide = [pool for width, pool, _ in widths if width > SPREAD_SHARE]
    width, worst, item = max(widths, key=lambda each: each[0])
    too_wide = (
        f"; {len(wide)} of {len(widths)} rows are wider than {100 * SPREAD_SHARE:.0f} %" if wide else ""
    )
    return Finding(
        code=code,
        claim=claim,
        verdict="supports" if wide else "contradicts",
        level="warning" if wide else "ok",
        group=group.title,
        sentence=f"widest {item.kind} of the stall: {100 * width:.0f} % of its median, "
        f"at {worst.place}{too_wide}",
        value=width,
        unit="fraction",
        recommendation="Add repeats, give the machine to nobody else, or look for what ran beside."
        if wide
        else None,
        evidence=_evidence(wide or [worst]),
    )


def straggler(group: Group) -> Finding:
    """SC06: the same rank comes late to the save, or is done late, in most runs of a row."""
    code, claim = "SC06", "a rank straggles: it arrives late or finishes late in most runs"
    pools = [pool for pool in _measured(group) if pool.ranks > 1]
    if not pools:
        reason = "no run has more than one rank" if _measured(group) else _why_nothing(group)
        return not_measured(code, claim, group.title, reason, _evidence(group.pools), unit="s")
    found = [item for pool in pools for item in _stragglers(pool)]
    once = [item for item in found if len(item[2]) < STRAGGLE_RUNS]
    found = [item for item in found if item not in once]
    if once and not found:
        reason = f"seen in one run only, which may be chance: {'; '.join(sentence for _, sentence, _ in once)}"
        return not_measured(code, claim, group.title, reason, once[0][2], unit="s")
    if not found:
        unclear = next((s["clock_reason"] for p in pools for s in p.checkpoints() if s["clock_reason"]), None)
        if unclear:
            return not_measured(code, claim, group.title, unclear, _evidence(pools), unit="s")
        sentence = "no rank comes or finishes alone behind the others in most runs"
        evidence = _evidence(pools)
        return Finding(
            code=code, claim=claim, verdict="contradicts", level="ok", group=group.title, sentence=sentence,
            unit="s", evidence=evidence,
        )  # fmt: skip
    seconds, _, evidence = max(found, key=lambda item: item[0])
    return Finding(
        code=code,
        claim=claim,
        verdict="supports",
        level="warning",
        group=group.title,
        sentence="; ".join(sentence for _, sentence, _ in found),
        value=seconds,
        unit="s",
        recommendation="Look at that rank's node, data and neighbours; move the rank and measure again.",
        evidence=evidence,
    )


def _stragglers(pool: Pool) -> list[tuple[float, str, list[str]]]:
    """(seconds, sentence, runs) for a rank that arrives late and for one that finishes late, if there are."""
    found = []
    for who, by, words in (
        ("last_to_arrive", "late_by_s", "comes last to the save, {:.3g} s after the next to last"),
        ("slowest", "slower_by_s", "is done last, {:.3g} s after its next peer"),
    ):
        named = {run: _usual(saves, who, by) for run, saves in pool.saves.items()}
        ranks = Counter(item[0] for item in named.values() if item)
        if not ranks or ranks.most_common(1)[0][1] * 2 <= len(pool.saves):
            continue
        rank = ranks.most_common(1)[0][0]
        behind = {run: item[1] for run, item in named.items() if item and item[0] == rank}
        value = median_interval(list(behind.values())).value or 0.0
        often = f"in {len(behind)} of {counted(len(pool.saves), 'run')}"
        sentence = f"rank {rank} {words.format(value)}, at {pool.place}, {often}"
        found.append((value, sentence, list(behind)))
    return found


def _usual(saves: Sequence[Row], who: str, by: str) -> tuple[int, float] | None:
    """The rank that is alone behind in most checkpoints of a run, and by how many seconds."""
    behind = [
        (save[who], save[by])
        for save in saves
        if save[by] is not None
        and not (who == "slowest" and (save["slowest_over_peers"] or 0.0) >= LARGER_SHARE)
        and save[by] > max(STRAGGLE_SHARE * save["stall_s"], STRAGGLE_S, 2 * (save["clock_error_s"] or 0.0))
    ]
    ranks = Counter(rank for rank, _ in behind)
    if not ranks or ranks.most_common(1)[0][1] * 2 <= len(saves):
        return None
    rank = ranks.most_common(1)[0][0]
    return rank, median_interval([seconds for each, seconds in behind if each == rank]).value or 0.0
