"""What Chainer adapters share: the imports, an updater, and a training state as Chainer itself serialises it.

The state of a `StandardUpdater` (model, optimizer, iterator, count of updates) is what every Chainer
snapshot holds, so the entries of a state are read off Chainer's own serialisation of it: what our
strategies save and what Chainer's mechanisms save have the same names. NumPy's random state, which
dropout draws from, is in no Chainer snapshot; the adapters add it.

Determinism, `on`: cuDNN's deterministic algorithms, and one allreduce algorithm for all sizes. ChainerMN's
`naive` communicator sums parameter by parameter, in the order of their names; nothing else can differ on CPUs.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, ClassVar

import numpy as np

from hpcckpt.errors import RunError
from hpcckpt.frameworks import _chainer_shim
from hpcckpt.frameworks._switches import MPI_SUMS
from hpcckpt.frameworks.base import Entry, Framework, entry

LEARNING_RATE = 0.01

# Where an updater's serialisation keeps what, and how our entries call it.
MODEL, OPTIMIZER = "model:main/", "optimizer:main/"
SINGLE = {"iterator:main/current_position": "data.position", "iteration": "trainer.iteration"}


def libraries() -> tuple[Any, Any]:
    """(chainer, chainermn), imported behind the shim."""
    _chainer_shim.apply()
    import chainer
    import chainermn

    chainer.disable_experimental_feature_warning = True
    return chainer, chainermn


def make_optimizer(name: str) -> Any:
    """The Chainer optimizer of that name."""
    from chainer import optimizers

    if name == "adam":
        return optimizers.Adam(alpha=LEARNING_RATE)
    return optimizers.MomentumSGD(LEARNING_RATE, 0.9) if name == "momentum" else optimizers.SGD(LEARNING_RATE)


def key_of(path: str) -> str | None:
    """Name of the entry at a path of an updater's serialisation; None for what is no training state."""
    if path.startswith(MODEL):
        return "model." + path.removeprefix(MODEL).replace("/", ".")
    if path.startswith(OPTIMIZER):
        parameter, _, slot = path.removeprefix(OPTIMIZER).rpartition("/")
        return f"optimizer.{slot}.{parameter.replace('/', '.')}" if parameter else f"optimizer.{slot}"
    return SINGLE.get(path)


def path_of(name: str) -> str | None:
    """Inverse of `key_of`; None for an entry that Chainer does not serialise."""
    if name.startswith("model."):
        return MODEL + name.removeprefix("model.").replace(".", "/")
    if name.startswith("optimizer."):
        slot, _, parameter = name.removeprefix("optimizer.").partition(".")
        return OPTIMIZER + (f"{parameter.replace('.', '/')}/{slot}" if parameter else slot)
    return next((path for path, single in SINGLE.items() if single == name), None)


class Batches:
    """The iterator of an updater: this rank's batches in the suite's own order; its state is the position.

    Chainer's SerialIterator would also save the order of the epoch, but not the random state that
    made it, so the next epoch's order differs after a resume.
    """

    is_new_epoch = False

    def __init__(self, framework: Framework) -> None:
        self._framework = framework

    @property
    def epoch_detail(self) -> float:
        return self._framework.position / len(self._framework.data.images)

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        batch = self._framework.batch()
        self._framework.position += 1
        return batch

    def serialize(self, serializer: Any) -> None:
        self._framework.position = serializer("current_position", self._framework.position)

    def finalize(self) -> None:
        """Nothing to give back; Chainer calls it."""


