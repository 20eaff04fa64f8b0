"""Campaigns on a real Slurm, and every way it can take a run away: after each, `resume` completes the campaign."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import psutil
import pytest

from analysis.collect import collect
from analysis.laws import READBACK
from hpcckpt.errors import ExitCode
from hpcckpt.records import RestartReport, Resumed, Save, Start, Step
from hpcckpt.rundir import DONE, FAILED, INTERRUPTED, QUEUED, RUNNING, read_json
from jobs.private_slurm.cluster import Cluster
from tests.integration.slurm_drill import Drill
from tests.slurm import remove, root, start, until
from tests.support import ROOT

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
pytestmark = pytest.mark.integration


@pytest.fixture
def drill(tmp_path: Path, slurm: Cluster) -> Iterator[Drill]:
    # Nodes that are still being freed from the job before would move this one to others.
    until(lambda: set(slurm.node_states().values()) == {"idle"}, 60, "eight idle nodes")
    yield Drill(tmp_path, slurm)
    slurm.run("scancel", f"--user={os.getuid()}")
    for name, state in slurm.node_states().items():
        if state not in ("idle", "alloc", "mix", "comp"):
            slurm.restart_node(name)


def test_a_campaign_runs_on_eight_hosts_and_in_one_shared_table(drill: Drill) -> None:
    drill.experiment(nodes=8, steps=5, slow=False)
    done = drill.submit("--wait")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    tables = collect([drill.campaign.paths.path])
    assert tables.left_out.height == 0, tables.left_out.to_dicts()
    nodes = tables.rank_saves.select("rank", "node").unique().sort("rank")
    assert nodes["node"].to_list() == [f"node{1 + rank // 2}" for rank in range(16)]
    assert tables.runs["virtual_nodes"].to_list() == [True], "one machine plays all nodes, and that is said"
    assert {drill.start(rank).threads for rank in (0, 15)} == {1}, "sixteen ranks share the machine's cores"
    drill.nothing_left()


THREE = """
name = "three"
question = "scaling"
repeats = 1
[axes]
framework = ["pytorch_horovod", "tensorflow_horovod", "chainer_chainermn"]
model = ["resnet20"]
strategy = ["single_writer", "tf_checkpoint", "chainermn_multi_node"]
format = ["torch_zip", "tf_bundle", "npz"]
nodes = [8]
ranks_per_node = [1]
interval_steps = [1]
[settings]
steps = 3
batch_per_rank = 2
[[exclude]]
framework = ["tensorflow_horovod", "chainer_chainermn"]
strategy = "single_writer"
"""


def test_three_frameworks_on_eight_hosts(drill: Drill) -> None:
    (drill.base / "drill.toml").write_text(THREE)
    site = drill.base / "site.toml"
    site.write_text(site.read_text().replace('tracer = "none"\n', ""))
    done = drill.submit("--wait", limit_s=900)
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    asked = [sys.executable, "-m", "analysis.scaling", str(drill.campaign.paths.path)]
    told = subprocess.run(asked, capture_output=True, text=True, check=False, cwd=ROOT)
    assert told.returncode == ExitCode.OK, told.stdout + told.stderr
    tables = collect([drill.campaign.paths.path])
    assert set(tables.runs["framework"]) == {"pytorch_horovod", "tensorflow_horovod", "chainer_chainermn"}
    for run in tables.runs["run"]:
        nodes = tables.rank_saves.filter(pl.col("run") == run)["node"].unique().sort().to_list()
        assert nodes == [f"node{number}" for number in range(1, 9)]
    multi = tables.saves.join(tables.runs.filter(pl.col("strategy") == "chainermn_multi_node").select("run"), on="run")
    assert multi["writers_seen"].unique().to_list() == [8]


def test_a_cancelled_job_is_interrupted(drill: Drill) -> None:
    drill.experiment(nodes=4, steps=31)
    drill.submit()
    drill.until_saved()
    drill.cluster.run("scancel", drill.job_id)
    assert drill.until_over(60).state == INTERRUPTED
    drill.nothing_left()
    drill.completes()


def test_cancelling_a_campaign_cleans_up(drill: Drill) -> None:
    drill.experiment(nodes=2, steps=101)
    drill.submit()
    drill.until_saved()
    said = drill.jobs("cancel")
    assert said.returncode == ExitCode.OK, said.stderr
    assert drill.state.state == INTERRUPTED
    assert not Path(drill.job.scratch).exists()
    drill.nothing_left()


def went_on(drill: Drill) -> Resumed:
    """All ranks went on from one generation, and no step was trained twice or left out after it."""
    found = [drill.records(Resumed, rank)[0] for rank in range(drill.job.run.ranks)]
    assert len({(resumed.generation, resumed.step) for resumed in found}) == 1, found
    steps = [step.index for step in drill.records(Step)]
    assert steps == list(range(found[0].step + 1, drill.job.run.settings.steps))
    generations = [save.generation for save in drill.records(Save)]
    assert generations == list(range(found[0].generation + 1, drill.job.run.settings.steps // 2))
    resumed: Resumed = found[0]
    return resumed


def test_a_warning_before_the_end_saves_and_goes_on(drill: Drill) -> None:
    drill.experiment(nodes=4, steps=41)
    drill.submit()
    drill.until_saved(2)
    drill.cluster.run("scancel", "--signal=USR2", "--batch", drill.job_id)
    until(lambda: drill.state.attempts == 2, 60, "the second start")
    assert drill.until_over(120).state == DONE
    first = drill.train.earlier()[0]
    assert went_on(drill).generation == drill.records(Save, leg=first)[-1].generation, "the one saved when warned"
    drill.nothing_left()


def test_a_requeue_from_outside_goes_on_and_is_counted_once(drill: Drill) -> None:
    drill.experiment(nodes=2, steps=41)
    drill.submit()
    drill.until_saved(2)
    drill.cluster.run("scontrol", "requeue", drill.job_id)
    until(lambda: drill.state.state == INTERRUPTED, 60, "the first start's end")
    assert "in Slurm's hands already" in drill.submit().stdout, "its job waits to start again"
    until(lambda: drill.state.attempts == 2, 60, "the second start")
    assert drill.until_over(120).state == DONE
    generation = went_on(drill).generation
    tables = collect([drill.campaign.paths.path])
    assert tables.left_out.height == 0, tables.left_out.to_dicts()
    assert tables.saves["generation"].to_list() == list(range(generation + 1, 20))
    assert any("went on after an interruption" in flag for flag in tables.runs["flags"][0])
    assert tables.runs["overhead_s"].to_list() == [None]
    drill.nothing_left()


RESTART = """
[settings.restart]
stop = 10
elsewhere = [2]
[[faults]]
rank = 0
at = "step"
action = "sleep"
seconds = 0.2
leg = "reference"
"""


def test_a_test_of_restart_that_is_cut_off_twice_compares_whole_legs(drill: Drill) -> None:
    drill.experiment(nodes=2, steps=21, more=RESTART)
    drill.submit()
    drill.until(lambda: len(drill.records(Step, leg=drill.run_dir.leg("reference"))) > 3, 60, "steps of the reference")
    drill.cluster.run("scancel", "--signal=USR2", "--batch", drill.job_id)
    until(lambda: drill.state.attempts == 2, 60, "the second start")
    drill.until_saved(2)
    drill.cluster.run("scontrol", "requeue", drill.job_id)
    until(lambda: drill.state.attempts == 3, 60, "the third start")
    assert drill.until_over(120).state == DONE
    found: RestartReport = read_json(drill.run_dir.restart, RestartReport)
    assert [(each.leg, each.exact, each.points) for each in found.comparisons] == [
        ("again", True, 21), ("train", True, 11), ("restored", True, 11), ("elsewhere-2", True, 1),
    ]  # fmt: skip
    assert len(drill.run_dir.leg("reference").earlier()) == len(drill.train.earlier()) == 1
    assert not drill.records(Resumed), "the leg began anew: going on would be the restart that is tested"
    assert not Path(drill.job.scratch).exists()
    drill.nothing_left()


def test_cancelling_ends_the_waiting_too(drill: Drill) -> None:
    drill.experiment(nodes=2, steps=101)
    environment = {**os.environ, "SLURM_CONF": str(drill.cluster.conf), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "jobs", "submit", "drill.toml", "--site", "site.toml", "--wait"]
    waiting = subprocess.Popen(command, cwd=drill.base, env=environment, stdout=subprocess.DEVNULL)
    until(lambda: (drill.base / "runs").exists(), 30, "the campaign")
    drill.until_saved()
    done = drill.jobs("cancel")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    assert waiting.wait(30) == ExitCode.INTERRUPTED
    assert drill.state.state == INTERRUPTED
    drill.nothing_left()


@pytest.mark.long
def test_the_time_limit_is_no_end(drill: Drill) -> None:
    drill.site(f'scratch = "{drill.base / "scratch"}"', 'time = "1"', "warning_s = 40")
    drill.experiment(nodes=2, steps=321)
    drill.submit()
    assert drill.until_over(300).state == DONE
    assert drill.state.attempts > 1
    assert went_on(drill).step > 0
    drill.nothing_left()


def test_a_more_urgent_job_takes_the_nodes_and_gives_them_back(drill: Drill) -> None:
    drill.experiment(nodes=8, steps=41)
    drill.submit()
    drill.until_saved(2)
    whole = ["--partition=urgent", "--nodes=8", "--exclusive"]
    drill.cluster.run("sbatch", *whole, "--output=/dev/null", "--wrap=sleep 1")
    until(lambda: drill.state.attempts == 2, 120, "the second start")
    assert drill.until_over(120).state == DONE
    assert went_on(drill).generation >= 1
    drill.nothing_left()


@pytest.mark.long
def test_a_node_that_fails_is_replaced(drill: Drill) -> None:
    drill.experiment(nodes=4, steps=41)
    drill.submit()
    drill.until_saved(2)
    failed = drill.start(7).node
    drill.cluster.kill_node(failed)
    try:
        until(lambda: drill.state.attempts == 2, 180, "the second start")
        assert drill.until_over(120).state == DONE
        assert went_on(drill).generation >= 0
        assert failed not in {drill.start(rank).node for rank in range(8)}
        drill.nothing_left()
    finally:
        drill.cluster.restart_node(failed)


def test_a_launcher_that_cannot_start_fails_the_run_in_its_own_words(drill: Drill) -> None:
    hosts = drill.base / "hosts"
    drill.site(f'scratch = "{drill.base / "scratch"}"', f'launcher_args = ["--hostfile", "{hosts}"]')
    drill.experiment(nodes=2, steps=5, slow=False)
    assert drill.submit("--wait").returncode == ExitCode.RUNS_FAILED
    assert drill.state.state == FAILED
    assert "gave up before any rank began" in str(drill.state.reason)
    assert "hosts" in str(drill.state.reason)
    drill.site(f'scratch = "{drill.base / "scratch"}"')
    corrected = drill.submit("--retry", "--wait")
    assert corrected.returncode == ExitCode.OK, corrected.stdout + corrected.stderr


def test_a_rank_killed_in_mid_save_is_named(drill: Drill) -> None:
    slow_save = '[[faults]]\nrank = 0\nat = "commit"\naction = "sleep"\nseconds = 2.0\n'
    drill.experiment(nodes=4, steps=7, slow=False, more=slow_save)
    drill.submit()
    drill.until_saved(2)
    os.kill(drill.start(5).pid, signal.SIGKILL)
    state = drill.until_over(60)
    assert state.state == FAILED
    if state.cause == "SIGKILL":
        assert (state.rank, state.node) == (5, "node3")
    else:  # another rank noticed before the launcher did, and only that one is named by it
        assert state.cause == "vanished"
        assert re.search(r"saw its connection break; ranks without a closing line: .*\b5\b", str(state.reason))
    drill.nothing_left()
    drill.completes("--retry")


def test_a_killed_driver_takes_its_ranks_with_it(drill: Drill) -> None:
    drill.experiment(nodes=4, steps=21)
    drill.submit()
    drill.until_saved()
    assert drill.state.driver_pid is not None
    psutil.Process(drill.state.driver_pid).kill()
    drill.nothing_left(limit_s=10)
    state = drill.until_over(60)
    assert (state.state, state.cause) == (INTERRUPTED, "vanished")
    drill.completes()


def in_node(cluster: Cluster, node: str, script: str) -> None:
    """Run a command where the node's own file systems are seen."""
    inside = cluster.processes()[node][0].pid
    subprocess.run(["nsenter", "--mount", f"--target={inside}", "sh", "-c", script], capture_output=True, check=False)


