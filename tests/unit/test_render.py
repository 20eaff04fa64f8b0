"""Script texts: golden files per site and launcher, strictness, and the ranks' wrapper run for real.

Write the golden files anew by HPCCKPT_GOLDEN=write, and read what changed.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcckpt.errors import SiteError, SubmitError
from hpcckpt.experiment import Job, Run
from hpcckpt.rundir import RunDir
from jobs import render
from jobs import site as sites
from jobs.site import Site, load
from tests.support import make_run

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
RUN_DIR = RunDir("/runs/scaling-site-0/run")
CLUSTER = Site(
    name="cluster", executor="slurm", launcher="mpirun", size="full", scratch="/scratch/me",
    partition="batch", account="project1", qos="normal", gres="gpu:4", exclusive=True, time="02:00:00",
    modules=["gcc/13", "open mpi"], darshan_module="darshan/3.5",
    setup=["ulimit -c 0"], environment={"OMP_PROC_BIND": "false", "NOTE": "it's"},
    sbatch=["--mail-type=NONE"],
)  # fmt: skip
VARIABLES = {"PROJECT": "project1", "SCRATCH": "/scratch/me", "PSCRATCH": "/pscratch/me"}
SHIPPED = sorted(path.stem for path in sites.SITES.glob("*.toml"))


def shipped(name: str) -> Site:
    """A site of jobs/sites as a user sees it who has set the variables that it names."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in VARIABLES.items():
            patch.setenv(variable, value)
        return load(name)


SITES = {
    **{name: shipped(name) for name in SHIPPED},
    "cluster-mpirun": CLUSTER,
    "cluster-srun": msgspec.structs.replace(CLUSTER, launcher="srun"),
    "cluster-bare": Site(
        name="bare",
        executor="slurm",
        launcher="srun",
        size="full",
        scratch="/s",
        partition="p",
        concurrent_runs=True,
    ),
}


def job_of(site: Site, **changes: Any) -> Job:
    run = msgspec.structs.replace(make_run(nodes=8, ranks_per_node=2), run_id="run", **changes)
    return Job(
        run=run, campaign="scaling-site-0", site=msgspec.to_builtins(site), scratch="/scratch/run",
        virtual_nodes=site.virtual_nodes, tracer="none",
    )  # fmt: skip


def script(site: Site) -> str:
    programs, workdir = Path("/venv/bin"), Path("/home/me/work dir")
    text = render.job_script(job_of(site), site, RUN_DIR, "/venv/bin/python", programs, workdir)
    return text.replace(str(render.TEMPLATES.parent), "/SOURCE")


@pytest.mark.parametrize("name", SITES)
def test_scripts_are_the_golden_ones(name: str) -> None:
    text, path = script(SITES[name]), GOLDEN / f"{name}.sh"
    if os.environ.get("HPCCKPT_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.sh")), ids=lambda path: path.stem)
def test_golden_scripts_are_sound_shell(path: Path) -> None:
    assert subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False).stderr == ""


def test_equal_input_gives_equal_text() -> None:
    assert script(CLUSTER) == script(CLUSTER)


def test_a_key_that_the_site_lacks_is_named() -> None:
    site = msgspec.structs.replace(CLUSTER, partition=None, qos=None)
    with pytest.raises(SiteError, match=r"site cluster: key 'partition' is missing, and sbatch/mpirun"):
        script(site)


def test_a_launcher_without_a_template_is_named() -> None:
    with pytest.raises(SiteError, match=r"no template sbatch/aprun\.sh\.j2"):
        script(msgspec.structs.replace(CLUSTER, launcher="aprun"))


def test_the_time_limit_covers_all_legs() -> None:
    run: Run = job_of(CLUSTER).run
    assert render.limit_s(run) > len(run.legs) * run.settings.leg_limit_s


def test_the_script_ends_in_the_command_that_submitit_would_start(tmp_path: Path) -> None:
    from submitit import LocalExecutor

    run_dir = RunDir(tmp_path / "run")
    ours = render.driver_command("/venv/bin/python", run_dir)
    assert ours == LocalExecutor(run_dir.log, python="/venv/bin/python")._submitit_command_str
    assert script(CLUSTER).rstrip().endswith(f"exec {render.driver_command('/venv/bin/python', RUN_DIR)}")


