"""How a campaign stands: counts, the table of its runs, causes of failures, and what is left.

Reads state files only, so it works while runs go on and after everything has ended.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hpcckpt.experiment import Job
from hpcckpt.records import SCHEMA_VERSION
from hpcckpt.rundir import DONE, FAILED, INTERRUPTED, QUEUED, RUNNING, State
from jobs.campaign import UNREADABLE, Campaign, is_driven
from jobs.plan import Skipped
from jobs.progress import Durations, describe, duration

FEW = 3
"""As many of a kind are named; more are counted."""
ORDER = (UNREADABLE, FAILED, INTERRUPTED, RUNNING, QUEUED, DONE)


class Status:
    """A campaign at one moment."""

    def __init__(self, owner: Campaign, jobs: Mapping[str, str] | None = None, answered: bool = True) -> None:
        self.campaign = owner
        self.slurm = jobs or {}
        """run -> what Slurm says of its job."""
        self.answered = answered
        """Whether Slurm, where it has the runs, said anything."""
        self.states = owner.states()
        known = {run_id: owner.job(run_id) for run_id in self.states}
        self.jobs: dict[str, Job] = {run_id: job for run_id, job in known.items() if job is not None}
        """Of the runs whose `run.json` can be read."""
        self.counts = Counter(state.state for state in self.states.values())

    @property
    def virtual(self) -> bool:
        return bool(self.campaign.ledger.site.get("virtual_nodes"))

    def elapsed_s(self, state: State) -> float | None:
        """Seconds that a run took, or takes so far."""
        if state.started is None or state.state == QUEUED:
            return None
        return (state.ended or time.time()) - state.started

    def left_s(self) -> float | None:
        """Expected seconds until nothing is queued or running."""
        durations = Durations()
        for run_id, state in self.states.items():
            if state.state == DONE and run_id in self.jobs:
                durations.add(self.jobs[run_id].run, state)
        left = durations.left(
            self.jobs[r].run for r in self.jobs if self.states[r].state in (QUEUED, RUNNING)
        )
        spent = sum(self.elapsed_s(s) or 0.0 for s in self.states.values() if s.state == RUNNING)
        return None if left is None else max(0.0, left - spent)

    def total_s(self) -> float | None:
        """Seconds from the first start to the last end, or to now."""
        started = [s.started for s in self.states.values() if s.started is not None]
        if not started:
            return None
        ended = [s.ended for s in self.states.values() if s.ended is not None]
        return (time.time() if self.counts[RUNNING] or not ended else max(ended)) - min(started)

    def plain(self) -> dict[str, Any]:
        """Everything, for machines."""
        return {
            "schema_version": SCHEMA_VERSION,
            "campaign": self.campaign.name,
            "path": str(self.campaign.paths.path),
            "site": self.campaign.ledger.site["name"],
            "virtual_nodes": self.virtual,
            "counts": {state: self.counts[state] for state in ORDER},
            "slurm_answered": self.answered,
            "elapsed_s": self.total_s(),
            "left_s": self.left_s(),
            "runs": [self._row(run_id, state) for run_id, state in self.states.items()],
        }

    def _row(self, run_id: str, state: State) -> dict[str, Any]:
        keys = ("state", "reason", "cause", "rank", "node", "leg", "attempts", "timings_s")
        row = {"run_id": run_id, "elapsed_s": self.elapsed_s(state), "slurm": self.slurm.get(run_id)}
        return row | {key: getattr(state, key) for key in keys}

    def json(self) -> str:
        return json.dumps(self.plain(), indent=2)

    def lines(self) -> list[str]:
        """The same for people."""
        counted = ", ".join(f"{self.counts[state]} {state}" for state in ORDER if self.counts[state])
        where = f"site {self.campaign.ledger.site['name']}"
        if self.virtual:
            where += ", one machine that plays all nodes (virtual nodes)"
        times = f"elapsed {duration(self.total_s())}"
        if self.counts[QUEUED] + self.counts[RUNNING]:
            times += f", left {duration(self.left_s())}"
        head = [f"campaign {self.campaign.name} at {where}", f"{len(self.states)} runs: {counted}; {times}"]
        if not self.answered:
            head.append("Slurm does not answer: these are the states as the runs' own files have them")
        ordered = sorted(self.states, key=lambda run_id: ORDER.index(self.states[run_id].state))
        skipped = skipped_lines(self.campaign.ledger.skipped)
        return head + [self._line(run_id) for run_id in ordered] + [f"  {line}" for line in skipped]

    def _line(self, run_id: str) -> str:
        state = self.states[run_id]
        took = self.elapsed_s(state)
        text = f"  {state.state:<11} {duration(took) if took is not None else '-':>12}  "
        job = self.jobs.get(run_id)
        text += describe(job.run, job.virtual_nodes) if job else f"{run_id}: no run.json; submit writes it anew"
        if job_line := self.slurm.get(run_id):
            text += f"; {job_line}"
        if state.state == RUNNING:
            dead = "; its driver is dead: submit again takes it up"
            return text + (f"; leg {state.leg}" if is_driven(state) else dead)
        return text + (f"\n{'':15}{state.reason}" if state.reason and state.state != DONE else "")

    @property
    def over(self) -> bool:
        """Whether nothing waits or runs any more."""
        return not self.counts[QUEUED] + self.counts[RUNNING]


def skipped_lines(skipped: Sequence[Skipped], brief: bool = False) -> list[str]:
    """Combinations of the axes that are no run: one line per framework and reason, or how many there are."""
    if brief and len(skipped) > FEW:
        return [f"{len(skipped)} combinations of the axes are not possible; 'python -m jobs status' says why"]
    reasons: dict[tuple[str, str], list[str]] = {}
    for each in skipped:
        reasons.setdefault((each.framework, each.reason), []).append(f"{each.strategy} {each.format}")
    return [f"not possible: {framework}: {reason} ({_some(which)})" for (framework, reason), which in reasons.items()]


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more
