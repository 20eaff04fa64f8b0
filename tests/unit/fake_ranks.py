"""A launcher and a rank that need no MPI, for tests of the driver.

`python fake_ranks.py -n N PROGRAM...` starts N ranks as mpirun would, and says what mpirun says of
one that dies. As the module `tests.unit.fake_ranks` with RUN_DIR and LEG it is such a rank; what it
does is in the variable FAKE: `ok`, or one of `raise`, `kill`, `exit`, `hang`, `deaf`, each with `:RANK`,
or `slow`: all wait for the stop file.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

OTHERS_LIVE_S = 0.3


def launch(arguments: list[str]) -> int:
    count, program = int(arguments[1]), arguments[2:]
    ranks = [
        subprocess.Popen(program, env={**os.environ, "OMPI_COMM_WORLD_RANK": str(r)}, process_group=0)
        for r in range(count)
    ]
    signal.signal(signal.SIGTERM, lambda *_: [rank.terminate() for rank in ranks])
    while any(rank.poll() is None for rank in ranks):
        bad = [(number, rank) for number, rank in enumerate(ranks) if rank.poll()]
        if bad:
            time.sleep(OTHERS_LIVE_S)
            return _end(*bad[0], ranks)
        time.sleep(0.02)
    return max(rank.returncode for rank in ranks)


def _end(number: int, rank: subprocess.Popen[bytes], ranks: list[subprocess.Popen[bytes]]) -> int:
    for other in ranks:
        other.terminate()
    if rank.returncode < 0:
        print(f"prterun noticed that process rank {number} with PID {rank.pid} on node here exited on")
        print(f"signal {-rank.returncode} (Killed).", flush=True)
        return 128 - rank.returncode
    print(f"   Process name: [prterun-here-1@1,{number}]\n   Exit code:    {rank.returncode}", flush=True)
    return rank.returncode


def be_rank(run_dir: Path, leg: str) -> int:
    from hpcckpt.records import SCHEMA_VERSION, End, Start, encode

    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    file = (run_dir / "legs" / leg / "ranks" / f"{rank:05d}.jsonl").open("ab", buffering=0)

    def close(status: str, error: str | None = None, inside: tuple[str, ...] = ()) -> None:
        file.write(encode(End(t_ns=time.monotonic_ns(), status=status, error=error, inside=list(inside))))

    start = Start(
        schema_version=SCHEMA_VERSION, t_ns=time.monotonic_ns(), run_id=run_dir.name, leg=leg,
        rank=rank, size=0, node=f"virtual{rank:03d}", virtual_node=True, host=socket.gethostname(),
        pid=os.getpid(), boot_id="", cores=1, ranks_on_host=1, threads=1, thread_level="", versions={},
        data="", parameters=0, barrier="poll",
    )  # fmt: skip
    file.write(encode(start))
    action, _, whose = os.environ.get("FAKE", "ok").partition(":")
    mine = whose == str(rank)

    def terminated(*_: object) -> None:
        close("terminated", "SIGTERM", ("save",) if mine else ("wait_after",))
        os._exit(143)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if mine and action == "deaf" else terminated)
    if action == "raise" and mine:
        close("failed", "ValueError: planted", ("save",))
        return 1
    if action == "kill" and mine:
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "exit" and mine:
        return 7
    if action == "slow":
        while not (run_dir / "stop").exists():
            time.sleep(0.02)
        close("stopped", "stop file")
        return 75
    if action in ("raise", "kill", "exit", "hang", "deaf"):
        time.sleep(60)
    close("ok")
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "-n":
        sys.exit(launch(sys.argv[1:]))
    sys.exit(be_rank(Path(sys.argv[1]), sys.argv[2]))
