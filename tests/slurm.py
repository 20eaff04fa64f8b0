"""A private Slurm cluster for tests: one for the whole session, started when the first test asks for it.

Use it by importing `slurm` where it is needed, or by `pytest_plugins = ["tests.slurm"]` in a conftest.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from hpcckpt.errors import SubmitError
from jobs.private_slurm.cluster import Cluster

PREFIX = "hpcckpt-slurm-test-"


def root(purpose: str) -> Path:
    """Folder of a cluster of this process: short, for the sockets below it, and named so that `sweep` knows it."""
    return Path(tempfile.gettempdir()) / f"{PREFIX}{os.getpid()}-{purpose}"


def sweep() -> None:
    """Take down what test runs left that were killed themselves."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            remove(Cluster(folder))


def start(cluster: Cluster) -> Cluster:
    """Up, or the test is skipped with the reason."""
    try:
        cluster.up()
    except SubmitError as refusal:
        pytest.skip(str(refusal))
    return cluster


def remove(cluster: Cluster) -> None:
    """Down, with logs and folder."""
    cluster.down()
    for path in (*cluster.layout.log.glob("*"), cluster.layout.lock):
        path.unlink(missing_ok=True)
    for folder in (cluster.layout.log, cluster.layout.root):
        if folder.exists():
            folder.rmdir()


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """Eight nodes with accounting. A test that kills something in it restores it."""
    sweep()
    cluster = Cluster(root("session"))
    try:
        yield start(cluster)
    finally:
        remove(cluster)


def until(ready: Callable[[], bool], limit_s: float, what: str) -> float:
    """Seconds until it was so; fails after `limit_s`."""
    began = time.monotonic()
    while not ready():
        if time.monotonic() - began > limit_s:
            pytest.fail(f"not in {limit_s:g} s: {what}")
        time.sleep(0.1)
    return time.monotonic() - began


__all__ = ["remove", "root", "slurm", "start", "sweep", "until"]