def left_on(drill: Drill, nodes: set[str]) -> dict[str, str]:
    """What lies in the site's folder on each node's own disk, where anything does."""
    found = {}
    for node in nodes:
        in_node(drill.cluster, node, f"ls -A /dev/shm/drill > {drill.base / node}")
        found[node] = (drill.base / node).read_text()
    assert len(found) == 4, "the drill is of four nodes"
    return {node: text for node, text in found.items() if text}


@pytest.mark.parametrize("strategy", ["replicated", "changed_only"])
def test_every_node_writes_and_reads_its_own_disk(drill: Drill, strategy: str) -> None:
    drill.site('scratch = "/dev/shm/drill"', "scratch_shared = false")
    drill.experiment(nodes=4, steps=11, slow=False, keep=1)
    spec = drill.base / "drill.toml"
    spec.write_text(spec.read_text().replace("single_writer", strategy))
    done = drill.submit("--wait")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    tables = collect([drill.campaign.paths.path])
    assert tables.left_out.height == 0, tables.left_out.to_dicts()
    (law,) = tables.laws.filter(pl.col("law") == READBACK).to_dicts()
    assert law["verdict"] == ("kept" if strategy == "changed_only" else "not_measured"), law
    assert tables.reads["rank"].unique().sort().to_list() == [0, 2, 4, 6], "the first rank of each node"
    assert not left_on(drill, {drill.start(rank).node for rank in range(8)})


