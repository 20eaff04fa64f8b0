"""Discovery of plug-ins: the file is the registration.

A plug-in package (`hpcckpt.frameworks`, `hpcckpt.strategies`, ...) has a module `base` whose
attribute `Base` is the class that plug-ins derive from; every other module that does not start
with an underscore defines exactly one such class. There is no list to keep.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from hpcckpt.errors import SpecError, nearest


def names(package: str) -> list[str]:
    """Sorted names of the plug-ins of `package` (a dotted name), without importing them."""
    path = importlib.import_module(package).__path__
    found = (module.name for module in pkgutil.iter_modules(path))
    return sorted(name for name in found if name != "base" and not name.startswith("_"))


def load(package: str, name: str) -> Any:
    """The plug-in class that the module `name` of `package` defines.

    Raises SpecError for an unknown name, and for a module that defines no or several such classes.
    """
    known = names(package)
    if name not in known:
        kind = package.rpartition(".")[2]
        raise SpecError(f"{kind}: unknown name {name!r}; {nearest(name, known)}")
    base = importlib.import_module(f"{package}.base").Base
    module = importlib.import_module(f"{package}.{name}")
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    ]
    if len(own) != 1:
        raise SpecError(f"{module.__name__}: must define exactly one {base.__name__}, found {len(own)}")
    return own[0]
