"""Switches of determinism that several adapters share: of MPI's sums and of Horovod's. Which are set, adapters say."""

from __future__ import annotations

MPI_SUMS = {
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
    "OMPI_MCA_coll_tuned_allreduce_algorithm": "3",
    "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "recursive_doubling",
}
"""One allreduce algorithm for all sizes of message (Open MPI, MPICH): chosen by size, the order of a sum would follow
from how many tensors are sent together."""
HOROVOD_SUMS = {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_CYCLE_TIME": "1"}
"""Every tensor is summed by itself: what Horovod fuses depends on which gradients are ready in the same millisecond."""
CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""cuBLAS repeats its results with workspaces of a fixed size only."""
