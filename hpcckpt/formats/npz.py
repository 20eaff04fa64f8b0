"""Chainer's default: a zip archive of .npy files, each deflated by zlib at its default level, in one thread.

The size of a file depends on what the tensors hold, and so does the time to write it: sum the
inventory's `tensor_bytes` of a file over its `file_bytes` for the ratio.
"""

from __future__ import annotations

from hpcckpt.formats.npz_plain import NpzPlain


class Npz(NpzPlain):
    compressed = True
