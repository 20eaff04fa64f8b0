"""What tracing costs: a 500 MB torch.save with a tracer against the same save without one.

Pairs of fresh processes, one traced and one not, the order swapped from pair to pair; each saves
several times and reports its own CPU and wall time per save. The ratio of a pair is one sample.

    python benchmarks/tracing_cost.py --rounds 15 --tracer iotrace --json cost.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from analysis.readers.darshan import read_log, traced_bytes  # noqa: E402
from hpcckpt.tracing.io.base import LOG_DIR, IoTracer, choose  # noqa: E402

LIMIT = 1.03
"""A lower bound of the CPU ratio above this is a cost to look into."""

SAVER = """
import json, os, sys, time
import torch
torch.set_num_threads(1)
path, tensors, megabytes, saves = sys.argv[1], *map(int, sys.argv[2:])
state = {f"t{i}": torch.ones(megabytes * 10**6 // 4 // tensors) for i in range(tensors)}
torch.save(state, path)
cpu, wall = [], []
for _ in range(saves):
    os.unlink(path)
    c, w = time.process_time(), time.perf_counter()
    torch.save(state, path)
    cpu.append(time.process_time() - c)
    wall.append(time.perf_counter() - w)
print(json.dumps({"cpu_s": min(cpu), "wall_s": min(wall), "bytes": (1 + saves) * os.path.getsize(path)}))
"""


def save(options: argparse.Namespace, scratch: Path, tracer: IoTracer | None) -> dict[str, float]:
    """One process that saves; with a tracer, its log must hold every byte, or the numbers mean nothing."""
    leg, watched = scratch / "leg", scratch / "watched"
    logs = leg / "darshan" / "rank00000"
    for directory in (logs, watched):
        directory.mkdir(parents=True)
    added = tracer.prepare(leg, watched) if tracer else {}
    env = os.environ | {key: value.replace(LOG_DIR, str(logs)) for key, value in added.items()}
    numbers = [str(number) for number in (options.tensors, options.megabytes, options.saves)]
    command = [sys.executable, "-c", SAVER, str(watched / "state.pt"), *numbers]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    said = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"the saving process ended with {process.returncode}")
    result: dict[str, float] = json.loads(said)
    if tracer:
        check_trace(tracer, logs, watched, process.pid, int(result["bytes"]))
    shutil.rmtree(scratch)
    return result


def check_trace(tracer: IoTracer, logs: Path, watched: Path, pid: int, expected: int) -> None:
    notes = tracer.finish(logs, 0, platform.node(), pid)
    found = [traced_bytes(read_log(path), str(watched)).by_rank.get(0, 0) for path in logs.glob("*.darshan")]
    if tracer.name != "none" and (sum(found) < expected or notes):
        raise SystemExit(f"traced {sum(found)} of {expected} bytes; {notes}: these saves were not traced")


def measure(options: argparse.Namespace, tracer: IoTracer) -> list[dict[str, dict[str, float]]]:
    pairs = []
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for number in range(options.rounds):
            kinds = [("traced", tracer), ("untraced", None)]
            if number % 2:
                kinds.reverse()
            pairs.append({kind: save(options, Path(directory) / kind, each) for kind, each in kinds})
            print(f"round {number + 1}/{options.rounds}", file=sys.stderr)
    return pairs


def summarise(ratios: np.ndarray[Any, Any]) -> dict[str, float]:
    """Median, quartiles and the 95 % bootstrap interval of the median."""
    draws = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    first, third = np.percentile(ratios, [25, 75])
    values = {"median": np.median(ratios), "low": low, "high": high, "quartile1": first, "quartile3": third}
    return {name: float(value) for name, value in values.items()}


def report(options: argparse.Namespace, tracer: IoTracer) -> dict[str, Any]:
    pairs = measure(options, tracer)
    result: dict[str, Any] = {
        "question": "tracing_cost",
        "tracer": tracer.describe(),
        "rounds": options.rounds,
        "megabytes": options.megabytes,
        "tensors": options.tensors,
        "directory": str(options.directory),
        "load": os.getloadavg()[0],
        "pairs": pairs,
    }
    for column in ("cpu_s", "wall_s"):
        ratios = np.array([pair["traced"][column] / pair["untraced"][column] for pair in pairs])
        untraced = np.median([pair["untraced"][column] for pair in pairs])
        result[column] = summarise(ratios) | {"untraced_median_s": float(untraced)}
    return result


def show(result: dict[str, Any]) -> None:
    print(
        f"traced / untraced, {result['megabytes']} MB, {result['tensors']} tensors, {result['rounds']} pairs"
    )
    print(f"{'':8}{'median':>8}{'95 % interval':>20}{'quartiles':>20}{'untraced s':>12}")
    for column in ("cpu_s", "wall_s"):
        row = result[column]
        interval = f"{row['low']:.3f} .. {row['high']:.3f}"
        quartiles = f"{row['quartile1']:.3f} .. {row['quartile3']:.3f}"
        print(f"{column:8}{row['median']:8.3f}{interval:>20}{quartiles:>20}{row['untraced_median_s']:12.3f}")
    if result["cpu_s"]["low"] > LIMIT:
        print(f"the CPU ratio's lower bound exceeds {LIMIT}: find out why")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="pairs of processes")
    parser.add_argument("--tracer", help="name of the tracer; the best that is there by default")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--tensors", type=int, default=50)
    parser.add_argument("--saves", type=int, default=3, help="timed saves per process; the fastest counts")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"), help="where the saves go")
    parser.add_argument("--json", type=Path, help="write the result here too")
    options = parser.parse_args()
    result = report(options, choose(options.tracer, None, os.environ)[0])
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
