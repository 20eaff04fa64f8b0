"""The report as a whole: what it holds, what it writes beside itself, and what a bad question costs it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analysis import __main__ as command
from analysis import cli, report, report_ask
from analysis.cli import questions
from analysis.report_files import SHOWN_FIGURES
from analysis.report_page import OPEN_FIGURES
from analysis.report_tables import SHOWN_ROWS
from analysis.tables import TABLES
from analysis.view import View
from hpcckpt.errors import ExitCode
from tests.unit.planted import Plan, plant_all
from tests.unit.reporting import HOSTILE, Fake, Page, drawing, fake, plain_finding, planted, two_campaigns


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the questions that there are."""

    def set_questions(*kinds: type[cli.Question]) -> None:
        monkeypatch.setattr(report_ask, "questions", lambda: {kind.name: kind for kind in kinds})

    return set_questions


def written(tables: Any, root: Path) -> tuple[report.Report, Page]:
    found = report.write(tables, root / "report.html")
    return found, Page((root / "report.html").read_text())


def test_every_question_is_in_the_page_and_the_files(tmp_path: Path) -> None:
    found, page = written(planted(tmp_path / "runs"), tmp_path)
    assert found.code == ExitCode.OK, [each.failures for each in found.asked]
    kinds = [kind for kind in questions().values() if kind.in_report]
    assert [each.name for each in found.asked] == [kind.name for kind in kinds]
    document = json.loads((tmp_path / "report.json").read_text())
    assert (document["schema_version"], document["failures"]) == (cli.SCHEMA_VERSION, {})
    assert len(document["runs"]) == 6
    assert [answer["question"] for answer in document["answers"]] == [kind.name for kind in kinds]
    for kind in kinds:
        assert kind.asks in page.text
        assert f"python -m analysis.{kind.name}" in page.text
        assert (tmp_path / "report-data" / f"{kind.name}.csv").exists()
    for name in TABLES:
        assert (tmp_path / "report-data" / "tables" / f"{name}.parquet").exists()
    assert pl.read_parquet(tmp_path / "report-data" / "tables" / "runs.parquet").height == 6


def test_page_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    _, page = written(planted(tmp_path / "runs"), tmp_path)
    assert (page.unbalanced, page.open) == ([], [])
    assert len(page.ids) == len(set(page.ids))
    assert not page.all("link") and not page.all("img") and not page.all("iframe")
    assert [set(each) for each in page.all("script")] == [set()]
    addresses = [each["href"] or "" for each in page.all("a")]
    inner = {address[1:] for address in addresses if address.startswith("#")}
    assert inner <= set(page.ids)
    files = [address for address in addresses if not address.startswith("#")]
    assert files
    assert [address for address in files if not (tmp_path / address).exists()] == []
    assert {each["scope"] for each in page.all("th")} == {"col", "row"}
    assert all(each["role"] == "img" and each["aria-label"] for each in page.all("svg"))


