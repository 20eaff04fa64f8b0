"""torch.save's own format since 1.6: a zip archive, stored uncompressed, with a pickle of the structure."""

from __future__ import annotations

from hpcckpt.formats._torch_files import TorchFile


class TorchZip(TorchFile):
    zipped = True
    expected_coverage = (0.99, 1.01)
    coverage_reason = "written once, front to back"
