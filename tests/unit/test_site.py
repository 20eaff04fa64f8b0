"""Sites: files that are sound, errors that name the key, and the choice of a site."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hpcckpt.errors import SiteError
from jobs import site, site_check


@pytest.mark.parametrize("name", [path.stem for path in site.SITES.glob("*.toml")])
def test_every_site_of_the_project_is_sound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROJECT", "mine")  # the user's own, which the clusters' files ask for
    assert site.load(name).name == name


def test_a_misspelt_key_names_file_and_nearest(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((site.SITES / "local.toml").read_text().replace("scratch =", "scrath ="))
    with pytest.raises(SiteError, match=r"mine.toml: unknown key 'scrath'; did you mean 'scratch'\?"):
        site.load(str(path))


def test_a_wrong_value_names_its_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((site.SITES / "local.toml").read_text().replace('"small"', '"medium"'))
    with pytest.raises(SiteError, match=r"mine\.toml: size: unknown value 'medium'; known: full, small"):
        site.load(str(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('name = "../up"', r"mine\.toml: name: '\.\./up' must be 1 to 64 letters"),
        ('name = "x"\ncores = 0', r"mine\.toml: cores: 0 must be at least 1"),
        ('name = "x"\nmax_nodes = -1', r"mine\.toml: max_nodes: -1 must be at least 1"),
    ],
)
def test_a_value_that_no_machine_has_is_refused(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((site.SITES / "local.toml").read_text().replace('name = "local"', line))
    with pytest.raises(SiteError, match=message):
        site.load(str(path))


def test_an_unknown_site_names_the_nearest() -> None:
    with pytest.raises(SiteError, match=r"unknown site 'locl'; did you mean 'local'\?"):
        site.choose("locl")


@pytest.mark.parametrize(
    ("programs", "variable", "file"),
    [(True, True, False), (True, False, True), (True, False, False), (False, True, True), (False, False, False)],
)
def test_without_a_name_this_machine_is_taken_unless_it_belongs_to_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: bool, variable: bool, file: bool
) -> None:
    configuration = tmp_path / "slurm.conf"
    if file:
        configuration.touch()
    monkeypatch.setattr(site, "CONFIGURATIONS", (configuration,))
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/sbatch" if programs else None)
    monkeypatch.delenv("SLURM_CONF", raising=False)
    if variable:
        monkeypatch.setenv("SLURM_CONF", str(configuration))
    if programs and (variable or file):
        with pytest.raises(SiteError, match="--site"):
            site.choose(None)
    else:
        assert site.choose(None).name == "local"


def test_scratch_expands_home_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = site.load("local")
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("FAST", "/fast")
    monkeypatch.chdir(tmp_path)
    assert site.scratch_of(local, "~/x") == Path("/home/somebody/x")
    assert site.scratch_of(local, "$FAST/x") == Path("/fast/x")
    assert site.scratch_of(local, None) == tmp_path / "scratch"
    with pytest.raises(SiteError, match="variable that is not set"):
        site.scratch_of(local, "${NOWHERE_TO_BE_FOUND}/x")


def test_what_a_site_does_not_know_is_not_among_its_facts() -> None:
    facts = site.load("local").facts()
    assert "partition" not in facts
    assert facts["modules"] == []


SLURM = '''
name = "mine"
executor = "slurm"
launcher = "mpirun"
size = "small"
scratch = "/scratch/me"
partition = "main"
'''


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('account = "a\\nb"', "account: 'a\\\\nb' holds a line break"),
        ('account = "two words"', "account: 'two words' must be one word"),
        ('qos = ""', "qos: '' must be one word"),
        ('modules = ["gcc\\nrm"]', "modules: .* holds a line break"),
        ('sbatch = ["--array=0-1"]', "sbatch: --array is the suite's own"),
        ('sbatch = ["#SBATCH --x"]', "sbatch: .* must begin with a dash"),
        ('pythons = { chianer = "/p" }', "pythons: no framework 'chianer'; did you mean 'chainer"),
        ('time = "1"\nwarning_s = 60', "warning_s: 60 s before the end is before the start of a 60 s job"),
        ('[environment]\n"A-B" = "1"', "environment: 'A-B' is no name of a variable"),
    ],
)
def test_what_a_script_cannot_carry_is_refused_by_key(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SLURM + line + "\n")
    with pytest.raises(SiteError, match=rf"mine.toml: {said}"):
        site.load(str(path))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 300), ("5:30", 330), ("1:00:00", 3600), ("2-0", 172800),
        ("1-02:03", 93780), ("1-02:03:04", 93784), ("x", None),
    ],
)
def test_time_limits_are_read_in_slurms_forms(text: str, seconds: int | None) -> None:
    assert site_check.seconds(text) == seconds


@pytest.mark.parametrize("scratch", ["", "$EMPTY/x", "~nosuchuser/x"])
def test_a_scratch_that_leads_nowhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scratch: str
) -> None:
    monkeypatch.setenv("EMPTY", "")
    path = tmp_path / "mine.toml"
    path.write_text(SLURM.replace("/scratch/me", scratch))
    with pytest.raises(SiteError, match="site mine: scratch"):
        site.scratch_of(site.load(str(path)), None)
