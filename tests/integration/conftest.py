"""Fixtures of all integration tests. Here and not imported by each module, which would start one cluster per module."""

from tests.slurm import slurm

__all__ = ["slurm"]
