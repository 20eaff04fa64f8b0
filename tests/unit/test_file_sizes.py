"""The question on file sizes, on planted runs: each finding in both directions, and not measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from analysis.cli import Answer
from analysis.file_sizes import FileSizes
from analysis.finding import Finding
from tests.unit.planted import Plan
from tests.unit.stored import Stored, ask

TORCH = Plan(nodes=1, framework="pytorch_ddp", format="torch_zip", file_bytes=4_000_000)
CHAINER = replace(TORCH, framework="chainer_chainermn", format="npz")
PLAIN = [Stored()]
SQUEEZED = [Stored(file_bytes=3_000_000)]


def named(answer: Answer, code: str) -> Finding:
    return next(finding for finding in answer.findings if finding.code == code)


def size(answer: Answer) -> dict:
    return next(row for row in answer.rows if row["about"] == "size")


def test_formats_of_other_sizes_are_told_apart_and_equal_ones_are_not(tmp_path: Path) -> None:
    other = named(ask(FileSizes(), tmp_path / "a", (TORCH, PLAIN), (CHAINER, SQUEEZED)), "FS01")
    equal = named(ask(FileSizes(), tmp_path / "b", (TORCH, PLAIN), (CHAINER, PLAIN)), "FS01")
    alone = named(ask(FileSizes(), tmp_path / "c", (TORCH, PLAIN)), "FS01")
    assert (other.verdict, round(other.value or 0, 3)) == ("supports", 1.333)
    assert (equal.verdict, equal.value) == ("contradicts", 1.0)
    assert alone.verdict == "not_measured"


def test_sizes_that_vary_with_the_model(tmp_path: Path) -> None:
    vgg, torch_vgg = replace(CHAINER, model="vgg16"), replace(TORCH, model="vgg16")
    runs = [(TORCH, PLAIN), (torch_vgg, PLAIN), (CHAINER, PLAIN), (vgg, SQUEEZED)]
    answer = ask(FileSizes(), tmp_path / "a", *runs)
    verdicts = {f.group.partition(",")[0]: f.verdict for f in answer.findings if f.code == "FS02"}
    assert verdicts == {
        "pytorch_ddp single_writer torch_zip": "contradicts",
        "chainer_chainermn single_writer npz": "supports",
    }
    assert named(answer, "FS03").verdict == "supports"
    swapped = ask(FileSizes(), tmp_path / "b", (TORCH, PLAIN), (torch_vgg, SQUEEZED), (CHAINER, PLAIN), (vgg, PLAIN))
    assert named(swapped, "FS03").verdict == "contradicts"
    one = ask(FileSizes(), tmp_path / "c", (TORCH, PLAIN), (torch_vgg, PLAIN))
    assert (named(one, "FS03").verdict, named(one, "FS03").reason) == (
        "not_measured",
        "these runs hold no two models of Chainer",
    )
    assert named(ask(FileSizes(), tmp_path / "d", (TORCH, PLAIN)), "FS02").verdict == "not_measured"


def test_chainer_is_compared_by_what_its_users_do_and_over_the_same_models(tmp_path: Path) -> None:
    """hdf5 by hand varies; the framework's own snapshot does not. And a model that only one of them saved."""
    snapshot = replace(CHAINER, strategy="chainer_snapshot")
    vgg, torch_vgg = (replace(plan, model="vgg16") for plan in (snapshot, TORCH))
    by_hand = replace(CHAINER, model="vgg16", format="hdf5", repeat=2)
    runs = [(snapshot, PLAIN), (vgg, PLAIN), (TORCH, PLAIN), (torch_vgg, PLAIN)]
    hand = [(replace(CHAINER, format="hdf5", repeat=2), PLAIN), (by_hand, SQUEEZED)]
    found = named(ask(FileSizes(), tmp_path / "a", *runs, *hand), "FS03")
    assert (found.verdict, "hdf5" in found.sentence) == ("contradicts", False)
    other = [(replace(TORCH, model="alexnet"), PLAIN), (replace(TORCH, model="resnet20"), PLAIN)]
    found = named(ask(FileSizes(), tmp_path / "b", (snapshot, PLAIN), (vgg, SQUEEZED), *other), "FS03")
    assert found.reason == "no two models were saved by all of the frameworks"


def test_formats_of_one_framework_that_differ_decide_nothing_of_it(tmp_path: Path) -> None:
    vgg, torch_vgg = (replace(plan, model="vgg16") for plan in (CHAINER, TORCH))
    plain = [replace(plan, format="npz_plain", repeat=2) for plan in (CHAINER, vgg)]
    runs = [(CHAINER, PLAIN), (vgg, SQUEEZED), (TORCH, PLAIN), (torch_vgg, PLAIN), *((each, PLAIN) for each in plain)]
    assert "depends on the format" in (named(ask(FileSizes(), tmp_path, *runs), "FS03").reason or "")


def test_a_model_is_named_once(tmp_path: Path) -> None:
    vgg = replace(CHAINER, model="vgg16")
    runs = [(CHAINER, PLAIN), (vgg, SQUEEZED), (replace(vgg, commit="d" * 40, repeat=2), SQUEEZED)]
    sentence = named(ask(FileSizes(), tmp_path, *runs), "FS02").sentence
    assert (sentence.count("vgg16"), sentence.count("small")) == (1, 1)