def test_a_restart_from_a_disk_that_others_cannot_reach_is_refused_and_leaves_nothing(drill: Drill) -> None:
    drill.site('scratch = "/dev/shm/drill"', "scratch_shared = false")
    drill.experiment(nodes=4, steps=5, slow=False, more="[settings.restart]\nstop = 2\n")
    assert drill.submit("--wait").returncode == ExitCode.RUNS_FAILED
    assert "ranks 2, 3, 4, 5, 6, 7 on " in str(drill.state.reason)
    assert "cannot reach generation 0" in str(drill.state.reason)
    assert not left_on(drill, {drill.start(rank).node for rank in range(8)})
    assert not drill.run_dir.leg("cleanup").path.exists()


def test_a_scratch_that_fills_up_in_mid_run_fails_the_run_and_says_so(drill: Drill) -> None:
    drill.site('scratch = "/dev/shm/drill"', "scratch_shared = false")
    drill.experiment(nodes=2, steps=31)
    drill.submit()
    until(lambda: bool(drill.records(Start)) and len(drill.records(Save)) > 0, 60, "a save on a node's own disk")
    writers = drill.start(0).node  # any of the eight: others may still be freed from the job before
    in_node(drill.cluster, writers, "head -c 100G /dev/zero > /dev/shm/filler")
    state = drill.until_over(120)  # the other nodes' disks are cleared too
    in_node(drill.cluster, writers, "rm /dev/shm/filler")
    assert (state.state, state.rank) == (FAILED, 0)
    assert "No space left on device" in str(state.reason)
    drill.nothing_left()
    drill.completes("--retry")


