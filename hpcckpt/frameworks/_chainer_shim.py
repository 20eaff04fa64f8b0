"""Lets Chainer 7.8.1 import on NumPy 2 and a current setuptools. Call `apply()` before `import chainer`.

Chainer's last release is older than three removals. What it still asks for is put back here, and
nothing else; each part is left alone where the real thing exists, so applying twice changes nothing.

- `numpy.distutils.system_info`: read on macOS only, but imported everywhere.
- `pkg_resources`: asked whether conflicting CuPy packages are installed.
- `numpy.float`, `numpy.sctypes` and the other names of Python's own types: used by some functions.
"""

from __future__ import annotations

import importlib
import sys
import types
import warnings
from typing import Any

import numpy

PYTHON_TYPES = (int, float, complex, object, str)


def apply() -> None:
    """Put back what is missing."""
    _restore_distutils()
    _restore_pkg_resources()
    _restore_names()


def _importable(name: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            importlib.import_module(name)
        except (ImportError, AttributeError):
            return False
    return True


def _restore_distutils() -> None:
    if _importable("numpy.distutils.system_info"):
        return
    package = types.ModuleType("numpy.distutils")
    module = types.ModuleType("numpy.distutils.system_info")
    module.get_info = lambda name, *args: {}  # type: ignore[attr-defined]
    package.system_info = module  # type: ignore[attr-defined]
    package.__path__ = []
    sys.modules[package.__name__] = package
    sys.modules[module.__name__] = module
    numpy.distutils = package


def _restore_pkg_resources() -> None:
    if _importable("pkg_resources"):
        return

    class ResolutionError(Exception):
        """Base of the two below, as in the original."""

    class DistributionNotFound(ResolutionError):  # noqa: N818 - the original's name
        """No distribution of that name."""

    class VersionConflict(ResolutionError):  # noqa: N818 - the original's name
        """A distribution of another version."""

    def not_found(requirement: str) -> Any:
        raise DistributionNotFound(requirement)

    module = types.ModuleType("pkg_resources")
    for name, value in {
        "ResolutionError": ResolutionError,
        "DistributionNotFound": DistributionNotFound,
        "VersionConflict": VersionConflict,
        "require": not_found,
        "get_distribution": not_found,
    }.items():
        setattr(module, name, value)
    sys.modules[module.__name__] = module


def _restore_names() -> None:
    """`vars` instead of `hasattr`: NumPy answers for removed names with an error or a warning of its own."""
    names: dict[str, Any] = {kind.__name__: kind for kind in PYTHON_TYPES}
    names["sctypes"] = {
        "int": [numpy.int8, numpy.int16, numpy.int32, numpy.int64],
        "uint": [numpy.uint8, numpy.uint16, numpy.uint32, numpy.uint64],
        "float": [numpy.float16, numpy.float32, numpy.float64, numpy.longdouble],
        "complex": [numpy.complex64, numpy.complex128, numpy.clongdouble],
        "others": [bool, object, bytes, str, numpy.void],
    }
    for name, value in names.items():
        if name not in vars(numpy):
            setattr(numpy, name, value)
