"""Clock alignment between ranks whose clocks differ, planted through `hpcckpt.comm.clock`."""

from __future__ import annotations

import json

import pytest

from tests.support import mpirun

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PROGRAM = """
import json, time
from hpcckpt import comm
world = comm.world()
skew = world.rank * 3_000_000_000
comm.clock = lambda: time.monotonic_ns() + skew
comm.boot_id = lambda: {boot}
found = world.clock_offset()
gathered = world.gather((world.rank, *found))
if gathered:
    print(json.dumps(gathered))
"""


def offsets(boot: str) -> list[list]:
    done = mpirun(3, ["-c", PROGRAM.format(boot=boot)])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_offsets_of_skewed_clocks_are_found_within_their_error() -> None:
    for rank, offset, error, method in offsets("f'boot-{world.rank}'"):
        if rank == 0:
            assert (offset, error) == (0, 0)
            continue
        assert method == "ping_pong"
        assert 0 < error < 1_000_000_000
        assert abs(offset + rank * 3_000_000_000) <= error


def test_one_kernel_is_one_clock() -> None:
    assert [found[1:] for found in offsets("'same'")] == [[0, 0, "same_boot"]] * 3
