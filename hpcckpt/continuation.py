"""A leg that was cut off goes on: which generation all ranks can go back to, and the way back to it.

Looks at the earlier launches' rank files and at the checkpoints themselves; all ranks decide together,
because ranks that go on from different steps wait for each other for ever. When to launch again is the
driver's business.
"""

from __future__ import annotations

import shutil

from hpcckpt.comm import clock
from hpcckpt.errors import RunError
from hpcckpt.leg import Leg
from hpcckpt.records import Resumed, Save, read_up_to_damage
from hpcckpt.rundir import LegDir
from hpcckpt.tracing.residency import cached_fraction

NEEDED = ("parameter", "optimizer", "data_position")
"""Without these it would be another training. Frameworks' own checkpoints lack random states, which is recorded."""


def go_on(leg: Leg, paths: LegDir) -> None:
    """Restore the newest generation that every rank has, if an earlier launch saved any. A collective.

    Raises RunError where generations were completed and no rank, or not every rank, can reach one.
    """
    earlier = paths.earlier()
    if leg.strategy is None or not leg.comm.any(bool(earlier)):
        return
    mine = completed(earlier, leg.comm.rank)
    generation = newest_common(leg, mine)
    if generation is None:
        return
    _restore(leg, mine[generation], len(earlier))
    leg.first_step, leg.first_generation = mine[generation].step + 1, generation + 1
    _remove_unfinished(leg)


def completed(earlier: list[LegDir], rank: int) -> dict[int, Save]:
    """Generations whose save returned on this rank, by its own files, the newest launch last.

    Whether the work behind an asynchronous save ended too, its files tell: `Strategy.holds`.
    """
    records = (record for launch in earlier for record in read_up_to_damage(launch.rank_file(rank)))
    return {record.generation: record for record in records if isinstance(record, Save)}


def newest_common(leg: Leg, mine: dict[int, Save]) -> int | None:
    """The newest generation that all ranks completed and can still reach; None where none was completed."""
    assert leg.strategy is not None
    everybodys = leg.comm.allgather(sorted(mine))
    agreed: list[int] = sorted(set(everybodys[0]).intersection(*everybodys[1:]), reverse=True)
    lacking: dict[int, list[int]] = {}
    for generation in agreed:
        here = leg.strategy.holds(leg.directory(generation), mine[generation].step)
        reached = leg.comm.allgather(here)
        if all(reached):
            return generation
        # What an asynchronous strategy was still writing when the ranks ended is complete nowhere.
        if any(reached) or not leg.strategy.asynchronous:
            lacking[generation] = [rank for rank, there in enumerate(reached) if not there]
    if not lacking:
        return None
    newest = max(lacking)
    nodes = ", ".join(dict.fromkeys(leg.comm.hosts()[rank] for rank in lacking[newest]))
    raise RunError(
        f"ranks {', '.join(map(str, lacking[newest]))} on {nodes} cannot reach generation {newest} in {leg.root}: "
        "checkpoints on a node's own disk stay on the nodes that wrote them; use a shared scratch, or repeat the run "
        "from its beginning by 'python -m jobs resume --retry'"
    )


def _restore(leg: Leg, save: Save, launches: int) -> None:
    assert leg.strategy is not None
    directory = leg.directory(save.generation)
    cached = cached_fraction(leg.strategy.reads(directory))
    begin = clock()
    leg.strategy.prepare()
    missing = leg.strategy.resume(directory, save.step)
    kinds = {entry.key: entry.kind for entry in leg.framework.full_state()}
    needed = [key for key in missing if kinds.get(key) in NEEDED]
    if needed:
        raise RunError(f"generation {save.generation} lacks {', '.join(needed[:5])}: it cannot be gone on from")
    leg.trace.add(
        Resumed(
            t_ns=begin,
            generation=save.generation,
            step=save.step,
            launch=launches,
            restore_ns=clock() - begin,
            cached=cached,
            lacking=missing,
        )
    )


def _remove_unfinished(leg: Leg) -> None:
    """What a save left that was cut off stands where the next save will write."""
    assert leg.strategy is not None
    leg.comm.settle()
    if leg.comm.rank == leg.reader and not leg.strategy.one_directory:
        later = leg.run.settings.steps  # no leg has more generations than steps
        for generation in range(leg.first_generation, leg.first_generation + later):
            shutil.rmtree(leg.directory(generation), ignore_errors=True)
    leg.comm.settle()
