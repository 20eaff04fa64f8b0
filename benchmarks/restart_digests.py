"""What the digests of a test of restart cost, beside the step that they watch: one rank, one process.

    python benchmarks/restart_digests.py [--framework F ...] [--model M ...] [--steps 7] [--json FILE]

Digests are of all state, the gradients, the loss and the sample ids, after every step. Medians over the
steps, the first two left out. Each framework and model is tried in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

FRAMEWORKS = ("pytorch_horovod", "pytorch_ddp", "tensorflow_horovod", "chainer_chainermn")
MODELS = ("small_dropout", "small", "alexnet")


def measure(framework_name: str, model: str, steps: int) -> dict[str, Any]:
    """Median seconds of a step and of its digests, and the bytes that these read."""
    from hpcckpt import data, registry
    from hpcckpt.comm import clock, world
    from hpcckpt.experiment import Restart, Settings
    from hpcckpt.inventory import digest

    settings = Settings(restart=Restart(stop=2))
    adapter = registry.load("hpcckpt.frameworks", framework_name)
    framework = adapter(registry.load("hpcckpt.models", model), settings, world(), data.load(None, 1), 1)
    framework.start()
    stepped, digested, size = [], [], 0
    for _ in range(steps):
        begin = clock()
        framework.step()
        middle = clock()
        entries = [*framework.state(), *framework.gradients()]
        for entry in entries:
            digest(entry.data)
        digest(framework.last_ids)
        stepped.append(middle - begin)
        digested.append(clock() - middle)
        size = sum(entry.data.nbytes for entry in entries)
    middle_of = [statistics.median(values[2:]) / 1e9 for values in (stepped, digested)]
    return {
        "framework": framework_name, "model": model, "step_s": middle_of[0], "digest_s": middle_of[1], "bytes": size,
    }  # fmt: skip


def apart(framework: str, model: str, steps: int) -> dict[str, Any]:
    """The same in a process of its own, started as a single rank."""
    program = [sys.executable, __file__, "--one", framework, model, "--steps", str(steps)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", nargs="+", default=list(FRAMEWORKS))
    parser.add_argument("--model", nargs="+", default=list(MODELS))
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one, options.steps)), flush=True)
        return
    rows = [apart(framework, model, options.steps) for model in options.model for framework in options.framework]
    print(f"{'framework':20}{'model':16}{'MB':>8}{'step ms':>10}{'digests ms':>12}{'share':>8}{'GB/s':>7}")
    for row in rows:
        share, rate = row["digest_s"] / row["step_s"], row["bytes"] / row["digest_s"] / 1e9
        times = f"{row['bytes'] / 1e6:8.1f}{1e3 * row['step_s']:10.1f}{1e3 * row['digest_s']:12.2f}"
        print(f"{row['framework']:20}{row['model']:16}{times}{share:8.1%}{rate:7.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
