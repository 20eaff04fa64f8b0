#!/bin/bash
# run
# 8 node(s) x 2 rank(s), virtual: this machine plays all of them
set -e
set -u
export OMPI_MCA_btl='^ofi'
export PATH=/venv/bin:"$PATH"
export PYTHONPATH=/SOURCE"${PYTHONPATH:+:$PYTHONPATH}"
cd '/home/me/work dir'
exec /venv/bin/python -u -m submitit.core._submit /runs/scaling-site-0/run/log
