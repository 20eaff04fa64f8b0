#!/bin/bash
#SBATCH --job-name=scaling-site-0
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=2
#SBATCH --time=02:00:00
#SBATCH --partition=batch
#SBATCH --account=project1
#SBATCH --qos=normal
#SBATCH --gres=gpu:4
#SBATCH --exclusive
#SBATCH --dependency=singleton
#SBATCH --signal=B:USR2@60
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/runs/scaling-site-0/run/log/job.log"
#SBATCH --mail-type=NONE
# run
module load gcc/13 || exit 3
module load 'open mpi' || exit 3
module load darshan/3.5 || exit 3
set -e
ulimit -c 0
set -u
export NOTE='it'"'"'s'
export OMP_PROC_BIND=false
export PATH=/venv/bin:"$PATH"
export PYTHONPATH=/SOURCE"${PYTHONPATH:+:$PYTHONPATH}"
# A warning that comes before the driver listens must not end the script.
trap '' USR2
export SUBMITIT_EXECUTOR=slurm
# One rank that fails takes the others with it.
export SLURM_KILL_BAD_EXIT=1
cd '/home/me/work dir'
exec /venv/bin/python -u -m submitit.core._submit /runs/scaling-site-0/run/log
