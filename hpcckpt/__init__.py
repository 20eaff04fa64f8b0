"""What the ranks run, and the vocabulary that the login side and the analysis share with them.

Importing this package imports no training framework and starts no MPI.
"""

__version__ = "0.1.0"
