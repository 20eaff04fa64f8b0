"""The private Slurm cluster: what a node has of its own, what a failure does, and that nothing is left behind."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest

from hpcckpt.errors import SubmitError
from jobs import launchers
from jobs.private_slurm.cluster import ALREADY, REPAIRED, STARTED, Cluster
from jobs.private_slurm.layout import CONTROLLER
from tests.slurm import remove, root, start, until
from tests.support import ROOT

pytestmark = pytest.mark.integration

EIGHT = {f"node{number}" for number in range(1, 9)}
HELLO = """
from mpi4py import MPI
world = MPI.COMM_WORLD
names = world.gather(MPI.Get_processor_name())
beside = world.Split_type(MPI.COMM_TYPE_SHARED).size
if world.rank == 0:
    print(*names, f"beside={beside}")
"""


def ask(cluster: Cluster, *command: str) -> str:
    """What a program of Slurm prints; fails where it does."""
    done = cluster.run(*command)
    assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
    return done.stdout


def on_all(cluster: Cluster, script: str) -> list[str]:
    """Lines printed by a shell script that runs once on each node."""
    nodes = len(cluster.shape.names)
    return ask(cluster, "srun", f"--nodes={nodes}", "--mpi=none", "sh", "-c", script).splitlines()


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python -m jobs.private_slurm` as a person types it."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    line = [sys.executable, "-m", "jobs.private_slurm", *arguments]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=120)


def pids(cluster: Cluster, *places: str) -> set[int]:
    return {p.pid for place, some in cluster.processes().items() if not places or place in places for p in some}


def mounts_of(cluster: Cluster) -> list[str]:
    """Lines of this process's own mounts that have to do with the cluster."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if cluster.layout.root.name in line]


@pytest.fixture
def small() -> Iterator[Cluster]:
    """Two nodes without accounting, not yet started: for tests that take it down."""
    cluster = Cluster(root("small"), nodes=2, accounting=False)
    yield cluster
    remove(cluster)


def test_each_node_is_there_under_its_own_name(slurm: Cluster) -> None:
    assert slurm.node_states() == dict.fromkeys(EIGHT, "idle")
    assert set(on_all(slurm, "hostname 2>/dev/null || cat /proc/sys/kernel/hostname")) == EIGHT


def test_shared_memory_and_local_disk_are_each_nodes_own_at_one_path(slurm: Cluster) -> None:
    name = "$(cat /proc/sys/kernel/hostname)"
    for folder in ("/dev/shm", str(slurm.layout.local)):
        lines = on_all(slurm, f"touch {folder}/of-{name}; echo {name} $(ls {folder})")
        assert {line.split()[0] for line in lines} == EIGHT
        for line in lines:
            node, *seen = line.split()
            assert [file for file in seen if file.startswith("of-")] == [f"of-{node}"], folder
    assert not list(Path("/dev/shm").glob("of-node*")), "a node wrote to the machine's own /dev/shm"


def test_names_of_all_nodes_resolve_to_loopback_inside_a_node(slurm: Cluster) -> None:
    script = " ".join(f"getent hosts {name};" for name in (*sorted(EIGHT), CONTROLLER))
    lines = set(on_all(slurm, script))
    assert {tuple(line.split()) for line in lines} == {("127.0.0.1", name) for name in (*EIGHT, CONTROLLER)}


def test_every_daemon_listens_on_loopback_only(slurm: Cluster) -> None:
    ours = pids(slurm)
    listening = [c.laddr.ip for c in psutil.net_connections("inet") if c.pid in ours and c.status == "LISTEN"]
    assert len(listening) >= 2 + len(EIGHT)
    assert [address for address in listening if not ip_address(address).is_loopback] == []


def test_accounting_knows_a_job_that_ended(slurm: Cluster) -> None:
    done = slurm.run("sbatch", "--parsable", "--output=/dev/null", "--wait", "--wrap=exit 7")
    number = done.stdout.strip()
    assert done.returncode == 7
    line = ["sacct", "-X", "-n", "-P", "-j", number, "-o", "State,ExitCode"]
    until(lambda: ask(slurm, *line).strip() == "FAILED|7:0", 10, f"sacct on job {number}")


def test_mpirun_in_a_job_puts_two_ranks_on_each_of_eight_nodes(slurm: Cluster, tmp_path: Path) -> None:
    found = launchers.find("mpirun")
    mapping = "ppr:2:node:OVERSUBSCRIBE" if "5." in found.version else "ppr:2:node"
    crowd = [] if "5." in found.version else ["--oversubscribe"]
    line = [found.path, "-n", "16", "--map-by", mapping, *crowd, "--bind-to", "none", sys.executable, "-c", HELLO]
    variables = {**launchers.ROOT, **launchers.YIELD, "OMPI_MCA_btl": "^ofi"}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n{exports}exec timeout 60 {shlex.join(line)}\n")
    output = tmp_path / "out"
    options = ["--nodes=8", "--ntasks-per-node=2", f"--output={output}", "--wait"]
    done = slurm.run("sbatch", *options, str(script), timeout_s=90)
    assert done.returncode == 0, output.read_text()
    *names, beside = output.read_text().split()
    assert sorted(names) == sorted([*EIGHT, *EIGHT])
    assert beside == "beside=2"


def test_a_cancelled_job_leaves_no_process_on_any_of_its_nodes(slurm: Cluster) -> None:
    """Not even one that left its session and lost its parent, as a rank does whose mpirun was killed."""
    before = pids(slurm, *EIGHT)
    orphan = "--wrap=srun --mpi=none sh -c '(setsid sleep 303 >/dev/null 2>&1 &) ; sleep 304'"
    number = ask(slurm, "sbatch", "--parsable", "--nodes=2", "--output=/dev/null", orphan).strip()
    until(lambda: len(_named(slurm, "sleep")) == 4, 20, "two sleeps on each of two nodes")
    ask(slurm, "scancel", number)
    until(lambda: pids(slurm, *EIGHT) <= before, 15, "the nodes run no more than before")


