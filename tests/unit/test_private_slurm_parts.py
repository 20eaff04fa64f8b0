"""The parts of the private Slurm cluster that can be tested without root and without Slurm."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcckpt.errors import SpecError, SubmitError
from jobs import site
from jobs.private_slurm import config, machine, places, where
from jobs.private_slurm.cluster import Cluster
from jobs.private_slurm.layout import LONGEST_SOCKET, SOCKET_LIMIT, Layout, Shape, State


def state(accounting: bool = True) -> State:
    return State(shape=Shape(nodes=3, cpus=2, accounting=accounting), port=21000, first_job=5, boot="b")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder with a short name, whatever the temporary folder is called: sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="hpc-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def at_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """The layout of the default place, in a temporary directory of the test's own."""
    monkeypatch.setattr("jobs.private_slurm.where.default_root", lambda uid: tmp_path / str(uid))
    layout = Layout(tmp_path / str(os.getuid()))
    layout.etc.mkdir(parents=True)
    return layout


def test_each_node_has_a_port_of_its_own_and_both_partitions_have_all_nodes(tmp_path: Path) -> None:
    text = config.slurm(Layout(tmp_path), state())
    nodes = [dict(pair.split("=", 1) for pair in line.split()) for line in text.splitlines() if line[:9] == "NodeName="]
    assert [(node["NodeName"], node["Port"], node["CPUs"]) for node in nodes] == [
        ("node1", "21002", "2"),
        ("node2", "21003", "2"),
        ("node3", "21004", "2"),
    ]
    partitions = [line for line in text.splitlines() if line.startswith("PartitionName=")]
    assert all("Nodes=node1,node2,node3 " in line for line in partitions) and len(partitions) == 2
    assert "SlurmctldPort=21000\n" in text and "{" not in text


@pytest.mark.parametrize(("accounting", "kind"), [(True, "slurmdbd"), (False, "none")])
def test_accounting_is_what_the_shape_says(tmp_path: Path, accounting: bool, kind: str) -> None:
    text = config.slurm(Layout(tmp_path), state(accounting))
    assert f"AccountingStorageType=accounting_storage/{kind}\n" in text
    assert ("AccountingStoragePort=21001" in text) == accounting


def test_a_root_too_long_for_sockets_is_refused_with_the_length_that_fits(tmp_path: Path) -> None:
    fits = SOCKET_LIMIT - len(LONGEST_SOCKET)
    Layout(Path("/" + "x" * (fits - 1)))
    with pytest.raises(SubmitError, match=rf"--root: /x+ is 1 characters too long .* at most {fits} "):
        Layout(Path("/" + "x" * fits))


@pytest.mark.parametrize("name", ["a b", "a#b", "a%b", "a,b", "ü"])
def test_a_root_that_slurm_conf_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(SubmitError, match="only letters, digits"):
        Layout(Path("/") / name)


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"nodes": 1000}, {"cpus": 0}])
def test_an_impossible_shape_is_a_usage_error(wrong: dict[str, int]) -> None:
    with pytest.raises(SpecError, match=f"--{next(iter(wrong))}"):
        Shape(**wrong)


def test_the_state_file_returns_what_was_written_and_anything_else_is_no_cluster(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert layout.read_state() is None
    layout.write_state(state())
    assert layout.read_state() == state()
    for text in ("", "[]", "{}", json.dumps({"shape": {}, "port": 1}), json.dumps({"shape": {"nodes": 0}})):
        layout.state.write_text(text)
        assert layout.read_state() is None, text


def test_a_folder_that_holds_something_else_is_refused_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "check", lambda shape: None)
    (tmp_path / "thesis.tex").write_text("ten years of work")
    with pytest.raises(SubmitError, match=r"holds 'thesis.tex', which no cluster made"):
        Cluster(tmp_path).up()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_down_makes_no_folder(tmp_path: Path) -> None:
    folder = tmp_path.parent / "none"
    assert Cluster(folder).down() == 0
    assert not folder.exists()


def test_a_process_belongs_to_the_place_whose_disk_it_sees(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    line = "66 29 254:0 /x/disk/{} {} rw,relatime - ext4 /dev/vda rw\n"
    other = line.format("node1", "/somewhere/else/local")
    assert places._place(layout, other) is None
    assert places._place(layout, other + line.format("node2", layout.local)) == "node2"
    assert places._place(layout, line.format("node3//deleted", layout.local)) == "node3"


def test_no_cluster_is_found_where_none_answers(at_default: Layout) -> None:
    assert where.conf() is None
    at_default.write_state(state())
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        at_default.write_state(State(shape=Shape(), port=unused.getsockname()[1], first_job=1, boot="b"))
        assert where.conf() is None


def test_the_cluster_at_the_default_place_is_found_while_its_controller_listens(at_default: Layout) -> None:
    with socket.create_server(("127.0.0.1", 0)) as controller:
        at_default.write_state(State(shape=Shape(), port=controller.getsockname()[1], first_job=1, boot="b"))
        assert where.conf() == at_default.conf


def test_a_folder_of_another_user_is_not_believed(at_default: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as controller:
        at_default.write_state(State(shape=Shape(), port=controller.getsockname()[1], first_job=1, boot="b"))
        found = where._conf_of(at_default.root, os.getuid() + 1)
    assert found is None


def test_missing_packages_are_named_once_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program, path: None if program in {"slurmdbd", "mariadbd"} else "/x")
    with pytest.raises(
        SubmitError, match=r"lacks slurmdbd, mariadbd: .*install -y slurmdbd mariadb-server; or .*--no-a"
    ):
        machine.check(Shape())


def test_the_site_of_the_private_cluster_says_that_one_machine_plays_all_nodes() -> None:
    local = site.load("slurm_local")
    assert (local.executor, local.virtual_nodes) == ("slurm", False)
    assert "one machine" in local.description and "mechanism, not scaling" in local.description
