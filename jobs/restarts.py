"""The driver's part in a test of restart: compares each leg as soon as it has ended, and says which legs follow.

Only the driver sees all legs while the states that they dumped are still there. What a difference is
and which transplant comes next is worked out in `hpcckpt.restart`; what it means, in the analysis.
"""

from __future__ import annotations

import msgspec

from hpcckpt import registry
from hpcckpt.errors import RunError
from hpcckpt.experiment import Job
from hpcckpt.planting import RESTORED
from hpcckpt.records import (
    NO_TRANSPLANT,
    TRAIN,
    WAIT_AFTER,
    WAIT_BEFORE,
    Carried,
    Comparison,
    RestartReport,
    Restored,
    Split,
    about_of,
    read_up_to_damage,
)
from hpcckpt.restart import transplants
from hpcckpt.restart.carried import carried
from hpcckpt.restart.compare import Seen, compare, due, elsewhere, seen
from hpcckpt.restart.dumps import Dumps
from hpcckpt.restart.spec import ELSEWHERE, REFERENCE, TRANSPLANT, dies, restores
from hpcckpt.rundir import LegDir, RunDir, write_json
from jobs import ranks
from jobs.restart_time import Moments, split


class Sequel:
    """What one run's legs showed so far, and what is still to be run."""

    def __init__(self, paths: RunDir, job: Job) -> None:
        assert job.run.settings.restart is not None
        self.paths, self.job, self.restart = paths, job, job.run.settings.restart
        self.dumps = Dumps(job.scratch)
        self.found: dict[str, Comparison] = {}
        self.moments = Moments()
        self._reference: Seen | None = None
        self._began: list[Restored] = []
        """How the ranks of the restored leg began; what follows from it is read once, when that leg has ended."""
        self._carried: list[Carried] = []
        self._split: Split | None = None

    def forgives(self, name: str, ending: ranks.Ending) -> bool:
        """Whether a leg ended as it was meant to: by the death of the rank that was to be killed."""
        if not dies(self.restart, name) or ending.cause in ("stopped", ranks.NODE_LOST):
            return False
        return self.paths.leg(name).death.exists()

    def after(self, name: str, ending: ranks.Ending | None = None) -> None:
        """Compare the leg that has ended. Raises RunError where the planned death never came, or too late."""
        if dies(self.restart, name) and (wrong := self._not_killed_in_a_save(self.paths.leg(name))):
            raise RunError(wrong)
        if name == REFERENCE:
            return
        self.found[name] = self._compared(name, ending)
        if name == RESTORED:
            self._look_at_the_restore()
        self.write()

    def _look_at_the_restore(self) -> None:
        leg, size = self.paths.leg(RESTORED), self.job.run.ranks
        self._began = restored(leg, size)
        if self._began:
            saved = digests(self.paths.leg(TRAIN), size)
            self._carried = carried(digests(leg, size), saved, self._began[0].step)
            self._split = split(self.moments, self.paths, size)

    def _not_killed_in_a_save(self, leg: LegDir) -> str | None:
        """Why the death was none in the midst of the save behind the one at `stop`; None where it was."""
        restart, interval = self.restart, self.job.run.point.interval_steps
        rank_file = leg.rank_file(restart.kill or 0)
        which = f"the save behind step {restart.stop + interval}"
        if found := leg.read_death():
            late = f"settings.restart.kill_after_s: rank {restart.kill} outlived {which}: fewer seconds are needed"
            return None if "save" in found[2] else late
        phases = sorted({span.phase for span in read_up_to_damage(rank_file, b'"span"')} - {WAIT_BEFORE, WAIT_AFTER})
        if restart.kill_at in phases:
            return f"settings.restart.kill_after_s: rank {restart.kill} outlived the leg: fewer seconds are needed"
        has = f"it has {', '.join(phases)} there" if phases else "it has none there"
        missed = f"rank {restart.kill} never came to phase {restart.kill_at!r} of {which}"
        return f"settings.restart.kill_at: {missed}; {has}: name another phase, or a rank that writes"

    def following(self) -> list[str]:
        """The next leg beyond the planned ones, as a list of one; empty where nothing is left to learn."""
        if self.restart.transplant and (leg := transplants.next_leg(self.found)):
            return [leg]
        for number in self.restart.elsewhere:
            name = f"{ELSEWHERE}{number}"
            if name in self.found or number == self.job.run.ranks:  # no other number
                continue
            if reason := self._refused(number):
                self.found[name] = self._none(name, number, reason)
                continue
            return [name]
        return []

    def job_of(self, name: str) -> Job:
        """The job as the leg runs it: `elsewhere-N` has ranks of its own number."""
        if not name.startswith(ELSEWHERE):
            return self.job
        nodes, per_node = self._layout(int(name.removeprefix(ELSEWHERE))) or (1, 1)
        other = msgspec.structs.replace(self.job.run.point, nodes=nodes, ranks_per_node=per_node)
        return msgspec.structs.replace(self.job, run=msgspec.structs.replace(self.job.run, point=other))

    def _layout(self, number: int) -> tuple[int, int] | None:
        """(nodes, ranks per node) for so many ranks, the nodes as full as they may be; None where they don't fit."""
        point = self.job.run.point
        if self.job.virtual_nodes and not self.job.site.get("one_machine", False):
            return number, 1
        full = range(min(point.ranks_per_node, number), 0, -1)
        fits = (per_node for per_node in full if number % per_node == 0 and number // per_node <= point.nodes)
        return next(((number // per_node, per_node) for per_node in fits), None)

    def _refused(self, number: int) -> str | None:
        point = self.job.run.point
        for package, name in (("hpcckpt.frameworks", point.framework), ("hpcckpt.strategies", point.strategy)):
            if not registry.load(package, name).elastic:
                return f"{name} declares that a restore needs as many ranks as the save had"
        if self._layout(number) is None:
            return f"{number} ranks don't fit into {point.nodes} x {point.ranks_per_node} (nodes x ranks per node)"
        return None

    def _compared(self, name: str, ending: ranks.Ending | None) -> Comparison:
        size = self.job_of(name).run.ranks
        if ending is not None and not self.forgives(name, ending):
            return self._none(name, size, f"the leg failed: {ending.reason}")
        began = restored(self.paths.leg(name), size)
        if restores(name) and len(began) < size:
            return self._none(name, size, f"{size - len(began)} of {size} ranks recorded no restore")
        points = due(name, self.restart, self.job.run.settings.steps, began[0].step if began else None)
        ours = digests(self.paths.leg(name), size)
        if name.startswith(ELSEWHERE):
            return elsewhere(name, ours, self.reference, self.dumps.value, REFERENCE, points)
        if dies(self.restart, name):  # some ranks came further than others
            ours = {rank: {point: own[point] for point in points if point in own} for rank, own in ours.items()}
        result = compare(name, str(about_of(name)), ours, self.reference, self.dumps.value, REFERENCE, points)
        taken = sorted({key for found in began for key in found.transplanted})
        return msgspec.structs.replace(result, transplanted=taken)

    def _none(self, name: str, size: int, reason: str) -> Comparison:
        return Comparison(leg=name, about=str(about_of(name)), ranks=size, points=0, reason=reason)

    @property
    def reference(self) -> Seen:
        """The reference's digests; they are asked for behind its end only."""
        if self._reference is None:
            self._reference = digests(self.paths.leg(REFERENCE), self.job.run.ranks)
        return self._reference

    def write(self) -> None:
        """All that was found, as far as it goes."""
        write_json(self.paths.restart, self.report())

    def report(self) -> RestartReport:
        """What `restart.json` holds."""
        cause = transplants.cause(self.found)
        cure = transplants.cure(self.found)
        return RestartReport(
            run_id=self.job.run.run_id,
            stop=self.restart.stop,
            steps=self.job.run.settings.steps,
            comparisons=[_with_cause(each, cause) for each in self.found.values()],
            carried=self._carried,
            split=self._split,
            cure=cure[0] if cure else None,
            cured=cure[1] if cure else None,
            notes=self._notes(),
        )

    def _no_transplant(self) -> str | None:
        """Why no kind of state was looked for, or not to the end."""
        if reason := transplants.no_use(self.found):
            return reason
        if not self.restart.transplant:
            return "settings.restart.transplant = false"
        failed = (found for name, found in self.found.items() if name.startswith(TRANSPLANT) and found.reason)
        return next((f"{found.leg}: {found.reason}" for found in failed), None)

    def _notes(self) -> list[str]:
        notes = []
        if RESTORED in self.found and (reason := self._no_transplant()):
            notes.append(f"{NO_TRANSPLANT}{reason}")
        lacking = sorted({key for found in self._began for key in found.lacking})
        if lacking:
            notes.append(f"the checkpoint holds no {', '.join(lacking[:6])}{' ...' if len(lacking) > 6 else ''}")
        planted = sorted({words for found in self._began for words in found.faults})
        return notes + [f"planted at the restore: {words}" for words in planted]


def _with_cause(found: Comparison, cause: list[str] | None) -> Comparison:
    """Of a restored leg, the cause is what a transplant showed."""
    if found.leg != RESTORED or cause is None:
        return found
    return msgspec.structs.replace(found, cause=" + ".join(cause))


def digests(leg: LegDir, size: int) -> Seen:
    """Every rank's digests of a leg."""
    return seen({rank: read_up_to_damage(leg.rank_file(rank), b'"digests"') for rank in range(size)})


def restored(leg: LegDir, size: int) -> list[Restored]:
    """How each rank began, by rank; ranks that did not say are left out."""
    return [found for rank in range(size) for found in read_up_to_damage(leg.rank_file(rank), b'"restored"')]
