"""The report's parts: figures made fit for a page, tables, laws, reasons, manifests, words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from analysis import laws, report_environment, report_runs, report_trust
from analysis.collect import collect
from analysis.figures import save_svg
from analysis.finding import not_measured
from analysis.report_ask import Asked, brief, digests, level_counts
from analysis.report_page import bracket
from analysis.report_svg import inline, natural_width
from analysis.report_tables import tables, tone
from analysis.tables import Tables
from analysis.view import View
from hpcckpt.experiment import Fault
from tests.unit.planted import Plan, plant, plant_all, read_trace
from tests.unit.reporting import drawing, fake, plain_finding, planted


def svg(tmp_path: Path, title: str = "A <title> & more") -> str:
    path = tmp_path / "figure.svg"
    save_svg(drawing(title=title).figure, path)
    return path.read_text()


def test_ids_of_two_equal_figures_do_not_meet(tmp_path: Path) -> None:
    text = svg(tmp_path)
    both = inline(text, "a", "words") + inline(text, "b", "words")
    ids = re.findall(r'\bid="([^"]+)"', both)
    assert len(ids) == len(set(ids)) > 4
    references = re.findall(r'(?:url\(|href=")#([^")]+)', both)
    assert references
    assert set(references) == set(ids) - {"a", "b"}


def test_figure_keeps_its_texts_and_gets_the_pages_size(tmp_path: Path) -> None:
    found = inline(svg(tmp_path), "a", 'say "it"')
    head = found[: found.index(">")]
    assert 'role="img"' in head and 'aria-label="say &quot;it&quot;"' in head and "viewBox" in head
    assert " width=" not in head and " height=" not in head
    assert "A &lt;title&gt; &amp; more" in found
    assert "<metadata" not in found and "<?xml" not in found
    assert "#a *{" in found
    assert natural_width(svg(tmp_path)) == 384


def test_a_text_that_looks_like_an_id_stays_as_it_is(tmp_path: Path) -> None:
    assert '>id="x" url(#y)</text>' in inline(svg(tmp_path, 'id="x" url(#y)'), "a", "words")


def test_tables_have_kinds_tones_and_the_title_they_go_on_under() -> None:
    view = View(title="T", columns={"who\nwrites": ["a"], "\nn": ["n.m. (1)"]}, left=["who\nwrites"])
    first, second = tables([view, View(title="", columns={"a": []})], "p")
    assert [(column.lines, column.kind) for column in first.columns] == [(["who", "writes"], "text"), (["n"], "number")]
    assert [cell.tone for cell in first.rows[0]] == ["", "missing"]
    assert (second.title, second.label, second.total, second.anchor) == ("", "T", 0, "p-2")
    assert [tone(text) for text in ("kept", "broken", "differs: w", "12")] == ["good", "bad", "bad", ""]


def law_of(found: list[dict[str, Any]], law: str) -> list[tuple[str, str]]:
    return [(row["verdict"], row["detail"]) for row in found if row["law"] == law]


def test_six_laws_for_runs_counted_and_left_out(tmp_path: Path) -> None:
    broken = Plan(repeat=2, digest={1: "other"})
    found = planted(tmp_path, Plan(), broken, Plan(repeat=3, state="queued"), Plan(repeat=4, traced_share=0.5))
    rows = report_trust.rows(found)
    assert [verdict for verdict, _ in law_of(rows, laws.REPLICAS)] == ["kept", "broken", "kept"]
    assert [verdict for verdict, _ in law_of(rows, report_trust.REASONED)] == ["kept"] * 3
    assert law_of(rows, report_trust.COMPLETE)[-1] == ("broken", "not_done: queued")
    matrix = report_trust.matrix(found, rows)
    assert matrix.columns["3\nreplicas"] == ["kept", "broken", "kept", "-"]
    assert matrix.columns["6\ncomplete"] == ["kept", "kept", "kept", "broken"]
    assert matrix.columns["in pooled\nnumbers"] == ["yes", "no", "yes", "no"]
    assert matrix.columns["coverage\nleast"] == ["1.0000", "1.0000", "0.5000", "-"]
    counts = report_trust.tally(rows)
    assert counts.columns["broken"] == ["1", "0", "1", "0", "0", "1"]
    detail = report_trust.details(rows)
    assert detail.columns["verdict"][:3] == ["broken"] * 3
    assert any("read back equal" in text for text in detail.columns["what was found"])


def test_a_missing_number_without_a_reason_breaks_law_five(tmp_path: Path) -> None:
    found = planted(tmp_path, Plan())
    bare = found.saves.with_columns(coverage_min=pl.lit(None, pl.Float64), coverage_reason=pl.lit(None, pl.String))
    broken = law_of(report_trust.rows(msgspec.structs.replace(found, saves=bare)), report_trust.REASONED)
    assert broken == [("broken", "saves.coverage_min holds neither a number nor a reason")]


def test_reasons_are_gathered_from_findings_tables_and_cells(tmp_path: Path) -> None:
    found = planted(tmp_path, Plan(log="none", control=False))
    missing = [not_measured("XX01", "c", group, "no such thing", []) for group in ("a", "b")]
    asked = Asked(name="fake", asks="?", answer=fake(findings=tuple(missing))().answer(found))
    asked.views = [View(title="T", below=["(1) not measured: a cell's reason", "other words"])]
    columns = report_trust.not_measured(found, [asked]).columns
    places = dict(zip(columns["reason"], columns["missing"], strict=True))
    assert places["no such thing"] == "finding XX01 (2)"
    assert places["a cell's reason"] == "cells of fake (1)"
    assert "runs.overhead_s (1)" in places["no control leg"]
    assert "saves.writers_seen (3)" in places["rank 0: no I/O log of this rank"]


def with_manifest(path: Path, manifest: Any) -> Path:
    versioned = {"schema_version": 1, **manifest} if isinstance(manifest, dict) else manifest
    (path / "manifest.json").write_text(json.dumps(versioned))
    return path


def test_manifests_that_differ_stand_side_by_side(tmp_path: Path) -> None:
    host = {"name": "n1", "processor": "EPYC", "cores": 2, "memory_bytes": 2**34}
    for repeat in (1, 2, 3):
        name = {**host, "name": "n2"} if repeat == 3 else host
        scratch = {"path": f"/scratch/{repeat}", "filesystem": "xfs"}
        with_manifest(plant(tmp_path, Plan(repeat=repeat)), {"code": {"commit": "c"}, "host": name, "scratch": scratch})
    found = report_environment.environments(collect([tmp_path], read_trace))
    assert [len(each.runs) for each in found] == [2, 1]
    view = report_environment.views(found)[0]
    assert list(view.columns) == ["entry", "1\n2 runs", "2\n1 run"]
    assert "scratch.path" not in view.columns["entry"]
    words = "EPYC, 2 cores, 16.0 GiB, scratch on xfs"
    assert report_environment.machines(found) == [f"n1: {words}", f"n2: {words}"]


@pytest.mark.parametrize("manifest", [[], None, {"host": None}, {"host": {"cores": None, "memory_bytes": "?"}}])
def test_odd_manifests_are_shown_as_they_are(tmp_path: Path, manifest: Any) -> None:
    with_manifest(plant(tmp_path, Plan()), manifest)
    tables = collect([tmp_path], read_trace)
    found = report_environment.environments(tables)
    assert report_environment.machines(found)
    assert report_environment.views(found)
    assert report_runs.facts(tables, found)


def test_no_manifest_is_not_recorded(tmp_path: Path) -> None:
    plant(tmp_path, Plan(commit=None))
    found = report_environment.environments(collect([tmp_path], read_trace))
    assert found[0].entries == {"manifest.json": "not measured: No such file or directory"}


def test_banners(tmp_path: Path) -> None:
    def heads(name: str, *plans: Plan) -> list[str]:
        return [banner.head for banner in report_runs.banners(planted(tmp_path / name, *plans))]

    assert heads("a", Plan(virtual_nodes=False)) == []
    assert heads("b", Plan(digest={1: "other"}))[0] == "Not trustworthy as it stands"
    assert heads("c", Plan(), Plan(repeat=2, state="queued"))[0] == "Incomplete"
    faults = [Fault(rank=0, at="before_save", action="sleep", seconds=1.0)]
    assert heads("d", Plan(faults=faults))[-1] == "Planted faults"


def test_when_and_spans(tmp_path: Path) -> None:
    tables: Tables = collect([plant_all(tmp_path, [Plan(started=1e9), Plan(repeat=2)])], read_trace)
    assert report_runs.when(tables.runs) == "2001-09-09 01:46 to 01:46 UTC"
    assert report_runs.when(tables.runs.head(0)) == "not recorded"
    assert [report_runs.span(values) for values in ([1], [1, 8], [0.5, 2])] == ["1", "1 to 8", "0.5 to 2"]


def test_phases_of_the_legend_are_those_that_took_time(tmp_path: Path) -> None:
    names = [phase.name for phase in report_runs.phases(planted(tmp_path, Plan(late_s={1: 0.1})))]
    assert "write" in names and "wait before" in names and "sync" not in names


def test_digests_and_counts() -> None:
    mixed = [
        plain_finding(),
        plain_finding(verdict="contradicts", level="ok"),
        not_measured("XX01", "it is so", "g", "why", []),
    ]
    (found,) = digests(mixed)
    assert (found.level, found.measured) == ("warning", True)
    assert found.verdicts == "holds in 1, does not hold in 1, not measured in 1 of 3"
    assert level_counts(mixed) == "3 findings: 1 warning, 1 not measured"
    assert level_counts([]) == ""
    assert bracket(plain_finding(value=1.23456, low=1, high=2, unit="s")) == "1.235 [1, 2] s"
    assert bracket(plain_finding(value=24216.7, unit="bytes")) == "24,217 bytes"
    assert bracket(plain_finding()) == ""


def test_a_code_with_many_claims_is_one_line_in_brief() -> None:
    many = digests([plain_finding(claim=f"claim {i}", level="info" if i else "warning") for i in range(9)])
    (found,) = brief(many)
    assert (found.claim, found.level) == ("9 claims, as “claim 0”", "warning")
    assert (found.verdicts, found.counts) == ("holds in all 9", "holds in 9")
    assert brief(many[:3]) == many[:3]
