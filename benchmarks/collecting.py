"""What collecting costs: campaigns of any size with planted truth, and PyDarshan on the same logs beside it.

Two parts. One reads the same rank logs with PyDarshan's report and with ours, in turns, and checks that
both find the same bytes. The other collects campaigns of growing size, each in a process of its own: from
the files, from what was kept, and then every question on the tables. Each planted fault must be found.

    python benchmarks/collecting.py --ranks 64 256 1024 4096 --repeats 5 --json collecting.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from analysis.collect import collect  # noqa: E402
from analysis.readers.darshan import read_log, traced_below  # noqa: E402
from analysis.readers.ranks import read_rank  # noqa: E402
from analysis.readers.trace import read_trace  # noqa: E402
from hpcckpt.records import Beacon, Save  # noqa: E402
from hpcckpt.rundir import LegDir, RunDir  # noqa: E402
from tests.unit.planted_faults import FAULTS, campaign, missed, plan  # noqa: E402

LIMITS = {"collect_s": 20.0, "question_s": 5.0, "rss_mb": 1500.0, "at_ranks": 1024, "logs_per_s": 1000.0}
"""What 1,024 ranks may cost on two cores."""
OURS = "ours"

ONE = """
import json, resource, sys, time, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from analysis.collect import collect
from analysis.cli import questions
from hpcckpt.errors import HpcCkptError
path, asks = Path(sys.argv[1]), sys.argv[2] == "ask"
def timed(work):
    cpu, wall = time.process_time(), time.perf_counter()
    found = work()
    return found, {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}
tables, fresh = timed(lambda: collect([path], keep=False))
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
said = {"rows": tables.rank_saves.height, "left_out": tables.left_out.height, "fresh": fresh, "rss_mb": rss}
if asks:
    collect([path])
    tables, said["kept"] = timed(lambda: collect([path]))
    said["questions"], said["refused"] = {}, {}
    for name, kind in questions().items():
        try:
            said["questions"][name] = timed(lambda: kind().answer(tables, False))[1]["wall_s"]
        except HpcCkptError as error:  # one that needs other runs to compare with
            said["refused"][name] = str(error)
print(json.dumps(said))
"""


# ---- the same logs, PyDarshan and ours


def side_by_side(leg: LegDir, ranks: int, repeats: int) -> dict[str, Any]:
    """Seconds per log and reader, in turns; the bytes that all of them find must be the same.

    Ours also checks each part against its checksum, and DXT against the counters. `placed and cut` is what
    collecting needs beyond that: the rank's clock, and the write calls of each checkpoint.
    """
    files = [read_rank(leg.rank_file(rank)) for rank in range(ranks)]
    logs = [next(leg.rank_darshan(rank).glob("*.darshan")) for rank in range(ranks)]
    directories = [save.directory for save in files[0].all(Save)]

    def log_alone() -> dict[str, int]:
        found: dict[str, int] = defaultdict(int)
        for rank, log in enumerate(logs):
            for directory, traced in traced_below(read_log(log, rank), directories).items():
                found[directory] += traced.by_rank[rank]
        return dict(found)

    def cut() -> dict[str, int]:
        found: dict[str, int] = defaultdict(int)
        for rank, file in enumerate(files):
            saves = file.all(Save)
            trace = read_trace(leg.rank_darshan(rank), file.start, file.all(Beacon), saves)
            for save in saves:
                found[save.directory] += trace.generations[save.generation].bytes
        return dict(found)

    readers: dict[str, Callable[[], dict[str, int]]] = {
        OURS: log_alone,
        "ours, placed and cut": cut,
        "PyDarshan frames": lambda: pydarshan(logs, directories, "pandas"),
        "PyDarshan report": lambda: pydarshan(logs, directories, None),
    }
    seconds: dict[str, list[float]] = {name: [] for name in readers}
    for number in range(repeats):
        answers = {}
        for name in sorted(readers, reverse=bool(number % 2)):
            begin = time.process_time()
            answers[name] = readers[name]()
            seconds[name].append((time.process_time() - begin) / ranks)
        if any(answer != answers[OURS] for answer in answers.values()):
            raise SystemExit(f"the readers disagree: {answers}")
    return {name: spread(values) for name, values in seconds.items()}


def pydarshan(logs: Sequence[Path], directories: Sequence[str], dxt: str | None) -> dict[str, int]:
    """Bytes below each directory: PyDarshan's report read whole, or only its frames of POSIX and DXT."""
    import darshan

    found: dict[str, int] = dict.fromkeys(directories, 0)
    for log in logs:
        report = darshan.DarshanReport(str(log), read_all=dxt is None)
        if dxt:
            report.mod_read_all_records("POSIX")
            report.mod_read_all_dxt_records("DXT_POSIX", dtype=dxt)
            report.read_name_records() if hasattr(report, "read_name_records") else None
        counters = report.records["POSIX"].to_df()["counters"]
        names = report.name_records
        for file, written in zip(counters["id"].tolist(), counters["POSIX_BYTES_WRITTEN"].tolist(), strict=True):
            directory = names[file].rpartition("/")[0]
            if directory in found:
                found[directory] += written
    return found


# ---- campaigns of growing size


