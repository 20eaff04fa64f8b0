"""Campaigns: expansion, names and places, what is left to do, locks, and guesses of what is left."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcckpt.errors import SpecError, SubmitError
from hpcckpt.experiment import Axes, Experiment, Fault, Job, Only, Settings, Size
from hpcckpt.rundir import DONE, FAILED, INTERRUPTED, QUEUED, RUNNING, State, read_json, write_json
from jobs import campaign, identity, plan, preflight, process, ranks
from jobs.campaign import Campaign
from jobs.lock import Lock, held
from jobs.plan import Plan, Request
from jobs.progress import Durations, duration
from jobs.site import Site, load

LOCAL = load("local")


@pytest.fixture(autouse=True)
def fixed_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher is asked: these tests are about directories."""
    monkeypatch.setattr(identity, "of_site", lambda *_: {"site": "local", "launcher": "mpirun 1"})


def experiment(**changes: Any) -> Experiment:
    axes = Axes(framework=["numpy_toy"], strategy=["single_writer"], format=["npz_plain"], nodes=[1, 2, 4])
    return Experiment(name="toy", question="q", axes=axes, repeats=2, **changes)


def planned(tmp_path: Path, request: Request | None = None, base: Experiment | None = None) -> Plan:
    resolved = plan.resolve(base or experiment(), LOCAL, request or Request())
    return plan.make(resolved, Path("toy.toml"), LOCAL, tmp_path / "scratch", "none")


def created(tmp_path: Path, **kwargs: Any) -> Campaign:
    made = planned(tmp_path, **kwargs)
    path, _ = campaign.place(made, tmp_path / "runs", new=True)
    return campaign.create(made, path)


def finish(owner: Campaign, state: str = DONE) -> None:
    for run_id in owner.ledger.runs:
        write_json(owner.run_dir(run_id).state, State(state=state, started=1.0, ended=3.0))


def test_the_command_line_changes_the_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar").mkdir()
    monkeypatch.chdir(tmp_path)
    request = Request(nodes=8, ranks_per_node=2, repeats=3, axes={"model": ["resnet50"]}, data="cifar")
    resolved = plan.resolve(experiment(), LOCAL, request)
    assert resolved.axes.nodes == [1, 2, 4, 8]
    assert (resolved.axes.ranks_per_node, resolved.axes.model, resolved.repeats) == ([2], ["resnet50"], 3)
    assert resolved.settings.data == str(Path("cifar").absolute())


@pytest.mark.parametrize("data", ["", "no/where", "file"])
def test_a_data_directory_that_is_none_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=f"--data: '{data}' is no directory"):
        plan.resolve(experiment(), LOCAL, Request(data=data))
    with pytest.raises(SpecError, match=f"toy: settings.data: '{data}' is no directory"):
        plan.resolve(experiment(settings=Settings(data=data)), LOCAL, Request())


def test_a_relative_data_directory_of_a_cluster_is_left_to_the_job() -> None:
    cluster = msgspec.structs.replace(LOCAL, executor="slurm")
    relative, absolute = (experiment(settings=Settings(data=data)) for data in ("no/where", "/no/where"))
    assert plan.resolve(relative, cluster, Request()).settings.data == "no/where"
    with pytest.raises(SpecError, match="'/no/where' is no directory"):
        plan.resolve(absolute, cluster, Request())


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(nodes=1_000_001), "command line: axes.nodes: 1000001 must be at most 1000000"),
        (Request(ranks_per_node=1_000_001), "command line: axes.ranks_per_node: 1000001 must be at most 1000000"),
        (Request(nodes=1), r"command line: faults\[0\]\.rank: 1 must be at least 0 and less than 1"),
    ],
)
def test_what_the_command_line_makes_of_an_experiment_is_checked(request_: Request, message: str) -> None:
    axes = msgspec.structs.replace(experiment().axes, nodes=[2])
    fault = Fault(rank=1, at="step", action="kill")
    sound = msgspec.structs.replace(experiment(), axes=axes, faults=[fault])
    with pytest.raises(SpecError, match=message):
        plan.resolve(sound, LOCAL, request_)


