"""The login side and the driver: from an experiment file to run directories that are done.

What lives here starts, watches and stops runs. It never imports mpi4py or a framework: an import of
MPI would break the launcher that is started from here. What ranks do lives in `hpcckpt`.
"""