def rank(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the wrapper of a rank whose program prints its environment."""
    run_dir = RunDir(tmp_path / "a run")
    leg = run_dir.leg("train")
    leg.path.mkdir(parents=True, exist_ok=True)
    traced = {"LOGS": "{log_dir}/x y:{log_dir}", "LD_PRELOAD": "", "PLAIN": "it's $HOME"}
    program = ["sh", "-c", 'printf "%s\\n" "$LOGS" "$PLAIN" "$SHARED" "$0" "$1"']
    leg.rank_script.write_text(render.rank_script(run_dir, leg, program, {"SHARED": "a b"}, traced))
    return subprocess.run(
        ["sh", str(leg.rank_script)],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID", "PMI_RANK"])
def test_a_rank_finds_its_number_and_log_directory(tmp_path: Path, variable: str) -> None:
    done = rank(tmp_path, **{variable: "12"})
    logs = tmp_path / "a run" / "legs" / "train" / "darshan" / "rank00012"
    assert done.stdout.splitlines() == [
        f"{logs}/x y:{logs}", "it's $HOME", "a b", str(tmp_path / "a run"), "train",
    ]  # fmt: skip
    assert logs.is_dir()


def test_mpiruns_rank_goes_before_that_of_slurms_own_step(tmp_path: Path) -> None:
    rank(tmp_path, OMPI_COMM_WORLD_RANK="5", SLURM_PROCID="0")
    assert [path.name for path in (tmp_path / "a run" / "legs" / "train" / "darshan").iterdir()] == [
        "rank00005"
    ]


def test_a_rank_without_a_number_says_so(tmp_path: Path) -> None:
    done = rank(tmp_path)
    assert done.returncode == 2
    assert "no rank in the environment" in done.stderr


def test_every_shipped_site_has_a_golden_script() -> None:
    assert set(SHIPPED) <= {path.stem for path in GOLDEN.glob("*.sh")}
    assert {"local", "slurm_local", "gpu_cluster"} <= set(SHIPPED)


def test_a_variable_that_a_site_names_and_nobody_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROJECT", raising=False)
    with pytest.raises(SiteError, match=r"gpu_cluster.toml: account: '\$PROJECT' holds a variable that is not set"):
        load("gpu_cluster")


def test_a_site_needs_a_partition_or_a_qos() -> None:
    by_qos = msgspec.structs.replace(CLUSTER, partition=None)
    assert "--partition" not in script(by_qos)
    assert "--qos=normal" in script(by_qos)


def test_a_container_starts_the_rank_and_is_itself_not_traced(tmp_path: Path) -> None:
    log = tmp_path / "log"
    image = tmp_path / "run in image"
    image.write_text(f'#!/bin/sh\necho "outside: $TRACED, $*" >> {log}\nshift\nexec "$@"\n')
    image.chmod(0o755)
    program = ["sh", "-c", f'echo "inside: $TRACED" >> {log}']
    leg = RunDir(tmp_path).leg("train")
    text = render.rank_script(RunDir(tmp_path), leg, program, {}, {"TRACED": "yes"}, [str(image), "IMAGE"])
    wrapper = tmp_path / "rank.sh"
    wrapper.write_text(text)
    subprocess.run(["sh", str(wrapper)], env={**os.environ, "OMPI_COMM_WORLD_RANK": "0"}, check=True)
    outside, inside = log.read_text().splitlines()
    assert outside.startswith("outside: , IMAGE env TRACED=yes")
    assert inside == "inside: yes"


@pytest.mark.parametrize(
    ("framework", "python"),
    [("chainer_chainermn", "/old"), ("tensorflow_horovod", "/tf"), ("pytorch_ddp", "/usual")],
)
def test_each_framework_has_its_own_python_where_the_site_says_so(framework: str, python: str) -> None:
    pythons = {"chainer": "/old", "tensorflow_horovod": "/tf"}
    site = msgspec.structs.replace(CLUSTER, python="/usual", pythons=pythons)
    assert site.python_of(framework) == python
    assert sites.python_of(job_of(site).site, framework) == python


@pytest.mark.parametrize("odd", ['"', "'", "#", "%", "\\"])
def test_a_path_that_slurm_would_change_is_refused(odd: str) -> None:
    run_dir = RunDir(f"/runs/a{odd}j/run")
    with pytest.raises(SubmitError, match="cannot carry"):
        render.job_script(job_of(CLUSTER), CLUSTER, run_dir, "/venv/bin/python", None, Path("/"))


def test_a_path_with_blanks_is_one_option() -> None:
    run_dir = RunDir("/my runs/run")
    text = render.job_script(job_of(CLUSTER), CLUSTER, run_dir, "/venv/bin/python", None, Path("/"))
    assert '#SBATCH --output="/my runs/run/log/job.log"\n' in text