def test_a_cluster_that_is_up_is_left_alone_and_another_shape_refused(slurm: Cluster) -> None:
    before = pids(slurm)
    assert slurm.up() == ALREADY
    again = command("up", "--root", str(slurm.layout.root), "--nodes", "8")
    assert again.returncode == 0 and "already up" in again.stdout
    assert f"export SLURM_CONF={slurm.conf}" in again.stdout.splitlines()
    other = command("up", "--root", str(slurm.layout.root), "--nodes", "4")
    assert other.returncode == 3
    assert "8 nodes" in other.stderr and f"down --root {slurm.layout.root}" in other.stderr
    assert pids(slurm) == before


def test_a_job_of_a_dead_node_returns_to_the_queue_and_the_node_serves_again(slurm: Cluster, tmp_path: Path) -> None:
    """Slurm is told that the node is down, as its own time-out would do half a minute later."""
    wrap = "--wrap=echo $SLURM_RESTART_COUNT >> starts; hostname > node; sleep 300 & wait"
    options = ["--parsable", "--requeue", "--nodes=2", f"--chdir={tmp_path}", "--output=out"]
    number = ask(slurm, "sbatch", *options, wrap).strip()
    try:
        until(lambda: bool((tmp_path / "node").exists() and (tmp_path / "node").read_text()), 20, "the job runs")
        victim = (tmp_path / "node").read_text().strip()
        slurm.kill_node(victim)
        assert pids(slurm, victim) == set(), "a process of the dead node lives"
        ask(slurm, "scontrol", "update", f"NodeName={victim}", "State=DOWN", "Reason=test")
        until(lambda: len((tmp_path / "starts").read_text().splitlines()) == 2, 40, "the job runs again")
        assert (tmp_path / "node").read_text().strip() != victim
    finally:
        ask(slurm, "scancel", number)
    slurm.restart_node(victim)
    until(lambda: slurm.node_states() == dict.fromkeys(EIGHT, "idle"), 30, "all nodes are idle")


def test_down_leaves_no_process_no_mount_and_no_file(small: Cluster) -> None:
    """Two clusters at once need not know of each other: the session's may be up all the while."""
    assert start(small).run("sacct").returncode != 0, "accounting answers though there is none"
    escape = "setsid sh -c 'sleep 301 & sleep 302' > /dev/null 2>&1 & sleep 300"
    ask(small, "sbatch", "--nodes=2", "--output=/dev/null", f"--wrap=srun --mpi=none sh -c {shlex.quote(escape)}")
    until(lambda: len(_named(small, "sleep")) == 6, 20, "six sleeps on two nodes")
    assert "wrap" in ask(small, "squeue", "-h")
    assert mounts_of(small) == [], "the nodes' mounts are seen from outside"
    everybody = _all(small)
    stopped = command("down", "--root", str(small.layout.root))
    assert stopped.returncode == 0 and f"stopped, {len(everybody)} processes" in stopped.stdout
    assert [p for p in everybody if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
    assert small.processes() == {} and mounts_of(small) == []
    assert {path.name for path in small.layout.root.iterdir()} == {"lock", "log"}
    again = command("down", "--root", str(small.layout.root))
    assert again.returncode == 0 and "nothing is up" in again.stdout


def _all(cluster: Cluster) -> list[psutil.Process]:
    """What runs on any place; a process may end while one looks at it, so names are asked for by `_named`."""
    return [process for some in cluster.processes().values() for process in some]


def _named(cluster: Cluster, name: str) -> list[psutil.Process]:
    found = []
    for process in _all(cluster):
        try:
            found += [process] * (process.name() == name)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.parametrize(("killed", "then"), [("slurmd", REPAIRED), ("slurmctld", STARTED), ("munged", STARTED)])
def test_up_recovers_from_the_death_of_a_daemon(small: Cluster, killed: str, then: str) -> None:
    start(small)
    victim = _named(small, killed)[0]
    victim.send_signal(signal.SIGKILL)
    until(lambda: bool(small.missing()), 5, f"{killed} is gone")
    assert command("status", "--root", str(small.layout.root)).returncode == 3
    assert small.up() == then
    assert small.missing() == []
    assert set(on_all(small, "hostname")) == {"node1", "node2"}


def test_an_up_that_fails_half_way_takes_down_what_it_started(small: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.private_slurm.config.PARTITIONS", "PartitionName=main Nodes=nobody\n")
    with pytest.raises(SubmitError, match="private Slurm: slurmctld") as failure:
        small.up()
    assert "nobody" in str(failure.value), "the sentence holds the daemon's own words"
    assert small.processes() == {} and not small.layout.state.exists()


def test_a_machine_without_the_packages_is_told_so_in_one_sentence(tmp_path: Path) -> None:
    place = root("none")  # a test's own folder may be too long a name for the sockets below it
    done = command("up", "--root", str(place), PATH=str(tmp_path))
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert "apt-get install -y slurm-wlm munge" in done.stderr and "sbatch" in done.stderr
    assert not place.exists()


def test_an_ordinary_user_is_told_so_in_one_sentence() -> None:
    program = (
        "import os, sys; from jobs.private_slurm import __main__ as m; os.geteuid = lambda: 1000; sys.exit(m.main())"
    )
    line = [sys.executable, "-c", program, "up", "--root", str(root("none"))]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "only root can start it" in done.stderr or "lacks" in done.stderr
