"""`python -m jobs`: submit, status, resume, cancel, collect. Reads the command line and says how it went.

Errors are one sentence on standard error; exit codes are those of `hpcckpt.errors`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from hpcckpt.errors import ExitCode, HpcCkptError, SiteError, SpecError, SubmitError
from hpcckpt.rundir import FAILED, CampaignDir
from jobs import batch, campaign, identity, preflight, reconcile, slurm, spec, submission
from jobs import plan as plans
from jobs import site as sites
from jobs.batch import Batch
from jobs.campaign import Campaign
from jobs.lock import Lock, held
from jobs.plan import Plan
from jobs.progress import Plain, outcome, report
from jobs.site import Site
from jobs.status import Status, skipped_lines
from jobs.submission import Submission

WATCH_S = 5.0
LETTING_GO_S = 90.0
"""A submitter that was asked to stop may be in the middle of a question to Slurm."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    options = parser().parse_args(arguments)
    try:
        code: int = options.command(options)
        sys.stdout.flush()
        return code
    except HpcCkptError as error:
        print(f"{options.prog}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # whoever read the output has seen enough
        _silence()
        return ExitCode.OK
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"{options.prog}: {where}{error.strerror or error}", file=sys.stderr)
        _silence()
        return ExitCode.REFUSED if options.command is submit else ExitCode.BAD_SPEC


def _silence() -> None:
    """What is still in standard output's buffer cannot be written; Python would say so at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m jobs", description="Submit and watch campaigns.")
    top.set_defaults(prog=top.prog)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    _submit_parser(commands.add_parser("submit", help="begin a campaign of an experiment, or go on with it"))
    for name, command, text in (
        ("status", status, "how a campaign stands"),
        ("resume", resume, "go on with a campaign: what is done is skipped"),
        ("cancel", cancel, "stop a campaign"),
        ("collect", collect, "read a campaign's runs into tables (Parquet)"),
    ):
        sub = commands.add_parser(name, help=text)
        sub.set_defaults(command=command)
        sub.add_argument("campaign", nargs="?", help="its name or directory; the newest when left out")
        _runs_option(sub)
        if name == "status":
            sub.add_argument("--json", action="store_true")
            sub.add_argument("--watch", action="store_true", help="again and again, until everything is over")
        if name == "collect":
            sub.add_argument("--out", type=Path, metavar="DIR", help="where the tables are written")
        if name == "resume":
            _going_options(sub)
    return top


def _runs_option(sub: argparse.ArgumentParser) -> None:
    default = Path(os.environ.get("HPCCKPT_RUNS") or "runs")
    where = "where campaigns are kept; default: $HPCCKPT_RUNS, else runs"
    sub.add_argument("--runs", type=Path, default=default, metavar="DIR", help=where)


def _going_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--retry", action="store_true", help="repeat failed runs too")
    sub.add_argument("--wait", action="store_true", help="stay until everything is over, and show progress")


    sub.add_argument("--max-queued", type=int, metavar="N", help="on Slurm: so many jobs at once, not more")


def _submit_parser(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(command=submit)
    sub.add_argument("experiment", help="a name in jobs/experiments, or a TOML file")
    sub.add_argument("--nodes", type=int, metavar="N", help="the largest number of nodes")
    sub.add_argument("--site", help="a name in jobs/sites, or a TOML file")
    sub.add_argument("--ranks-per-node", type=int, metavar="R")
    sub.add_argument("--scratch", metavar="DIR", help="where checkpoints are written, in place of the site's")
    sub.add_argument("--node-local", action="store_true", help="write checkpoints to the nodes' own disks")
    sub.add_argument("--repeats", type=int, metavar="K")
    for axis in ("model", "framework", "strategy", "format"):
        sub.add_argument(f"--{axis}", nargs="+", metavar=axis[0].upper())
    sub.add_argument("--data", metavar="DIR", help="directory of CIFAR-10's own files")
    sub.add_argument("--tracer", help="I/O tracer, in place of the best that is there")
    sub.add_argument("--darshan-lib", metavar="FILE", help="the Darshan library to preload")
    sub.add_argument("--dry-run", action="store_true", help="print the exact scripts and write nothing")
    sub.add_argument("--new", action="store_true", help="begin another campaign, whatever there is already")
    _going_options(sub)
    _runs_option(sub)


def submit(options: argparse.Namespace) -> int:
    """Begin or continue the campaign that the options describe."""
    _check_limit(options)
    plan = _plan(options)
    path, exists = campaign.place(plan, options.runs, options.new)
    if options.dry_run:
        return _dry_run(plan, path, exists, options.retry)
    return _go(plan, path, exists, options)


def _check_limit(options: argparse.Namespace) -> None:
    if options.max_queued is not None and options.max_queued < 1:
        raise SpecError(f"--max-queued {options.max_queued}: must be at least 1")


def _plan(options: argparse.Namespace) -> Plan:
    site = sites.choose(options.site)
    changes: dict[str, Any] = {"darshan_lib": options.darshan_lib} if options.darshan_lib else {}
    site = msgspec.structs.replace(site, **changes)
    file, experiment = spec.load_experiment(options.experiment)
    axes = {axis: value for axis in spec.PLUGINS if (value := getattr(options, axis))}
    request = plans.Request(options.nodes, options.ranks_per_node, options.repeats, axes, options.data)
    resolved = plans.resolve(experiment, site, request)
    try:
        spec.check_values(resolved.axes)
    except SpecError as error:
        raise SpecError(f"command line: {error}") from error
    if options.node_local:
        site = _on_nodes(site, options.scratch)
    scratch = _scratch(site, options.scratch)
    return plans.make(resolved, file, site, scratch, identity.tracer_name(site, options.tracer))


def _on_nodes(site: Site, scratch: str | None) -> Site:
    """The site with its nodes' own disks as scratch."""
    if scratch is not None:
        raise SpecError("--node-local: the site says where; leave --scratch out")
    if site.node_local is None:
        raise SiteError(f"site {site.name}: key 'node_local' is missing, and --node-local needs it")
    return msgspec.structs.replace(site, scratch=site.node_local, scratch_shared=False)