def test_a_site_has_a_largest_number_of_nodes() -> None:
    small = msgspec.structs.replace(LOCAL, max_nodes=2)
    with pytest.raises(SpecError, match="4 nodes: site local has at most 2"):
        plan.resolve(experiment(), small, Request())


def test_sizes_that_were_not_chosen_do_not_change_the_name(tmp_path: Path) -> None:
    other = experiment(sizes={"full": Size(settings={"steps": 99})})
    assert planned(tmp_path).name == planned(tmp_path, base=other).name
    mine = experiment(sizes={"small": Size(settings={"steps": 99})})
    assert planned(tmp_path).name != planned(tmp_path, base=mine).name


def test_the_name_tells_experiment_site_and_nodes(tmp_path: Path) -> None:
    name = planned(tmp_path).name
    assert name.startswith("toy-local-")
    assert len(name) == len("toy-local-") + 8
    assert name != planned(tmp_path, Request(nodes=8)).name


def test_the_order_is_shuffled_within_repeats_and_the_same_again(tmp_path: Path) -> None:
    first, second = planned(tmp_path).runs, planned(tmp_path).runs
    assert first == second
    assert [run.repeat for run in first] == [1, 1, 1, 2, 2, 2]


def test_what_cannot_be_combined_is_left_out_with_its_reason(tmp_path: Path) -> None:
    made = planned(tmp_path, Request(axes={"format": ["npz_plain", "torch_zip"]}))
    assert {run.point.format for run in made.runs} == {"npz_plain"}
    assert [s.format for s in made.skipped] == ["torch_zip"]
    assert "numpy_toy" in made.skipped[0].reason
    with pytest.raises(SpecError, match="no combination is possible"):
        planned(tmp_path, Request(axes={"format": ["torch_zip"]}))


def test_an_identity_holds_the_runs_own_coverage_and_versions(tmp_path: Path) -> None:
    run = planned(tmp_path).runs[0]
    assert run.identity["expected_coverage"].count(",") == 1
    assert run.identity["site"] == "local"


def test_only_rules_hold_across_frameworks(tmp_path: Path) -> None:
    ruled = experiment(only=[Only(when={"durable": True}, nodes="ends")])
    made = planned(tmp_path, Request(axes={"framework": ["numpy_toy"]}), ruled)
    assert len(made.runs) == 6


def test_a_campaign_on_disk_has_every_run(tmp_path: Path) -> None:
    owner = created(tmp_path)
    job: Job = read_json(owner.run_dir(owner.ledger.runs[0]).run, Job)
    assert Path(job.scratch) == tmp_path / "scratch" / campaign.scratch_name(owner.paths.path) / job.run.run_id
    assert {state.state for state in owner.states().values()} == {QUEUED}
    assert owner.ledger.order_seed == job.run.settings.seed


def test_submitting_again_continues_what_is_unfinished(tmp_path: Path) -> None:
    owner = created(tmp_path)
    assert campaign.place(planned(tmp_path), tmp_path / "runs", new=False) == (owner.paths.path, True)


def test_a_finished_campaign_is_found_and_new_begins_another(tmp_path: Path) -> None:
    owner = created(tmp_path)
    finish(owner)
    assert campaign.place(planned(tmp_path), tmp_path / "runs", new=False) == (owner.paths.path, True)
    path, exists = campaign.place(planned(tmp_path), tmp_path / "runs", new=True)
    assert (path.name, exists) == (f"{owner.name}-2", False)


def test_other_versions_make_another_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = created(tmp_path)
    monkeypatch.setattr(identity, "of_site", lambda *_: {"site": "local", "launcher": "mpirun 2"})
    path, exists = campaign.place(planned(tmp_path), tmp_path / "runs", new=False)
    assert (path.name, exists) == (f"{owner.name}-2", False)
    assert "launcher 'mpirun 1', now 'mpirun 2'" in campaign.difference(owner, planned(tmp_path))


def test_what_is_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "closed", lambda *_: True)
    owner = created(tmp_path)
    pid, host, started = process.myself()
    mine = {"driver_pid": pid, "driver_host": host, "driver_start": started}
    states = [
        State(state=DONE), State(state=FAILED), State(state=INTERRUPTED), State(state=QUEUED),
        State(state=RUNNING, **mine), State(state=RUNNING, **{**mine, "driver_start": started - 100}),
    ]  # fmt: skip
    for run_id, state in zip(owner.ledger.runs, states, strict=True):
        write_json(owner.run_dir(run_id).state, state)
    ids = owner.ledger.runs
    assert owner.pending(retry=False) == [ids[2], ids[3], ids[5]], "a run whose driver lives is left to it"
    assert owner.pending(retry=True) == [ids[1], ids[2], ids[3], ids[5]]
    assert not owner.finished()


