"""The scaling question in words: per group a paragraph on who wrote, who waited, how long, by what evidence.

Sentences only; each number is a pool's, a row's or the fit's.
"""

from __future__ import annotations

from statistics import median

from analysis.finding import counted, signed
from analysis.pooling import Group, Pool, Row, writers
from analysis.scaling_claims import stall_fit
from analysis.stats import Interval, interval_words
from analysis.tables import Tables


def commit_note(tables: Tables, pool_commits: bool) -> list[str]:
    commits = tables.runs["commit"].unique().sort().to_list()
    if len(commits) < 2:
        return []
    how = (
        "share rows, as --pool-commits asks" if pool_commits else "are kept apart; --pool-commits joins them"
    )
    return [f"Runs of {len(commits)} commits ({', '.join(commit[:12] for commit in commits)}) {how}."]


def paragraph(group: Group) -> str:
    """Who wrote, who waited, how long, on which evidence; and the fit."""
    pools = [each for each in group.pools if each.reason is None and each.checkpoints()]
    if not pools:
        reason = next((each.reason for each in group.pools if each.reason), "no checkpoints")
        return f"{group.title}: not measured: {reason}."
    largest = max(pools, key=lambda each: each.ranks)
    stall = largest.over_saves("stall_s")
    kind = interval_words([stall])
    cost = f"at {largest.place} a checkpoint stalls training for {_bracket(stall)} s ({kind})."
    return " ".join([f"{group.title}: {cost}", _who_wrote(largest), *_who_waited(largest), _fit_words(group)])


def _bracket(item: Interval) -> str:
    assert item.value is not None
    if item.n < 2:
        return f"{item.value:.4g}"
    return f"{item.value:.4g} [{item.low:.4g}, {item.high:.4g}]"


def _who_wrote(each: Pool) -> str:
    saves = each.checkpoints()
    row = writers(each)
    if row["writers_seen_min"] is None:
        declared = row["writers_declared_max"]
        why = row["writers_seen_reason"]
        return f"Who wrote is not measured ({why}); the plan gives bytes to {declared} of {each.ranks} ranks."
    size = each.over_saves("checkpoint_bytes").value
    low, high = row["writers_seen_min"], row["writers_seen_max"]
    count = f"{low}" if low == high else f"{low} to {high}"
    volume = f" {size / 1e6:.4g} MB" if size is not None else ""
    evidence = f"{counted(len(saves), 'checkpoint')} in {counted(len(each.runs), 'run')}"
    wrote = f"{count} of {counted(each.ranks, 'rank')} wrote{volume}, by the I/O trace of {evidence}"
    return f"{wrote}; slowest: {_most(saves, 'slowest')}."


def _most(saves: list[Row], column: str) -> str:
    ranks = [save[column] for save in saves]
    usual = max(sorted(set(ranks)), key=ranks.count)
    if ranks.count(usual) * 2 <= len(ranks):
        return f"no rank in most of {len(ranks)} checkpoints"
    return f"rank {usual} in {ranks.count(usual)} of {counted(len(ranks), 'checkpoint')}"


def _who_waited(each: Pool) -> list[str]:
    if each.ranks < 2:
        return []
    waited, before = _others_waited(each), each.over_saves("wait_before_s")
    total = waited * (each.ranks - 1)
    words = f"All ranks but the slowest waited {waited:.4g} s each in the mean, {total:.4g} rank-seconds in all"
    saves = [save for save in each.checkpoints() if save["last_to_arrive"] is not None]
    if not before.value:
        return [f"{words}; before the save nobody waited."]
    last = _most(saves, "last_to_arrive") if saves else "not measured"
    waited_before = f"before the save they waited up to {before.value:.4g} s, which is in no stall"
    return [f"{words}; {waited_before}; last to arrive: {last}."]


def _others_waited(each: Pool) -> float:
    """Seconds that a rank waited for others, the mean over all but the slowest: median over runs of checkpoints."""
    waited = [
        median(save["others_wait_after_s"] + save["others_wait_inside_s"] for save in saves)
        for saves in each.saves.values()
        if saves
    ]
    return float(median(waited))


def _fit_words(group: Group) -> str:
    fit = stall_fit(group)
    if fit.slope is None:
        return f"Stall over nodes is not fitted: {fit.reason}."
    assert fit.slope_low is not None
    assert fit.slope_high is not None
    slope, low, high = map(signed, (fit.slope, fit.slope_low, fit.slope_high))
    virtual = " No extrapolation from virtual nodes." if group.first["virtual_nodes"] else ""
    return f"Line over nodes: {slope} s per node [{low}, {high}], 95 % over {counted(fit.n, 'run')}.{virtual}"
