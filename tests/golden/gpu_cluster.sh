#!/bin/bash
#SBATCH --job-name=scaling-site-0
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=2
#SBATCH --time=22
#SBATCH --partition=gpu
#SBATCH --account=project1
#SBATCH --gres=gpu:4
#SBATCH --exclusive
#SBATCH --dependency=singleton
#SBATCH --signal=B:USR2@60
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/runs/scaling-site-0/run/log/job.log"
# run
module load openmpi || exit 3
set -e
set -u
export PATH=/venv/bin:"$PATH"
export PYTHONPATH=/SOURCE"${PYTHONPATH:+:$PYTHONPATH}"
# A warning that comes before the driver listens must not end the script.
trap '' USR2
export SUBMITIT_EXECUTOR=slurm
# mpirun takes the nodes from the allocation.
command -v mpirun >/dev/null || { echo "mpirun is not on PATH: check the site's modules" >&2; exit 3; }
cd '/home/me/work dir'
exec /venv/bin/python -u -m submitit.core._submit /runs/scaling-site-0/run/log
