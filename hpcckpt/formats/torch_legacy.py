"""torch.save's format before 1.6: pickles of the structure, then the bytes of each storage in turn."""

from __future__ import annotations

from hpcckpt.formats._torch_files import TorchFile


class TorchLegacy(TorchFile):
    zipped = False
    expected_coverage = (0.99, 1.01)
    coverage_reason = "written once, front to back: pickles by Python, storages by torch itself"
