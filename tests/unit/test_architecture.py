"""The rules of the layout, kept by tests: who imports whom, what an import costs, how long a file is."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import hpcckpt
from hpcckpt import registry

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "tensorflow", "keras", "chainer", "chainermn", "horovod", "mpi4py")
OURS = ("hpcckpt", "jobs", "analysis", "install", "tests", "benchmarks", "templates")
LONGEST_FILE_LINES = 500


def plug_in_packages() -> list[str]:
    """Every package of the project that has a module `base` with a class `Base`: found, not listed."""
    found = []
    for module in pkgutil.walk_packages(hpcckpt.__path__, "hpcckpt."):
        folder = Path(*module.name.split("."))
        if module.ispkg and (ROOT / folder / "base.py").exists():
            found.append(module.name)
    return found


def heavy_after(statements: str) -> set[str]:
    """Which frameworks (or MPI) a fresh interpreter holds after it ran `statements`."""
    check = f"import sys\n{statements}\nprint(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def test_import_contracts_hold() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_importing_the_package_imports_no_framework_and_no_mpi() -> None:
    assert heavy_after("import hpcckpt") == set()


@pytest.mark.parametrize("package", ["jobs", "analysis"])
def test_importing_every_module_of_the_login_side_imports_no_framework_and_no_mpi(package: str) -> None:
    modules = [
        module.name
        for module in pkgutil.walk_packages([str(ROOT / package)], f"{package}.")
        if not module.name.endswith("__main__")
    ]
    assert modules
    assert heavy_after("\n".join(f"import {name}" for name in modules)) == set()


def test_plug_in_packages_are_found() -> None:
    assert {"hpcckpt.frameworks", "hpcckpt.strategies", "hpcckpt.formats"} <= set(plug_in_packages())


@pytest.mark.parametrize("package", plug_in_packages())
def test_loading_every_plug_in_imports_no_framework_and_no_mpi(package: str) -> None:
    names = registry.names(package)
    assert names, f"{package}: no plug-in"
    loads = "\n".join(f"registry.load({package!r}, {name!r})" for name in names)
    assert heavy_after(f"from hpcckpt import registry\n{loads}") == set()


def test_no_package_lists_its_plug_ins() -> None:
    for package in plug_in_packages():
        text = (ROOT / Path(*package.split(".")) / "__init__.py").read_text()
        assert not [name for name in registry.names(package) if name in text], package


def test_no_file_is_too_long() -> None:
    files = [
        f
        for name in OURS
        for f in (ROOT / name).rglob("*")
        if f.suffix in (".py", ".c", ".h", ".j2", ".toml")
    ]
    long = {
        str(f.relative_to(ROOT)): n
        for f in files
        if (n := len(f.read_text().splitlines())) > LONGEST_FILE_LINES
    }
    assert long == {}