def test_a_driver_on_another_host_counts_as_alive() -> None:
    assert process.lives(1, "elsewhere", 1.0)
    assert not process.lives(None, None, None)


def test_clearing_leaves_nothing_of_the_last_attempt(tmp_path: Path) -> None:
    owner = created(tmp_path)
    run_dir = owner.run_dir(owner.ledger.runs[0])
    job: Job = read_json(run_dir.run, Job)
    run_dir.leg("train").ranks.mkdir(parents=True)
    Path(job.scratch).mkdir(parents=True)
    run_dir.stop.touch()
    write_json(run_dir.state, State(state=FAILED, reason="x", rank=1, cause="y", attempts=2))
    campaign.clear(run_dir, job, msgspec.convert(job.site, Site))
    assert not run_dir.legs.exists()
    assert not run_dir.stop.exists()
    assert not Path(job.scratch).parent.exists()
    state = run_dir.read_state()
    assert (state.state, state.reason, state.rank, state.attempts) == (QUEUED, None, None, 2)


def test_the_newest_campaign_is_the_one_begun_last(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no campaign here"):
        campaign.newest(tmp_path / "runs")
    first, second = created(tmp_path), created(tmp_path)
    now = time.time()
    os.utime(first.paths.ledger, (now - 5, now - 5))
    assert campaign.newest(tmp_path / "runs").name == second.name


def test_a_lock_is_held_once_and_names_its_holder(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    with held(lock) as mine:
        assert mine
        assert not Lock(tmp_path / "lock").take()
        holder = Lock(tmp_path / "lock").holder()
        assert holder is not None
        assert holder.pid == os.getpid()
    with held(Lock(tmp_path / "lock")) as again:
        assert again


def test_a_look_at_scratch_leaves_nothing_behind(tmp_path: Path) -> None:
    preflight.check(tmp_path / "a" / "b", planned(tmp_path).runs)
    assert list(tmp_path.iterdir()) == []


def test_no_room_is_said_with_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "bytes_needed", lambda run: 1 << 60)
    with pytest.raises(SubmitError, match=rf"{1 << 60} bytes needed, \d+ bytes free"):
        preflight.check(tmp_path, planned(tmp_path).runs)


def test_a_scratch_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SubmitError, match=r"file: cannot be made \(File exists, EEXIST\)"):
        preflight.check(tmp_path / "file", planned(tmp_path).runs)


def test_what_is_left_is_guessed_from_what_was_measured(tmp_path: Path) -> None:
    by_nodes = {run.point.nodes: run for run in planned(tmp_path).runs}
    durations = Durations()
    assert durations.left(by_nodes.values()) is None
    durations.add(by_nodes[1], State(state=DONE, started=0.5, ended=10.5))
    durations.add(by_nodes[4], State(state=DONE, started=0.5, ended=40.5))
    assert durations.of(by_nodes[1]) == 10.0
    assert durations.left(by_nodes.values()) == 10.0 + 10.0 + 40.0, (
        "2 nodes are guessed from the nearest size"
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "not known yet"), (41.4, "41 s"), (185, "3 min 05 s"), (7440, "2 h 04 min")]
)
def test_durations_in_words(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_a_model_that_a_framework_refuses_is_skipped_with_its_reason() -> None:
    axes = {
        "framework": ["pytorch_tensor_parallel", "pytorch_ddp"],
        "model": ["small"],
        "strategy": ["sharded"],
        "format": ["torch_zip"],
        "nodes": [2],
    }
    experiment = Experiment(name="x", question="?", axes=msgspec.convert(axes, Axes), repeats=1)
    kept, skipped = plan._supported(experiment)
    assert kept == {("pytorch_ddp", "sharded", "torch_zip", "small")}
    assert [entry.reason for entry in skipped] == ["small has no attention whose heads the ranks could share out"]
