"""No I/O tracer: rank-local timers, /proc and stat are then all there is, and every note says so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpcckpt.tracing.io.base import IoTracer


class NoTracer(IoTracer):
    """Always there, chosen last."""

    name = "none"
    preference = 2

    @classmethod
    def find(cls, option: str | None, environ: Mapping[str, str]) -> NoTracer:
        return cls()

    def describe(self) -> dict[str, str]:
        return {"tracer": self.name, "library": "none", "version": "none"}

    def prepare(self, leg_dir: Path, watched: Path) -> dict[str, str]:
        return {}

    def finish(self, log_dir: Path, rank: int, hostname: str, pid: int) -> list[str]:
        return [f"rank {rank}: traced bytes not measured: no tracer"]
