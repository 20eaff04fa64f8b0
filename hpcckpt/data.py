"""Training images: CIFAR-10 from its own files, else scikit-learn's digits, else seeded noise.

Nothing is downloaded. What was taken is named in every trace, because a model that trains on noise
compresses differently from one that trains on pictures.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcckpt.errors import SpecError

# MD5 of CIFAR-10's python batches, as torchvision's loader checks them.
CIFAR10_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
}
SYNTHETIC_IMAGES = 1024


@dataclass(frozen=True)
class Dataset:
    """Images as uint8 of shape (N, 3, 32, 32), labels as int64 of shape (N,), and their origin in words."""

    name: str
    images: np.ndarray
    labels: np.ndarray

    def batch(self, step: int, rank: int, ranks: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Float32 images in [0, 1) and labels of one rank's batch at one step.

        The order is a permutation per epoch, dealt out to the ranks: the step number alone is the
        position, so a restart needs nothing else to go on.
        """
        return self.take(self.sample_ids(step, rank, ranks, size, seed))

    def take(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels of these samples."""
        return self.images[ids].astype(np.float32) / 256.0, self.labels[ids]

    def sample_ids(self, step: int, rank: int, ranks: int, size: int, seed: int) -> np.ndarray:
        """Indices of the samples of one rank's batch at one step; int64 of shape (size,)."""
        first = (step * ranks + rank) * size
        wanted = np.arange(first, first + size)
        epochs, places = np.divmod(wanted, len(self.images))
        ids = np.empty(size, dtype=np.int64)
        for epoch in np.unique(epochs):
            order = np.random.default_rng([seed, int(epoch)]).permutation(len(self.images))
            ids[epochs == epoch] = order[places[epochs == epoch]]
        return ids


def load(directory: str | None, seed: int) -> Dataset:
    """The best data set at hand. Raises SpecError where `directory` is given but holds no sound CIFAR-10."""
    if directory is not None:
        return _cifar10(Path(directory).expanduser())
    digits = _digits()
    return digits if digits is not None else synthetic(seed)


def _cifar10(directory: Path) -> Dataset:
    inner = directory / "cifar-10-batches-py"
    folder = inner if inner.is_dir() else directory
    parts = [_cifar10_batch(folder / name, md5) for name, md5 in CIFAR10_MD5.items()]
    images = np.concatenate([images for images, _ in parts])
    return Dataset(
        "CIFAR-10 (50,000 images, checksums equal)", images, np.concatenate([labels for _, labels in parts])
    )


def _cifar10_batch(path: Path, md5: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SpecError(
            f"settings.data: {path}: {error.strerror}; give the folder of CIFAR-10's python batches"
        ) from error
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise SpecError(
            f"settings.data: {path}: not CIFAR-10's file (MD5 differs); fetch it again or leave `data` out"
        )
    batch = pickle.loads(content, encoding="bytes")  # its checksum is known, so its content is
    return batch[b"data"].reshape(-1, 3, 32, 32), np.asarray(batch[b"labels"], dtype=np.int64)


def _digits() -> Dataset | None:
    """scikit-learn's 1,797 digits, read from its data file: importing the package costs a second per rank."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        return None
    with gzip.open(path, "rt") as stream:
        table = np.loadtxt(stream, delimiter=",", dtype=np.int64)
    small = table[:, :64].reshape(-1, 8, 8) * 255 // 16
    large = small.repeat(4, axis=1).repeat(4, axis=2).astype(np.uint8)
    images = np.broadcast_to(large[:, None], (len(large), 3, 32, 32))
    return Dataset("scikit-learn digits, scaled to 3x32x32", images, table[:, 64])


def synthetic(seed: int) -> Dataset:
    """Seeded noise, for a machine that has neither."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (SYNTHETIC_IMAGES, 3, 32, 32), dtype=np.uint8)
    return Dataset("synthetic noise (seeded)", images, generator.integers(0, 10, SYNTHETIC_IMAGES))
