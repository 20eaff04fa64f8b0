"""Packages, data and the preload recorder. Metadata and tools: pyproject.toml."""

from pathlib import Path

from setuptools import Extension, find_packages, setup

PACKAGES = find_packages(include=["hpcckpt", "hpcckpt.*", "jobs", "jobs.*", "analysis", "analysis.*"])

setup(
    packages=[*PACKAGES, "templates"],
    package_data={
        "hpcckpt.tracing": ["*.c", "*.h"],
        "jobs": ["sites/*.toml", "experiments/*.toml"],
        "templates": ["*.j2", "*/*.j2", "*/*/*.j2"],
    },
    ext_modules=[
        # A library for LD_PRELOAD, never imported: only built and found like an extension module.
        Extension(
            "hpcckpt.tracing._iotrace",
            ["hpcckpt/tracing/iotrace.c"],
            depends=sorted(str(header) for header in Path("hpcckpt/tracing").glob("*.h")),
            libraries=["dl", "pthread"],
        ),
    ],
)