class ChainerFramework(Framework):
    """A Chainer updater as a training state; a subclass makes the model, the optimizer and the loss."""

    owns: ClassVar[bool] = False
    """Each rank holds a state of its own, as in model parallelism."""
    can_freeze = True
    hides_gradients = None

    def start(self) -> None:
        self.chainer, self.chainermn = libraries()
        self.communicator = self.chainermn.create_communicator(self._communicator_name())
        if self.communicator.size != self.comm.size:
            seen = f"ChainerMN sees {self.communicator.size} ranks, the suite {self.comm.size}"
            raise RunError(f"{seen}; start the ranks with the MPI that mpi4py was built for")
        self.chainer.global_config.cudnn_deterministic = self.determinism == "on"
        self.device = self.chainer.get_device(self._device_name())
        self.device.use()
        np.random.seed(self.settings.seed + self.comm.rank)  # differs per rank: a broadcast must act
        self.model = self.make_model()
        self.model.to_device(self.device)
        self.optimizer = self.make_optimizer()
        self.optimizer.setup(self.model)
        self._freeze()
        self.updater = self.chainer.training.updaters.StandardUpdater(
            {"main": Batches(self)}, self.optimizer, self._send, loss_func=self.loss
        )
        self.last_loss = float("nan")

    def make_model(self) -> Any:
        """The link that this rank trains."""
        raise NotImplementedError

    def make_optimizer(self) -> Any:
        """Its optimizer, not set up yet."""
        return make_optimizer(self.settings.optimizer)

    def loss(self, images: Any, labels: Any) -> Any:
        """The variable to go back from; sets `last_loss` where this rank knows the loss."""
        raise NotImplementedError

    def _communicator_name(self) -> str:
        on_gpus = self.chainer.backends.cuda.available and self.chainermn.nccl._available
        return "pure_nccl" if on_gpus else "naive"

    def _device_name(self) -> str:
        return f"@cupy:{self.communicator.intra_rank}" if self.chainer.backends.cuda.available else "@numpy"

    def _send(self, batch: tuple[np.ndarray, np.ndarray], _: Any) -> tuple[Any, ...]:
        return tuple(self.device.send(array) for array in batch)

    def _freeze(self) -> None:
        for path, parameter in self.model.namedparams():
            name = path.strip("/").replace("/", ".")
            if any(fnmatchcase(name, pattern) for pattern in self.settings.frozen):
                parameter.update_rule.enabled = False

    def step(self) -> float:
        self.updater.update()
        return self.last_loss

    @classmethod
    def environment(cls, determinism: str) -> dict[str, str]:
        return dict(MPI_SUMS) if determinism == "on" else {}

    def gradients(self) -> list[Entry]:
        named = sorted((path.strip("/").replace("/", "."), p) for path, p in self.model.namedparams())
        return [
            entry(f"gradient.{name}", "gradient", self.chainer.backends.cuda.to_cpu(p.grad), owner=self._owner)
            for name, p in named
            if p.grad is not None
        ]

    @property
    def _owner(self) -> int | None:
        return self.comm.rank if self.owns else None

    def state(self) -> list[Entry]:
        serializer = self.chainer.serializers.DictionarySerializer()
        serializer.save(self.updater)
        parameters = {MODEL + path.strip("/") for path, _ in self.model.namedparams()}
        everything = sorted(serializer.target.items())  # Chainer has sets of names: an order per process
        found = [
            entry(key, _kind(path, key, path in parameters), array, self._owner)
            for path, array in everything
            if (key := key_of(path)) is not None and array.dtype != object  # None: not made yet
        ]
        return [*found, entry("rng.numpy", "rng", random_words(), owner=self.comm.rank)]

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        mine = f"@{self.comm.rank:05d}" if self.owns else ""
        names = ((key.removesuffix(mine), array) for key, array in arrays.items() if key.endswith(mine))
        saved = {path: array.copy() for name, array in names if (path := path_of(name)) is not None}
        for path, _ in self.model.namedparams():
            if MODEL + path.strip("/") not in saved:
                raise RunError(f"Chainer: the saved state has no parameter {path}")
        self.optimizer.setup(self.model)  # forgets its state: what was not saved stays empty
        self._freeze()
        self.chainer.serializers.NpzDeserializer(saved, strict=False).load(self.updater)
        words = arrays.get(f"rng.numpy@{self.comm.rank:05d}")
        if words is not None:
            set_random_words(words)

    def versions(self) -> dict[str, str]:
        return {
            "chainer": self.chainer.__version__,
            "chainermn": f"{self.chainermn.__version__} ({type(self.communicator).__name__})",
            "numpy": np.__version__,
            "device": "cpu" if self.device.name.startswith("@numpy") else "cuda",
            "mpi": getattr(self.comm, "library", "none"),
        }


def _kind(path: str, key: str, is_parameter: bool) -> str:
    if is_parameter:
        return "parameter"
    if path.startswith(MODEL):  # N counts batches for fine-tuning only; this suite never fine-tunes
        return "other" if path.endswith("/N") else "buffer"
    if key.count(".") > 1:
        return "optimizer"
    return "data_position" if key == "data.position" else "other"


def random_words() -> np.ndarray:
    """NumPy's global random state as 628 words: key, place, and the spare normal variate."""
    _, key, place, has_spare, spare = np.random.get_state()
    tail = np.array([place, has_spare], dtype=np.uint32)
    return np.concatenate([np.asarray(key, np.uint32), tail, np.array([spare], np.float64).view(np.uint32)])


def set_random_words(words: np.ndarray) -> None:
    """Inverse of `random_words`."""
    spare = float(np.ascontiguousarray(words[626:628]).view(np.float64)[0])
    np.random.set_state(("MT19937", words[:624], int(words[624]), int(words[625]), spare))
