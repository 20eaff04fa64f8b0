"""One small run of every data-parallel framework on two real ranks: what a second MPI must pass as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcckpt import registry
from hpcckpt.records import Replica, Start, Verified
from hpcckpt.strategies.base import supports
from tests.support import closing, launch, make_run, make_run_dir, of, trace

pytestmark = [pytest.mark.integration, pytest.mark.smoke, pytest.mark.timeout(300)]
FRAMEWORKS = [name for name in registry.names("hpcckpt.frameworks") if not name.endswith("_parallel")]


def format_of(framework: str) -> str:
    """The first format that a single writer can use with the framework."""
    return next(f for f in registry.names("hpcckpt.formats") if supports(framework, "single_writer", f) is None)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_ranks_train_save_and_read_back(framework: str, tmp_path: Path) -> None:
    run = make_run(framework=framework, format=format_of(framework), nodes=2, model="resnet20", settings={"steps": 5})
    paths = make_run_dir(tmp_path, run)
    done = launch(paths, run)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [trace(paths, rank) for rank in range(2)]
    assert [closing(mine).status for mine in records] == ["ok", "ok"]
    assert [of(mine, Start)[0].size for mine in records] == [2, 2]
    assert "mpi" in {key.lower() for key in of(records[0], Start)[0].versions}
    assert all(replica.equal is not False for mine in records for replica in of(mine, Replica))
    assert [found.equal for found in of(records[0], Verified)] == [True, True]
