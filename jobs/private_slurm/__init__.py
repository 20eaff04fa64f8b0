"""A private, real Slurm cluster of many nodes on one machine, for trying out and for tests.

Stands alone: it knows nothing of experiments, runs or sites, and nobody needs it on a machine that has a
Slurm of its own. Needs root and the distribution's Slurm, munge and MariaDB; touches none of their system
services. What it shows is how things work under Slurm, never how they scale.
"""
