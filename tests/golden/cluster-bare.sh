#!/bin/bash
#SBATCH --job-name=scaling-site-0
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=2
#SBATCH --time=22
#SBATCH --partition=p
#SBATCH --signal=B:USR2@60
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/runs/scaling-site-0/run/log/job.log"
# run
set -e
set -u
export PATH=/venv/bin:"$PATH"
export PYTHONPATH=/SOURCE"${PYTHONPATH:+:$PYTHONPATH}"
# A warning that comes before the driver listens must not end the script.
trap '' USR2
export SUBMITIT_EXECUTOR=slurm
# One rank that fails takes the others with it.
export SLURM_KILL_BAD_EXIT=1
cd '/home/me/work dir'
exec /venv/bin/python -u -m submitit.core._submit /runs/scaling-site-0/run/log
