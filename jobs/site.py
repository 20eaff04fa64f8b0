"""A site: the facts of one machine, as data. One TOML file in `sites/` each; nothing here runs anything.

A fact that a script needs and a site lacks is an error of the rendering (`render`), which names it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from hpcckpt.errors import SiteError, SpecError
from hpcckpt.experiment import check_name
from jobs import site_check, spec

SITES = Path(__file__).with_name("sites")
DEFAULT = "local"
_FOLDERS = ("/etc/slurm", "/etc/slurm-llnl", "/run/slurm/conf", "/usr/local/etc/slurm")
CONFIGURATIONS = tuple(Path(folder, "slurm.conf") for folder in _FOLDERS)
"""Where a cluster's own configuration lies: as installed, or as its daemon fetched it."""
FROM_ENVIRONMENT = ("partition", "account", "qos", "reservation")
"""Keys that differ from user to user: they may hold environment variables."""


class Site(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person writes down about a machine to run there."""

    name: str
    description: str = ""
    executor: Literal["local", "slurm"]
    """Who starts the driver: this machine at once, or Slurm when its turn comes."""
    launcher: str
    """Who starts the ranks: a name of `jobs.launchers`."""
    launcher_args: list[str] = []
    """Further arguments of the launcher, as they are."""
    size: Literal["small", "full"]
    """Which of an experiment's sizes fits this machine."""
    scratch: str
    """Directory of the checkpoints. `~` and environment variables are expanded on the submitting side."""
    virtual_nodes: bool = False
    """One machine plays all nodes: for trying out and for mechanisms, never for scaling claims."""
    one_machine: bool = False
    """Its nodes have names of their own but share one machine's cores, memory and disk: no scaling claims either."""
    private_slurm: bool = False
    """The cluster that `make slurm-up` started here, not the machine's own."""
    concurrent_runs: bool = False
    """Runs of a campaign may overlap in time. They then share scratch, and disturb each other."""
    max_nodes: int | None = None
    cores: int | None = None
    """Cores of a node that ranks may use; None: those that the driver may use."""
    python: str | None = None
    """Python of driver and ranks; None: the one that submits."""
    pythons: dict[str, str] = {}
    """Framework or its library (`chainer`) -> Python of its ranks: old and new ones seldom share an environment."""
    container: list[str] = []
    """What starts a rank inside an image, as ["apptainer", "exec", "IMAGE"]; run directory and scratch must be
    seen inside under their own names."""
    modules: list[str] = []
    """Environment modules that the job loads, in this order."""
    setup: list[str] = []
    """Lines of shell that the job runs behind the modules, as they are."""
    environment: dict[str, str] = {}
    darshan_lib: str | None = None
    darshan_module: str | None = None
    """Module that brings Darshan; loaded in the job only, so its library need not be seen where one submits."""
    tracer: str | None = None
    """I/O tracer; None: the first that the machine has."""
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None
    gpus_per_node: int | None = None
    reservation: str | None = None
    time: str | None = None
    """Time limit of a job in Slurm's own form; None: the sum of the legs' limits."""
    warning_s: int = 60
    """Seconds before a job's end at which Slurm tells the driver: time for a last save."""
    max_queued: int | None = None
    """Jobs of a campaign that may wait or run at once; None: no limit."""
    scratch_shared: bool = True
    """Every node sees the same scratch. False: a node's own disk, where only its own ranks' files are."""
    node_local: str | None = None
    """Directory on each node's own disk, for `--node-local`."""
    exclusive: bool = False
    sbatch: list[str] = []
    """Further `#SBATCH` options, as they are."""

    def facts(self) -> dict[str, Any]:
        """What is known, as plain data: a template that uses anything else fails by name."""
        return {key: value for key, value in msgspec.structs.asdict(self).items() if value is not None}

    def python_of(self, framework: str) -> str | None:
        """The Python of a framework's ranks; None: the one that submits."""
        return python_of(msgspec.structs.asdict(self), framework)


def python_of(site: Mapping[str, Any], framework: str) -> str | None:
    """The same of a site as plain data, which is what a run directory holds."""
    pythons = site.get("pythons", {})
    found: str | None = pythons.get(framework) or pythons.get(framework.partition("_")[0]) or site.get("python")
    return found


def load(name: str) -> Site:
    """The site of a name or of a path to a TOML file."""
    path = spec.find(name, SITES, "site", SiteError)
    site = spec.load(path, Site, SiteError)
    try:
        check_name("name", site.name)
    except SpecError as failure:
        raise SiteError(f"{path}: {failure}") from failure
    for key in ("cores", "max_nodes", "max_queued", "gpus_per_node", "warning_s"):
        count = getattr(site, key)
        if count is not None and count < 1:
            raise SiteError(f"{path}: {key}: {count} must be at least 1")
    found = msgspec.structs.replace(site, **{key: _expanded(path, site, key) for key in FROM_ENVIRONMENT})
    try:
        site_check.check(msgspec.to_builtins(found))
    except SpecError as failure:
        raise SiteError(f"{path}: {failure}") from failure
    return found


def _expanded(path: Path, site: Site, key: str) -> str | None:
    """A key that may name the user's own variable, as account = "$PROJECT"."""
    text: str | None = getattr(site, key)
    found = None if text is None else os.path.expandvars(text)
    if found is not None and "$" in found:
        raise SiteError(f"{path}: {key}: {text!r} holds a variable that is not set; export it, or write the name")
    return found


def has_slurm() -> bool:
    """Whether this machine belongs to a cluster: the programs alone are also there to try the private one."""
    configured = "SLURM_CONF" in os.environ or any(path.exists() for path in CONFIGURATIONS)
    return shutil.which("sbatch") is not None and configured


def choose(name: str | None) -> Site:
    """The site that a command line means. Without a name: this machine, where it has no Slurm."""
    if name is not None:
        return load(name)
    if not has_slurm():
        return load(DEFAULT)
    known = ", ".join(sorted(path.stem for path in SITES.glob("*.toml")))
    raise SiteError(f"this machine has Slurm: name its site by --site, one of {known} or your own TOML file")


def scratch_of(site: Site, override: str | None) -> Path:
    """The absolute directory below which campaigns keep their checkpoints."""
    written = override or site.scratch
    text = os.path.expandvars(written)
    if "$" in text:
        raise SiteError(f"site {site.name}: scratch {text!r} holds a variable that is not set")
    if not text.strip() or (written.startswith("$") and text.startswith("/") and not _leading(written)):
        raise SiteError(f"site {site.name}: scratch {written!r} is empty, or begins with an empty variable")
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise SiteError(f"site {site.name}: scratch {text!r}: {error}") from error


def _leading(written: str) -> str:
    """The value of the variable that a path begins with."""
    return os.path.expandvars(written.partition("/")[0])