def test_a_size_that_grows_with_training_and_one_that_stays(tmp_path: Path) -> None:
    early = [Stored(file_bytes=2_000_000, generation=0)]
    late = [Stored(file_bytes=3_000_000, generation=g) for g in (1, 2)]
    grown = named(ask(FileSizes(), tmp_path / "a", (CHAINER, early + late)), "FS04")
    still = named(ask(FileSizes(), tmp_path / "b", (CHAINER, SQUEEZED)), "FS04")
    single = named(ask(FileSizes(), tmp_path / "c", (replace(CHAINER, generations=1), SQUEEZED)), "FS04")
    assert (grown.verdict, grown.value) == ("supports", 1.5)
    assert (still.verdict, still.value) == ("contradicts", 1.0)
    assert single.verdict == "not_measured"


def test_a_tensor_that_drags_a_storage_is_named_with_its_bytes(tmp_path: Path) -> None:
    view = [Stored(tensor="embedding", size=1_000_000, storage=4_000_000, file_bytes=4_001_000)]
    found = named(ask(FileSizes(), tmp_path / "a", (TORCH, view)), "FS05")
    assert (found.verdict, found.value) == ("supports", 3_000_000)
    assert "embedding (1000000 bytes in a storage of 4000000)" in found.sentence
    assert found.for_developers
    clean = named(ask(FileSizes(), tmp_path / "b", (TORCH, [Stored(storage=4_000_000)])), "FS05")
    assert clean.verdict == "contradicts"
    assert named(ask(FileSizes(), tmp_path / "c", (TORCH, PLAIN)), "FS05").verdict == "not_measured"


def test_small_and_large_write_calls(tmp_path: Path) -> None:
    large = named(ask(FileSizes(), tmp_path / "a", (TORCH, PLAIN)), "FS06")
    assert (large.verdict, large.value) == ("contradicts", 2_000_000)  # planted: two calls
    small_file = [Stored(size=8000, file_bytes=8000)]
    small = named(ask(FileSizes(), tmp_path / "b", (replace(TORCH, file_bytes=8000), small_file)), "FS06")
    assert (small.verdict, small.value) == ("supports", 4000)
    assert (small.level, "which is little to write in any calls" in small.sentence) == ("info", True)
    huge = [Stored(size=10**8, file_bytes=10**8)]
    many = named(ask(FileSizes(), tmp_path / "d", (replace(TORCH, file_bytes=10**8, calls=4000), huge)), "FS06")
    assert (many.verdict, many.level) == ("supports", "warning")
    unseen = named(ask(FileSizes(), tmp_path / "c", (replace(TORCH, log="none"), PLAIN)), "FS06")
    assert (unseen.verdict, unseen.reason) == ("not_measured", "no I/O log of this rank")


def test_many_small_files(tmp_path: Path) -> None:
    bits = [Stored(tensor=f"w{i}", size=1000, file_bytes=1000, name=f"-{i}") for i in range(5)]
    many = named(ask(FileSizes(), tmp_path / "a", (TORCH, bits)), "FS07")
    assert (many.verdict, many.value) == ("supports", 1.0)
    assert named(ask(FileSizes(), tmp_path / "b", (TORCH, PLAIN)), "FS07").verdict == "contradicts"


def test_what_is_no_parameter(tmp_path: Path) -> None:
    adam = [Stored(), Stored(tensor="m", kind="optimizer", size=8_000_000)]
    most = named(ask(FileSizes(), tmp_path / "a", (TORCH, adam)), "FS08")
    assert (most.verdict, round(most.value or 0, 3)) == ("supports", 0.667)
    assert named(ask(FileSizes(), tmp_path / "b", (TORCH, PLAIN)), "FS08").verdict == "contradicts"
    half = [Stored(), Stored(tensor="m", kind="optimizer"), Stored(tensor="b", kind="buffer", size=1000)]
    found = named(ask(FileSizes(), tmp_path / "d", (TORCH, half)), "FS08")
    assert (found.verdict, found.level) == ("contradicts", "ok")
    rng = named(ask(FileSizes(), tmp_path / "c", (TORCH, [Stored(kind="rng")])), "FS08")
    assert (rng.verdict, rng.reason) == ("not_measured", "the inventory lists no contents of kind parameter")


def test_kinds_add_up_to_the_file_with_its_container(tmp_path: Path) -> None:
    rng = Stored(tensor="rng", digest="r", kind="rng", size=5000, file_bytes=4_011_000)
    pieces = [Stored(file_bytes=4_011_000), rng]
    answer = ask(FileSizes(), tmp_path, (TORCH, pieces))
    kinds = {row["kind"]: row["kind_disk_bytes"] for row in answer.rows if row["about"] == "kind"}
    assert kinds == {"parameter": 4_000_000, "rng": 5000, "container": 6000}
    assert size(answer)["size_over_contents"] == 4_011_000 / 4_005_000
    assert [drawing.name for drawing in FileSizes().drawings(answer)] == ["kinds", "progress"]


def test_without_an_inventory_every_cell_has_its_reason(tmp_path: Path) -> None:
    answer = ask(FileSizes(), tmp_path, (TORCH, []))
    assert size(answer)["checkpoint_reason"]
    for view in FileSizes().views(answer):
        marks = {cell for cells in view.columns.values() for cell in cells if cell.startswith("n.m. ")}
        assert all(any(line.startswith(mark.removeprefix("n.m. ")) for line in view.below) for mark in marks)
    assert FileSizes().drawings(answer) == []