def _scratch(site: Site, option: str | None) -> Path:
    """The directory of the checkpoints; what is wrong with the option is said of the option."""
    if option is not None and not option.strip():
        raise SpecError("--scratch: needs a directory")
    if option is not None and "$" in os.path.expandvars(option):
        raise SpecError(f"--scratch {option}: holds a variable that is not set")
    return sites.scratch_of(site, option)


def _dry_run(plan: Plan, path: Path, exists: bool, retry: bool) -> int:
    """Print the scripts of the runs that would be submitted."""
    pending = set(Campaign(path).pending(retry)) if exists else {run.run_id for run in plan.runs}
    running = Campaign(path).driven() if exists else {}
    for state in running.values():
        print(f"1 run still runs under driver {state.driver_pid}", file=sys.stderr)
    if not pending and not running:
        print(f"nothing to do: campaign {path.name} is complete; --new begins another", file=sys.stderr)
    for job in campaign.jobs_of(plan, path):
        if job.run.run_id in pending:
            run_dir = CampaignDir(path.absolute()).run(job.run.run_id)
            print(f"### {run_dir.script}\n{submission.script(job, plan.site, run_dir)}")
    return ExitCode.OK


def _go(plan: Plan, path: Path, exists: bool, options: argparse.Namespace) -> int:
    """Take the campaign's lock and do what is left, here or in a process of its own."""
    if not exists or Campaign(path).pending(options.retry):
        _look_ahead(plan)
    lock = Lock(CampaignDir(path).lock)
    if not lock.take():
        raise _busy(path.name, lock)
    try:
        owner = campaign.create(plan, path)
        if plan.site.executor == "slurm":
            return _go_slurm(plan, owner, exists, options)
        pending = owner.pending(options.retry)
        running = _introduce(plan, owner, exists, pending, options.retry)
        if not pending and not (running and options.wait):
            return ExitCode.OK if running else submission.result(owner)
        if options.wait:
            return _work(owner, plan.site, pending)
        return _in_background(owner, plan.site, pending, lock)
    finally:
        lock.release()


def _look_ahead(plan: Plan) -> None:
    """Refuse before anything is written what can be known here."""
    if plan.site.executor == "local":
        preflight.check(plan.scratch, plan.runs)
    elif reason := slurm.missing(plan.site):
        raise SubmitError(f"site {plan.site.name}: {reason}")