def curve(options: argparse.Namespace, scratch: Path) -> list[dict[str, Any]]:
    """One entry per size, each measured in fresh processes."""
    rows = []
    for ranks in options.ranks:
        planted = plan(ranks, options.faults, options.checkpoints, options.calls)
        begin = time.perf_counter()
        path = campaign(scratch / str(ranks), [planted])
        planting = time.perf_counter() - begin
        runs = [once(path, ask=number == 0) for number in range(options.repeats)]
        found = {"missed": missed(collect([path]), planted, options.faults), **summary(runs)}
        row = {"ranks": ranks, "planting_s": planting, "runs": runs, **found}
        rows.append(row)
        print(f"{ranks} ranks: {row['cpu_s']['median']:.2f} s CPU", file=sys.stderr)
    return rows


def once(path: Path, ask: bool) -> dict[str, Any]:
    """Collect in a process of its own; with `ask`, from what is kept too, and every question."""
    command = [sys.executable, "-c", ONE, str(path), "ask" if ask else "no"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"collecting {path} ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians and ranges over the processes."""
    questions = runs[0]["questions"]
    slowest = max(questions, key=lambda name: questions[name], default=None)
    return {
        "cpu_s": spread([run["fresh"]["cpu_s"] for run in runs]),
        "wall_s": spread([run["fresh"]["wall_s"] for run in runs]),
        "rss_mb": max(run["rss_mb"] for run in runs),
        "kept_s": runs[0]["kept"]["wall_s"],
        "slowest_question": slowest,
        "question_s": questions.get(slowest),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": float(np.median(values)), "min": min(values), "max": max(values), "n": len(values)}


# ---- what is said


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        scratch = Path(directory)
        rows = curve(options, scratch)
        largest = scratch / str(max(options.ranks))
        run = next(path for path in (largest / "planted").iterdir() if path.is_dir())
        logs = min(options.logs, max(options.ranks))
        return {
            "question": "collecting",
            "checkpoints": options.checkpoints,
            "calls": options.calls,
            "faults": list(options.faults),
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "logs": logs,
            "readers": side_by_side(RunDir(run).leg("train"), logs, options.repeats),
            "curve": rows,
        }


def show(result: dict[str, Any]) -> None:
    per_log = 1 + result["checkpoints"] * result["calls"]
    print(f"{result['logs']} rank logs of {per_log} writes in {result['checkpoints']} files, CPU time in turns")
    print(f"{'':21}{'ms per log':>11}{'range':>18}{'logs/s':>9}{'to ours':>9}")
    ours = result["readers"][OURS]["median"]
    for name, found in result["readers"].items():
        median, each = found["median"], f"{1e3 * found['min']:.2f} .. {1e3 * found['max']:.2f}"
        print(f"{name:21}{1e3 * median:11.2f}{each:>18}{1 / median:9.0f}{median / ours:9.1f}")
    print(f"\ncollecting {result['checkpoints']} checkpoints; faults: {', '.join(result['faults']) or 'none'}")
    columns = f"{'wall s':>8}{'ms/rank':>9}{'RSS MB':>8}{'kept s':>8}  slowest question"
    print(f"{'ranks':>6}{'CPU s':>8}{'range':>16}{columns}")
    for row in result["curve"]:
        cpu = row["cpu_s"]
        between, per_rank = f"{cpu['min']:.2f} .. {cpu['max']:.2f}", 1e3 * cpu["median"] / row["ranks"]
        numbers = f"{row['wall_s']['median']:8.2f}{per_rank:9.2f}{row['rss_mb']:8.0f}{row['kept_s']:8.2f}"
        asked = f"{row['slowest_question']} {row['question_s']:.2f} s" if row["slowest_question"] else "none"
        print(f"{row['ranks']:6}{cpu['median']:8.2f}{between:>16}{numbers}  {asked}")
    print("\n".join(["", *verdicts(result)]))


def verdicts(result: dict[str, Any]) -> list[str]:
    """What is beyond its limit, and what was planted and not found."""
    said = [f"{row['ranks']} ranks: not found: {', '.join(row['missed'])}" for row in result["curve"] if row["missed"]]
    for row in (row for row in result["curve"] if row["ranks"] == LIMITS["at_ranks"]):
        question_s = row["question_s"] or 0.0
        values = {"collect_s": row["wall_s"]["median"], "question_s": question_s, "rss_mb": row["rss_mb"]}
        said += [f"{name}: {value:.2f}, limit {LIMITS[name]}" for name, value in values.items() if value > LIMITS[name]]
    rate = 1 / result["readers"][OURS]["median"]
    if rate < LIMITS["logs_per_s"]:
        said.append(f"{rate:.0f} logs/s, limit {LIMITS['logs_per_s']:.0f}")
    return said or ["all limits kept; every planted fault found"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024], help="sizes of the campaigns")
    parser.add_argument("--checkpoints", type=int, default=20)
    parser.add_argument("--calls", type=int, default=8, help="write calls per file")
    parser.add_argument("--faults", nargs="*", default=list(FAULTS), choices=list(FAULTS), help="default: all")
    parser.add_argument("--repeats", type=int, default=5, help="processes per size, and turns of each reader")
    parser.add_argument("--logs", type=int, default=128, help="rank logs that PyDarshan reads too")
    parser.add_argument("--directory", type=Path, help="where the campaigns are written; default: the temporary one")
    parser.add_argument("--json", type=Path, help="write the result here too")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # PyDarshan's own
    result = measure(options)
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
