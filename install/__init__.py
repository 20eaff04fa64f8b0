"""Makes the environment: checks, MPI, packages, Horovod, the project itself. Run by `make setup`.

Only the standard library is used here, and nothing of the project is imported: this package runs
on the system's Python before anything is installed.
"""