def _go_slurm(plan: Plan, owner: Campaign, exists: bool, options: argparse.Namespace) -> int:
    """Give what is left to Slurm; with --wait, stay until it is done."""
    most = options.max_queued if options.max_queued is not None else plan.site.max_queued
    view = reconcile.settle_when_clear(owner, plan.site) if exists else reconcile.View()
    if not view.answered:
        raise SubmitError(f"campaign {owner.name}: squeue does not answer, so its jobs are not known; try again")
    if view.orphans:  # they wait for an input that nobody will write any more
        slurm.cancel(plan.site, [job.job_id for job in view.orphans.values()])
    pending = owner.pending(options.retry, view.queued)
    has = len(view.queued)
    if has:
        print(f"{has} run{'' if has == 1 else 's'} of this campaign in Slurm's hands already")
    _introduce(plan, owner, exists, pending, options.retry, busy=has > 0)
    if not pending and not (has and options.wait):
        return ExitCode.OK if has else submission.result(owner)
    shown = report() if options.wait else Plain()
    left = Batch(owner, plan.site, pending, shown, most)
    try:
        code = left.follow() if options.wait else _submit_and_leave(left)
    finally:
        shown.close()
    print("\n".join(Status(owner).lines()[:2]))
    return code


def _submit_and_leave(left: Batch) -> int:
    given = left.submit()
    print(f"{given} job{'' if given == 1 else 's'} submitted; watch by: python -m jobs status --watch")
    if left.pending:
        print(f"{len(left.pending)} runs held back by the limit of {left.most}: 'python -m jobs resume' goes on")
    return ExitCode.OK


def _busy(name: str, lock: Lock) -> SubmitError:
    who = lock.holder()
    where = f"process {who.pid} on {who.host}" if who else "another process"
    return SubmitError(f"campaign {name} is being submitted by {where}; watch it by 'python -m jobs status'")


def _introduce(
    plan: Plan, owner: Campaign, exists: bool, pending: list[str], retry: bool, busy: bool = False
) -> bool:
    """Say what will be done, and what won't and why; whether something runs already."""
    states = owner.states()
    failed = {run_id: state for run_id, state in states.items() if state.state == FAILED and not retry}
    how = "continuing" if exists else "new"
    print(f"{how} campaign {owner.name}: {len(pending)} of {len(states)} runs to do")
    if plan.site.virtual_nodes:
        print("one machine plays all nodes (virtual nodes): this shows mechanisms, not scaling")
    for line in skipped_lines(plan.skipped, brief=True):
        print(line)
    for run_id, state in failed.items():
        print(f"not repeated without --retry: {run_id}: {outcome(state)}")
    broken = [state for state in states.values() if state.state == campaign.UNREADABLE]
    for state in broken:
        print(f"left out: {state.reason}")
    running = owner.driven()
    for state in running.values():
        print(f"1 run still runs under driver {state.driver_pid}")
    if not pending and not running and not busy:
        counted = [f"{len(failed)} failed"] * bool(failed) + [f"{len(broken)} unreadable"] * bool(broken)
        print(f"{', '.join(counted) or 'everything is done'}; --new begins another campaign")
    sys.stdout.flush()
    return bool(running)


def _work(owner: Campaign, site: Site, pending: list[str]) -> int:
    shown = report()
    try:
        code = Submission(owner, site, pending, shown).run()
    finally:
        shown.close()
    print("\n".join(Status(owner).lines()[:2]))
    if code == ExitCode.INTERRUPTED:
        print("interrupted; submit again to go on")
    return code


def _in_background(owner: Campaign, site: Site, pending: list[str], lock: Lock) -> int:
    if not submission.detach(owner.paths.log):
        print("watch it by: python -m jobs status")
        print(f"its log is {owner.paths.log}; stop it by: python -m jobs cancel")
        return ExitCode.OK
    lock.sign()
    code = ExitCode.UNEXPECTED
    try:
        code = Submission(owner, site, pending, Plain()).run()
    except (HpcCkptError, OSError) as error:
        print(error, file=sys.stderr)
    finally:
        sys.stdout.flush()
        os._exit(code)  # the parent's own clean-up is not this process's


