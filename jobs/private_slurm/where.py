"""Finds the private cluster of this machine, for whoever submits to it. Starts nothing, asks no daemon."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from hpcckpt.errors import SubmitError
from jobs.private_slurm.config import LOOPBACK
from jobs.private_slurm.layout import Layout, default_root

PATIENCE_S = 1.0


def conf() -> Path | None:
    """slurm.conf of the cluster at the default place that is up: the user's own, else root's. None without one."""
    for uid in dict.fromkeys((os.getuid(), 0)):
        found = _conf_of(default_root(uid), uid)
        if found is not None:
            return found
    return None


def _conf_of(root: Path, uid: int) -> Path | None:
    """Only a folder of that very user counts: in a shared /tmp anybody could have made one of this name."""
    try:
        layout = Layout(root)
        state = layout.read_state() if layout.root.stat().st_uid == uid else None
    except (OSError, SubmitError):
        return None
    return layout.conf if state is not None and _answers(state.port) else None


def _answers(port: int) -> bool:
    """Whether a controller listens: Slurm's own programs would try a dead one for a minute."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=PATIENCE_S):
            return True
    except OSError:
        return False
