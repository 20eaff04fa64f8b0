"""`python -m jobs.private_slurm up|down|status`: a private Slurm cluster from the command line."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from hpcckpt.errors import ExitCode, HpcCkptError
from jobs.private_slurm.cluster import ALREADY, Cluster
from jobs.private_slurm.layout import Shape, default_root


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        cluster = Cluster(options.root, options.nodes, options.accounting, options.cpus)
        code = int(options.action(cluster))
        sys.stdout.flush()
        return code
    except HpcCkptError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED


def up(cluster: Cluster) -> int:
    """Its output can be given to the shell's `eval`: whatever is no command is a comment."""
    began = time.monotonic()
    done = cluster.up()
    took = "" if done == ALREADY else f" in {time.monotonic() - began:.1f} s"
    print(f"# private Slurm {done}{took}: {cluster.shape}, partitions main and urgent, at {cluster.layout.root}")
    print("# one machine plays all nodes: this shows mechanisms, not scaling")
    print(f"export SLURM_CONF={cluster.conf}")
    print(f"# stop it by: {cluster.command('down')}")
    return ExitCode.OK


def down(cluster: Cluster) -> int:
    killed = cluster.down()
    print(f"private Slurm at {cluster.layout.root}: " + (f"stopped, {killed} processes" if killed else "nothing is up"))
    return ExitCode.OK


def status(cluster: Cluster) -> int:
    """0 only where the cluster is whole."""
    state = cluster.layout.read_state()
    if state is None:
        print(f"private Slurm at {cluster.layout.root}: nothing is up; start it by: {cluster.command('up')}")
        return ExitCode.REFUSED
    missing = cluster.missing()
    print(f"private Slurm at {cluster.layout.root}: {state.shape}")
    print(f"export SLURM_CONF={cluster.conf}")
    if missing:
        print(f"not running: {', '.join(missing)}; bring them back by: {cluster.command('up')}")
        return ExitCode.REFUSED
    for place, some in sorted(cluster.processes().items()):
        print(f"{place}: {len(some)} processes")
    print(cluster.run("sinfo").stdout + cluster.run("squeue").stdout, end="")
    return ExitCode.OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jobs.private_slurm", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="up|down|status")
    for name, action, text in (
        ("up", up, "start the cluster, or what is missing of it"),
        ("down", down, "stop it and everything that runs on it"),
        ("status", status, "what is up"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(action=action)
        command.add_argument("--root", type=Path, help=f"the cluster's folder (default: {default_root()})")
        command.add_argument("--nodes", type=int, default=Shape.nodes, help="default: %(default)s")
        command.add_argument(
            "--cpus", type=int, default=Shape.cpus, help="of each node, as it claims (default: %(default)s)"
        )
        command.add_argument("--accounting", action=argparse.BooleanOptionalAction, default=Shape.accounting)
    return parser


if __name__ == "__main__":
    sys.exit(main())