def resume(options: argparse.Namespace) -> int:
    """Go on with a campaign that exists, as its ledger describes it."""
    _check_limit(options)
    owner = _find(options)
    ledger = owner.ledger
    site = msgspec.convert(ledger.site, Site)
    file, scratch = Path(ledger.experiment_file), Path(ledger.scratch)
    plan = plans.make(ledger.experiment, file, site, scratch, ledger.tracer)
    if {run.run_id for run in plan.runs} != set(ledger.runs):
        changed = campaign.difference(owner, plan)
        raise SpecError(f"campaign {owner.name} was begun with {changed}; submit it anew")
    if owner.pending(options.retry):
        _need_tracer(owner.name, site, ledger.tracer)
    return _go(plan, owner.paths.path, True, options)


def _need_tracer(name: str, site: Site, tracer: str) -> None:
    """Refuse a campaign whose tracer is gone before any of its runs fails for it."""
    try:
        identity.tracer_name(site, tracer)
    except SiteError as error:
        begun = f" ({site.darshan_lib})" if site.darshan_lib else ""
        raise SiteError(f"campaign {name} was begun with tracer {tracer}{begun}: {error}") from error


def status(options: argparse.Namespace) -> int:
    """Print how a campaign stands."""
    owner = _find(options)
    while True:
        found = _status_now(owner)
        if options.watch and sys.stdout.isatty() and not options.json:
            print("\x1b[H\x1b[2J", end="")  # the terminal starts anew, so that the table stands still
        print(found.json() if options.json else "\n".join(found.lines()), flush=True)
        if not options.watch or found.over:
            return ExitCode.OK
        time.sleep(WATCH_S)


def _status_now(owner: Campaign) -> Status:
    """The states, once Slurm was asked about jobs that may have vanished."""
    site = msgspec.convert(owner.ledger.site, Site)
    if site.executor != "slurm":
        return Status(owner)
    view = reconcile.look(owner, site)
    if view.lost or any(reconcile.handed(owner.run_dir(run_id)) is None for run_id in view.queued):
        _mark(owner, site, view)
    return Status(owner, batch.outcome_lines(view, owner.states()), view.answered)


def cancel(options: argparse.Namespace) -> int:
    """Stop what runs and mark what waits."""
    owner = _find(options)
    site = msgspec.convert(owner.ledger.site, Site)
    if site.executor == "slurm":
        _cancel_slurm(owner, site)
    else:
        submission.cancel(owner, Plain())
    print("\n".join(Status(owner).lines()[:2]))
    return ExitCode.OK


def _mark(owner: Campaign, site: Site, view: reconcile.View) -> None:
    """Write down what was seen, where nobody else is at it and the disk takes it: to look must always be possible."""
    try:
        with held(Lock(owner.paths.lock)) as taken:
            if taken:
                reconcile.mark(owner, site, view)
    except (SubmitError, OSError) as error:
        print(f"what Slurm says could not be noted: {error}", file=sys.stderr)


def _cancel_slurm(owner: Campaign, site: Site) -> None:
    lock = Lock(owner.paths.lock)
    who = lock.holder()
    if who is not None:
        submission.stop_submitter(who, Plain())
    if not lock.take_within(LETTING_GO_S):
        raise _busy(owner.name, lock)
    try:
        batch.cancel(owner, site, Plain())
    finally:
        lock.release()


def collect(options: argparse.Namespace) -> int:
    """Hand the campaign to the analysis, which reads it in a process of its own."""
    path = _find(options).paths.path
    out = options.out or path / "tables"
    command = [sys.executable, "-m", "analysis", "collect", str(path), "--out", str(out)]
    return subprocess.run(command, check=False).returncode


def _find(options: argparse.Namespace) -> Campaign:
    if options.campaign is None:
        return campaign.newest(options.runs)
    for path in (options.runs / options.campaign, Path(options.campaign)):
        if (path / "campaign.json").exists():
            return Campaign(path)
    raise SpecError(f"no campaign {options.campaign!r} in {options.runs}; left out, it is the newest")


if __name__ == "__main__":
    sys.exit(main())