def test_checkpoints_on_nodes_that_were_left_are_refused_by_name(drill: Drill) -> None:
    drill.site('scratch = "/dev/shm/drill"', "scratch_shared = false")
    drill.experiment(nodes=2, steps=41)
    drill.submit()
    until(lambda: len(drill.records(Save)) > 0, 60, "a save on the nodes' own disks")
    drill.cluster.run("scancel", "--signal=USR2", "--batch", drill.job_id)
    until(lambda: drill.state.state == QUEUED, 60, "the requeue")
    left = ",".join(sorted({drill.start(rank).node for rank in range(4)}))
    drill.cluster.run("scontrol", "update", f"JobId={drill.job_id}", f"ExcNodeList={left}")
    state = drill.until_over(120)
    assert state.state == FAILED
    assert "checkpoints on a node's own disk stay on the nodes that wrote them" in str(state.reason)
    drill.completes("--retry")


def test_a_refused_submission_says_slurms_words_and_names_the_script(drill: Drill) -> None:
    drill.site(f'scratch = "{drill.base / "scratch"}"', 'partition = "nowhere"')
    drill.experiment(nodes=1, steps=3, slow=False)
    refused = drill.submit()
    assert refused.returncode == ExitCode.REFUSED
    assert "invalid partition specified: nowhere" in refused.stderr
    assert str(drill.run_dir.script) in refused.stderr


