"""What Slurm says of jobs, and how they are told to end: the only module that runs its commands.

One query for all jobs of a campaign, never one per job. `squeue` is asked first; `sacct` only about
jobs that it no longer knows, and only if it answers: many clusters keep no accounts. What a job means
for a run is decided in `reconcile`; submitting is `executor`'s.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jobs.private_slurm import where
from jobs.site import Site

TIMEOUT_S = 60.0
SEPARATOR = "\x1f"
"""Between the fields of a line: no path holds it."""
LEAKING = ("SBATCH_", "SLURM_")
"""Variables that change what sbatch does behind the script's back, or name the job that submits."""


@dataclass(frozen=True)
class Queued:
    """A job that Slurm still has."""

    job_id: str
    state: str
    """PENDING, RUNNING, COMPLETING ..."""
    reason: str
    """Why it waits."""
    script: str
    """The submitted file."""


def environment(site: Site, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The caller's environment for Slurm's commands: which cluster is meant, and nothing else of Slurm's."""
    kept = {key: value for key, value in inherited.items() if not key.startswith(LEAKING)}
    configuration = str(where.conf() or "") if site.private_slurm else inherited.get("SLURM_CONF", "")
    return kept | ({"SLURM_CONF": configuration} if configuration else {})


def missing(site: Site) -> str | None:
    """Why nothing can be submitted from here, None where it can."""
    if site.private_slurm and "SLURM_CONF" not in environment(site):
        return "no private Slurm runs here; start it by 'make slurm-up'"
    if shutil.which("sbatch") is None:
        return "no sbatch on PATH; submit on a login node of the cluster, or choose --site local"
    return None


def queue(site: Site) -> dict[str, Queued] | None:
    """All of this user's jobs that are not over, by number; None where Slurm does not answer."""
    fields = SEPARATOR.join(("%i", "%T", "%r", "%o"))
    said = _ask(site, ["squeue", "--noheader", f"--user={os.getuid()}", f"--format={fields}"])
    if said is None:
        return None
    rows = [line.strip().split(SEPARATOR) for line in said.splitlines() if line.count(SEPARATOR) == 3]
    return {job_id: Queued(job_id, state, reason, script) for job_id, state, reason, script in rows}


def accounts(site: Site, job_ids: Iterable[str]) -> dict[str, str]:
    """How jobs that are over ended, in Slurm's words; nothing where there is no accounting."""
    wanted = ",".join(job_ids)
    if not wanted:
        return {}
    columns = "--format=JobIDRaw,State,ExitCode,NodeList"
    command = ["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={wanted}", columns]
    rows = [line.split("|") for line in (_ask(site, command) or "").splitlines() if line.count("|") == 3]
    return {job_id: _ended(state, code, nodes) for job_id, state, code, nodes in rows}


def _ended(state: str, code: str, nodes: str) -> str:
    status, _, signal = code.partition(":")
    how = f", signal {signal}" if signal not in ("", "0") else f", exit status {status}"
    return f"{state}{how} on {nodes}"


def cancel(site: Site, job_ids: Iterable[str]) -> str | None:
    """End jobs; what Slurm objects to, None for nothing."""
    wanted = list(job_ids)
    if not wanted:
        return None
    done = _run(site, ["scancel", *wanted])
    return None if done is not None and done.returncode == 0 else _words(done)


def _words(done: subprocess.CompletedProcess[str] | None) -> str:
    return (done.stderr.strip() if done else "") or "Slurm does not answer"


def _ask(site: Site, command: list[str]) -> str | None:
    done = _run(site, command)
    return done.stdout if done is not None and done.returncode == 0 else None


def _run(site: Site, command: list[str]) -> subprocess.CompletedProcess[str] | None:
    options = {"capture_output": True, "text": True, "timeout": TIMEOUT_S, "check": False}
    try:
        return subprocess.run(command, env=environment(site), **options)  # type: ignore[call-overload, no-any-return]
    except (OSError, subprocess.TimeoutExpired):
        return None
