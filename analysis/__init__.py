"""What the traces of finished runs say: collected once, asked question by question, answered with evidence.

Imports nothing of `jobs`, no MPI and no framework; of `hpcckpt` only the shared vocabulary
(experiment, records, rundir, errors, registry). A file here that defines a `Question` is one.
"""