def jobs_of(cluster: Cluster) -> list[int]:
    """Numbers of all jobs that Slurm still tells of."""
    return [int(job) for job in cluster.run("squeue", "--noheader", "--states=all", "--format=%i").stdout.split()]


def test_two_shells_at_once_submit_each_run_once(drill: Drill) -> None:
    drill.experiment(nodes=1, steps=3, slow=False)
    environment = {**os.environ, "SLURM_CONF": str(drill.cluster.conf)}
    before = max(jobs_of(drill.cluster), default=0)
    command = [sys.executable, "-m", "jobs", "submit", "drill.toml", "--site", "site.toml", "--repeats", "4"]
    environment |= {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    both = [
        subprocess.Popen(command, cwd=drill.base, env=environment, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    codes = sorted(process.wait(60) for process in both)
    assert codes in ([ExitCode.OK, ExitCode.OK], [ExitCode.OK, ExitCode.REFUSED])
    assert len([job for job in jobs_of(drill.cluster) if job > before]) == 4
    assert len(drill.campaign.ledger.runs) == 4
    drill.completes()
    assert {state.state for state in drill.campaign.states().values()} == {DONE}


def test_a_cluster_without_accounts_is_enough(tmp_path: Path) -> None:
    cluster = Cluster(root("bare"), nodes=2, accounting=False)
    try:
        drill = Drill(tmp_path, start(cluster))
        drill.experiment(nodes=2, steps=21)
        drill.submit()
        drill.until_saved()
        drill.until(lambda: drill.state.driver_pid is not None, 10, "the driver")
        psutil.Process(drill.state.driver_pid).kill()
        assert drill.until_over(60).state == INTERRUPTED
        assert "nothing accounts for it" in str(drill.state.reason)
        drill.completes()
    finally:
        remove(cluster)


@pytest.mark.long
def test_ranks_started_by_srun(drill: Drill) -> None:
    lines = ('launcher = "srun"', 'launcher_args = ["--mpi=pmix"]')
    drill.site(f'scratch = "{drill.base / "scratch"}"', *lines)
    drill.experiment(nodes=4, steps=5, slow=False)
    done = drill.submit("--wait")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    assert [drill.start(rank).node for rank in range(8)] == [f"node{1 + rank // 2}" for rank in range(8)]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.sh")), ids=lambda path: path.stem)
def test_slurm_takes_the_golden_scripts_but_for_what_their_sites_name(drill: Drill, path: Path) -> None:
    text = path.read_text()
    if "#SBATCH" not in text:
        pytest.skip("no script for Slurm")
    script = drill.base / "job.sh"
    script.write_text(re.sub(r"(?m)^#SBATCH --(account|qos|constraint|gres|gpus-per-node|partition)=.*\n", "", text))
    said = drill.cluster.run("sbatch", "--test-only", str(script))
    assert said.returncode == 0, said.stderr


@pytest.mark.long
def test_twenty_submissions_in_a_row_start(drill: Drill) -> None:
    drill.experiment(nodes=8, steps=3, slow=False)
    times = []
    for _ in range(20):
        began = time.time()
        done = drill.submit("--wait", "--new")
        assert done.returncode == ExitCode.OK, done.stdout + done.stderr
        times.append(drill.state.started - began if drill.state.started else 0.0)
    assert len(times) == 20
    assert drill.state.state != RUNNING
