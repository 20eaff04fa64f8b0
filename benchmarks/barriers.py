"""What waiting costs the writer: a single-writer save with polling and with spinning barriers, side by side.

    python benchmarks/barriers.py [--ranks 8] [--rounds 5] [--json FILE]

Each round launches every variant once, in shuffled order, on this machine. Horovod's own thread
wakes every cycle on every rank; the slow-cycle variants show what that costs beside the barriers.
A value of a launch is the median of its saves; the table gives median and range over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hpcckpt.experiment import Axes, Experiment, Job, Settings, runs
from hpcckpt.records import SERIALIZE_WRITE, Save, Span, decode
from hpcckpt.rundir import RunDir, write_json
from jobs import launchers, site

CYCLES_MS = {"default": None, "slow": "50"}
VARIANTS = [(barrier, cycle) for barrier in ("poll", "spin") for cycle in CYCLES_MS]


def launch(folder: Path, ranks: int, barrier: Any, cycle: str) -> dict[str, float]:
    """Seconds of one launch: stall (largest over ranks) and the writer's serialize+write, medians of its saves."""
    experiment = Experiment(
        name="barriers",
        question="What does waiting cost the writer?",
        axes=Axes(
            framework=["pytorch_horovod"], strategy=["single_writer"], format=["torch_zip"], nodes=[ranks]
        ),
        repeats=1,
        settings=Settings(barrier=barrier, verify="none", drain_limit_s=5.0),
    )
    run = runs(experiment, {})[0]
    paths = RunDir(folder / run.run_id)
    write_json(
        paths.run,
        Job(
            run=run,
            campaign="barriers",
            site={},
            scratch=str(folder / "scratch"),
            virtual_nodes=True,
            tracer="none",
        ),
    )
    found = launchers.find("mpirun")
    program = [sys.executable, "-m", "hpcckpt.rank", str(paths.path), "train"]
    local = dict(site.load("local").environment)
    if CYCLES_MS[cycle]:
        local["HOROVOD_CYCLE_TIME"] = str(CYCLES_MS[cycle])
    environment = launchers.environment(found, os.environ, local, local=True, crowded=True)
    command = launchers.argv(found, run.point, True, [], program)
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
    records = [_records(paths, rank) for rank in range(ranks)]
    saves = [[r for r in mine if isinstance(r, Save)] for mine in records]
    stalls = [max(s.end_ns - s.begin_ns for s in same) / 1e9 for same in zip(*saves, strict=True)]
    writes = [
        (r.end_ns - r.begin_ns) / 1e9
        for r in records[0]
        if isinstance(r, Span) and r.phase == SERIALIZE_WRITE
    ]
    return {"stall_s": statistics.median(stalls), "serialize_write_s": statistics.median(writes)}


def _records(paths: RunDir, rank: int) -> list[Any]:
    return [decode(line) for line in paths.leg("train").rank_file(rank).read_bytes().splitlines()]


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--ranks", type=int, default=8)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    results: dict[tuple[str, str], list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    for number in range(chosen.rounds):
        for variant in random.Random(number).sample(VARIANTS, len(VARIANTS)):
            with tempfile.TemporaryDirectory(prefix="barriers-", dir=".") as folder:
                results[variant].append(launch(Path(folder).absolute(), chosen.ranks, *variant))
            print(f"round {number + 1} of {chosen.rounds}: {variant} {results[variant][-1]}", file=sys.stderr)
    cores = len(os.sched_getaffinity(0))
    print(f"{chosen.ranks} ranks on {cores} cores, {chosen.rounds} rounds; seconds, median [lowest, highest]")
    print(f"{'barrier':8} {'Horovod cycle':14} {'stall':28} serialize+write on the writer")
    for (barrier, cycle), found in results.items():
        cells = [_cell([each[key] for each in found]) for key in ("stall_s", "serialize_write_s")]
        print(f"{barrier:8} {cycle:14} {cells[0]:28} {cells[1]}")
    if chosen.json:
        rows = [{"barrier": b, "cycle": c, "launches": found} for (b, c), found in results.items()]
        chosen.json.write_text(json.dumps({"ranks": chosen.ranks, "cores": cores, "rows": rows}, indent=1))


def _cell(values: list[float]) -> str:
    return f"{statistics.median(values):.4f} [{min(values):.4f}, {max(values):.4f}]"


if __name__ == "__main__":
    main()