def test_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    tables = planted(tmp_path / "runs")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        report.write(tables, tmp_path / name / "report.html")
    for file in ("report.html", "report.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize("where", ["answer", "views", "drawings"])
def test_a_question_that_raises_costs_no_other(tmp_path: Path, only: Any, where: str) -> None:
    bad = fake(name="bad", asks="Is it bad?", raises=where, findings=(plain_finding(sentence="still said"),))
    good = fake(name="good", asks="Is it good?", shown=(View(title="T", columns={"a": ["cell"]}),))
    only(bad, good)
    found, page = written(planted(tmp_path / "runs", Plan()), tmp_path)
    assert found.code == ExitCode.UNEXPECTED
    assert f"RuntimeError: planted in {where}" in page.text
    assert "Is it bad?" in page.text and "Is it good?" in page.text and "cell" in page.text
    assert ("still said" in page.text) == (where != "answer")
    document = json.loads((tmp_path / "report.json").read_text())
    assert list(document["failures"]) == ["bad"]
    assert document["exit_code"] == 1


def test_unequal_columns_and_undrawable_figures_are_failures(tmp_path: Path, only: Any) -> None:
    uneven = fake(name="uneven", shown=(View(title="T", columns={"a": ["1"], "b": []}),))
    undrawable = fake(name="undrawable", drawn=(drawing(title="$broken{$"), drawing("two", "fine")))
    only(uneven, undrawable)
    found, page = written(planted(tmp_path / "runs", Plan()), tmp_path)
    assert "columns of different lengths" in found.asked[0].failures[0]
    assert "figure one failed" in found.asked[1].failures[0]
    assert [each["aria-label"] for each in page.all("svg")] == ["fine"]
    assert page.text.count("Failed.") == 2
    assert list(json.loads((tmp_path / "report.json").read_text())["failures"]) == ["uneven", "undrawable"]


def test_questions_that_need_other_input_are_not_asked(tmp_path: Path, only: Any) -> None:
    only(fake(name="one"), fake(name="other", in_report=False))
    found, _ = written(planted(tmp_path / "runs", Plan()), tmp_path)
    assert [each.name for each in found.asked] == ["one"]


def test_hostile_texts_stay_texts(tmp_path: Path, only: Any) -> None:
    finding = plain_finding(claim=HOSTILE, sentence=HOSTILE, group=HOSTILE, recommendation=HOSTILE, evidence=[HOSTILE])
    view = View(title=HOSTILE, columns={HOSTILE: [HOSTILE], "n": ["1"]}, above=[HOSTILE], below=[HOSTILE])
    only(fake(asks=HOSTILE, findings=(finding,), notes=(HOSTILE,), shown=(view,), drawn=(drawing(title=HOSTILE),)))
    campaign = HOSTILE.replace("/", "\u2215")
    found, page = written(planted(tmp_path / "runs", Plan(campaign=campaign)), tmp_path)
    assert found.code == ExitCode.OK, found.asked[0].failures
    assert (page.unbalanced, page.open) == ([], [])
    assert len(page.all("script")) == 1
    assert not page.all("img")
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert page.text.count(HOSTILE) >= 10
    assert campaign in page.text
    assert "49" not in re.findall(r"ünïcödé 漢字 (\S+)", page.text)


def test_long_tables_are_cut_with_a_note_and_a_file(tmp_path: Path, only: Any) -> None:
    cells = [str(number) for number in range(SHOWN_ROWS + 50)]
    only(fake(shown=(View(title="T", columns={"a": cells}, below=cells), View(title="U", columns={"a": ["1"]}))))
    _, page = written(planted(tmp_path / "runs", Plan()), tmp_path)
    assert f"The first {SHOWN_ROWS} of {SHOWN_ROWS + 50} rows are shown" in page.text
    whole = (tmp_path / "report-data" / "table-fake-1.csv").read_text().splitlines()
    assert whole[1 : SHOWN_ROWS + 51] == cells
    assert not (tmp_path / "report-data" / "table-fake-2.csv").exists()


def test_many_figures_are_cut_with_a_note(tmp_path: Path, only: Any) -> None:
    only(fake(drawn=tuple(drawing(f"d{i}") for i in range(SHOWN_FIGURES + 1))))
    _, page = written(planted(tmp_path / "runs", Plan()), tmp_path)
    assert len(page.all("svg")) == SHOWN_FIGURES
    assert f"The first {SHOWN_FIGURES} of {SHOWN_FIGURES + 1} figures are shown" in page.text
    assert f"{SHOWN_FIGURES - OPEN_FIGURES} more figures" in page.text


def test_findings_stand_by_level_with_advice_once(tmp_path: Path, only: Any) -> None:
    both = [plain_finding(group=name, for_developers="fix the library") for name in ("g1", "g2")]
    fine = plain_finding(code="XX02", level="ok", verdict="contradicts", sentence="all well")
    only(fake(findings=(fine, *both, plain_finding(code="XX03", level="critical", sentence="lost"))))
    _, page = written(planted(tmp_path / "runs", Plan()), tmp_path)
    text = page.text[page.text.rindex("Findings") - 20 :]
    assert page.text.count("fix the library") == 1
    assert "it is so: holds in 2 fake" in page.text
    order = [page.ids.index(f"finding-XX0{number}") for number in (3, 1, 2)]
    assert order == sorted(order), text


def test_head_says_one_machine_faults_and_what_is_missing(tmp_path: Path) -> None:
    _, page = written(two_campaigns(tmp_path / "runs"), tmp_path)
    assert "4 runs with 12 checkpoints in 2 campaigns, on 1 to 4 nodes; 1 left out." in page.text
    assert "One machine: mechanism, not scaling." in page.text
    assert "Incomplete." in page.text
    assert "not_done" in page.text


def test_no_runs_at_all_is_a_report_too(tmp_path: Path) -> None:
    found, page = written(planted(tmp_path / "runs", Plan(state="queued")), tmp_path)
    assert found.code in (ExitCode.RUNS_FAILED, ExitCode.UNEXPECTED)
    assert [each.failures for each in found.asked if each.failures] == []
    assert "No run can be counted" in page.text


def test_command_line_writes_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    campaign = plant_all(tmp_path, [Plan(log="none")])
    out = tmp_path / "deep" / "page.html"
    assert command.main(["report", str(campaign), "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    assert out.exists() and out.with_suffix(".json").exists() and out.with_name("page-data").is_dir()


@pytest.mark.parametrize("arguments", [["--out", "page.txt"], ["no-such-runs"]])
def test_bad_usage_is_one_sentence(arguments: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main(["report", *arguments]) == ExitCode.BAD_SPEC
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_brief_answers_every_question(tmp_path: Path, only: Any, capsys: pytest.CaptureFixture[str]) -> None:
    several = [plain_finding(code="XX02", group=name) for name in ("g1", "g2")]
    only(fake(name="one", findings=(plain_finding(), *several)), fake(name="bad", raises="answer"))
    campaign = plant_all(tmp_path, [Plan(log="none")])
    assert command.main([str(campaign)]) == ExitCode.UNEXPECTED
    seen = capsys.readouterr()
    assert "XX01 warning: it is so: holds: it is so, by far" in seen.out
    assert "XX02 warning: it is so: holds in all 2" in seen.out
    assert f"python -m analysis.one {campaign}" in seen.out
    assert "failed: the answer failed: RuntimeError: planted in answer" in seen.out
    assert "bad: the answer failed" in seen.err


def test_help_lists_questions_and_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"])
    text = capsys.readouterr().out
    assert all(f"python -m analysis.{name}\n" in text for name in questions())
    assert "python -m analysis report" in text and "python -m analysis collect" in text


def test_default_is_the_newest_campaign(tmp_path: Path, monkeypatch: Any, only: Any, capsys: Any) -> None:
    only(Fake)
    plant_all(tmp_path / "runs", [Plan(log="none")])
    monkeypatch.setenv(cli.RUNS_VARIABLE, str(tmp_path / "runs"))
    assert command.main([]) == 0
    assert "1 run of" in capsys.readouterr().out
    monkeypatch.setenv(cli.RUNS_VARIABLE, str(tmp_path / "empty"))
    assert command.main([]) == ExitCode.RUNS_FAILED
