"""`python3 -m install`: make or complete the environment. `python3 -m install lock`: make the locks anew."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

from install import checks, lockfile, stages
from install.context import ROOT, Context, new_context, venv_folder
from install.errors import SetupError
from install.mpi import PYPI, choose

INTERRUPTED = 130


def setup() -> Context:
    """Make or complete the environment, and say what it is."""
    started = time.monotonic()
    venv = venv_folder(os.environ)
    recorded = stages.read_record(venv / "hpcckpt-setup.json").get("mpi")
    wheel_version = lockfile.read(ROOT, PYPI)[lockfile.MPI_WHEEL]
    context = new_context(choose(os.environ, venv, wheel_version, recorded), os.environ)
    changed = stages.run(context)
    state = f"ready in {time.monotonic() - started:.1f} s" if changed else "up to date"
    print(f"environment {context.venv.name}: {state}; {context.mpi.short()}", flush=True)
    return context


def lock() -> None:
    context = setup()
    for path in lockfile.write(ROOT, lockfile.resolve(context.python, ROOT)):
        print(path)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m install", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("setup", "lock"), default="setup")
    what = parser.parse_args(arguments).what
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        better = checks.python_for(sys.version_info[:2])
        if better is None and sys.prefix != sys.base_prefix:
            better = getattr(
                sys, "_base_executable", None
            )  # an activated environment must not rebuild itself
        if better:
            os.execv(better, [better, "-m", "install", *arguments])
        lock() if what == "lock" else setup()
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("set-up: interrupted; `make setup` goes on where it stopped", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
