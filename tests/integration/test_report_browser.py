"""The report in a real browser: nothing loaded, no error, figures seen, tables sorted, phone and paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis import report, report_ask
from analysis.view import View
from tests.integration.browser import Browser, browser, program
from tests.unit.planted import Plan
from tests.unit.reporting import HOSTILE, drawing, fake, plain_finding, planted

pytestmark = pytest.mark.integration
PHONE = 390
CELLS = ["12.3 [11, 14]", "n.m. (1)", "<0.001", "9.87", "-2", "1,024", "2 MB", "3 kB", "0", "-"]
RISING = ["-2", "0", "<0.001", "9.87", "12.3 [11, 14]", "1,024", "3 kB", "2 MB", "n.m. (1)", "-"]
FALLING = [*reversed(RISING[:-2]), *RISING[-2:]]
NAMES = ["n10", "n9", "N2", "", "a", "b", "c", "d", "e", "f"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = program()
    if path is None:
        pytest.skip("no Chromium or Chrome on PATH")
    with browser(path) as found:
        yield found


@pytest.fixture(scope="module")
def planted_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every question's own answers to planted runs."""
    root = tmp_path_factory.mktemp("planted")
    return report.write(planted(root / "runs"), root / "report.html").places.page


@pytest.fixture(scope="module")
def made_up_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One question with hostile texts, a table to sort, a wide one, and two figures."""
    root = tmp_path_factory.mktemp("made-up")
    sortable = View(title="Sortable", columns={"name": NAMES, "value": CELLS}, left=["name"])
    wide = View(title="Wide", columns={f"column {i}": [f"value {i} {HOSTILE}"] for i in range(30)})
    kind = fake(
        asks=HOSTILE,
        findings=tuple(plain_finding(code=f"XX0{i}", group=HOSTILE * 3, level="info") for i in (1, 2)),
        notes=(HOSTILE, "x" * 500),
        shown=(sortable, wide),
        drawn=(drawing("one", "First"), drawing("two", "Second")),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_ask, "questions", lambda: {"fake": kind})
        return report.write(planted(root / "runs", Plan()), root / "report.html").places.page


@pytest.mark.parametrize("width", [1280, PHONE])
@pytest.mark.parametrize("name", ["planted_page", "made_up_page"])
def test_opens_without_errors_or_requests_and_fits(
    chromium: Browser, name: str, width: int, request: pytest.FixtureRequest
) -> None:
    page: Path = request.getfixturevalue(name)
    chromium.open(page, width)
    assert chromium.run("document.documentElement.classList.contains('scripted')")
    assert chromium.run("document.documentElement.scrollWidth") == width
    assert chromium.errors == []
    assert chromium.requests == [page.resolve().as_uri()]


@pytest.mark.parametrize("width", [1280, PHONE])
def test_every_figure_is_seen(chromium: Browser, planted_page: Path, width: int) -> None:
    chromium.open(planted_page, width)
    chromium.run("document.querySelectorAll('#figures details').forEach(d => { d.open = true; })")
    boxes = chromium.run(
        "[...document.querySelectorAll('figure svg')].map(s => [s.getBoundingClientRect().width,"
        " s.getBoundingClientRect().height, s.querySelectorAll('path').length])"
    )
    assert boxes
    assert all(width > 200 and height > 100 and paths > 5 for width, height, paths in boxes)


def cells(page: Browser, column: int) -> list[str]:
    found: list[str] = page.run(
        f"[...document.querySelector('#table-fake-1').tBodies[0].rows].map(r => r.cells[{column}].textContent)"
    )
    return found


def test_tables_sort_by_click_and_by_key(chromium: Browser, made_up_page: Path) -> None:
    chromium.open(made_up_page)
    assert cells(chromium, 1) == CELLS
    head = "document.querySelector('#table-fake-1 th:nth-child(2) button')"
    chromium.run(f"{head}.click()")
    assert cells(chromium, 1) == RISING
    assert chromium.run(f"{head}.closest('th').getAttribute('aria-sort')") == "ascending"
    chromium.run(f"{head}.focus()")
    chromium.press("Enter", 13)
    assert cells(chromium, 1) == FALLING
    assert chromium.run(f"{head}.closest('th').getAttribute('aria-sort')") == "descending"
    chromium.run("document.querySelector('#table-fake-1 th button').click()")
    assert cells(chromium, 0) == ["a", "b", "c", "d", "e", "f", "N2", "n9", "n10", ""]
    assert chromium.run(f"{head}.closest('th').getAttribute('aria-sort')") == "none"


def test_tables_are_copied_and_saved_whole(chromium: Browser, made_up_page: Path) -> None:
    chromium.open(made_up_page)
    # What would go to the clipboard and to a file is caught where the page hands it over.
    chromium.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    chromium.run("URL.createObjectURL = (blob) => { window.saved = blob.text(); return '#'; }")
    chromium.run("document.querySelector('.block:has(#table-fake-1) .copy').click()")
    assert chromium.run("window.copied").splitlines()[:2] == ["name\tvalue", f"n10\t{CELLS[0]}"]
    chromium.run("document.querySelector('.block:has(#table-fake-1) .csv').click()")
    assert chromium.run("window.saved").splitlines()[:2] == ["name,value", f'n10,"{CELLS[0]}"']
    chromium.run("document.querySelector('figure .svg').click()")
    text = chromium.run("window.saved")
    assert text.startswith("<svg") and 'width="288pt"' in text and "First" in text
    assert chromium.errors == []


def test_a_figure_is_enlarged_and_put_back(chromium: Browser, made_up_page: Path) -> None:
    chromium.open(made_up_page, PHONE)
    chromium.run("document.querySelector('figure .enlarge').click()")
    assert chromium.run("document.querySelector('dialog[open] svg').getBoundingClientRect().width") >= 380
    chromium.press("Escape", 27)
    back = "document.querySelectorAll('figure svg').length"
    assert chromium.run(f"new Promise(done => setTimeout(() => done({back}), 50))") == 2
    assert chromium.run("document.querySelector('dialog').open") is False


def test_an_address_into_something_folded_opens_it(chromium: Browser, made_up_page: Path) -> None:
    chromium.open(made_up_page)
    chromium.run("document.querySelectorAll('#findings details').forEach(d => { d.open = false; })")
    chromium.run("location.hash = '#finding-XX02'")
    visible = "document.querySelector('#finding-XX02').getBoundingClientRect().height > 0"
    assert chromium.run(f"new Promise(done => setTimeout(() => done({visible}), 100))") is True


def test_wide_tables_scroll_inside_their_box(chromium: Browser, made_up_page: Path) -> None:
    chromium.open(made_up_page, PHONE)
    inner, outer = chromium.run(
        "(box => [box.scrollWidth, box.clientWidth])(document.querySelector('#table-fake-2').closest('.scroll'))"
    )
    assert outer <= PHONE < inner


def test_prints_with_everything_unfolded(chromium: Browser, planted_page: Path) -> None:
    chromium.open(planted_page)
    folded = "document.querySelectorAll('.level:not([open])').length"
    chromium.run(f"window.addEventListener('beforeprint', () => {{ window.folded = {folded}; }})")
    pdf = chromium.pdf()
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 2
    assert chromium.run("window.folded") == 0


def test_text_is_dark_enough_to_read(chromium: Browser, planted_page: Path) -> None:
    """Contrast of every text on its page's white or wash: at least 4.5, by WCAG's formula."""
    chromium.open(planted_page)
    faint = chromium.run(
        """(() => {
          const part = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
          const light = (rgb) => 0.2126 * part(rgb[0]) + 0.7152 * part(rgb[1]) + 0.0722 * part(rgb[2]);
          const colour = (text) => text.match(/[\\d.]+/g).map(Number);
          const ground = (e) => { for (; e; e = e.parentElement) {
            const found = colour(getComputedStyle(e).backgroundColor);
            if (found.length === 3 || found[3] > 0.5) return found; } return [255, 255, 255]; };
          return [...document.querySelectorAll('main *')].filter((e) => !e.closest('svg')
            && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())).filter((e) => {
              const [a, b] = [light(colour(getComputedStyle(e).color)), light(ground(e))];
              return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
            }).map((e) => e.outerHTML.slice(0, 100));
        })()"""
    )
    assert faint == []
