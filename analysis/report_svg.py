"""Makes a figure's SVG fit to stand inside a page beside others: its ids its own, its size the page's.

Reads what matplotlib writes, nothing else. How a figure looks is decided in `analysis.figures`.
"""

from __future__ import annotations

import re
from html import escape

_TAG = re.compile(r"<[^>]+>")  # matplotlib escapes < and > inside texts and attributes
_ID = re.compile(r'\s\bid="([^"]*)"')
_REFERENCE = re.compile(r'(\bhref="|url\()#([^")]*)')
_COORDINATES = re.compile(r'\b(?:d|x|y|points|transform)="[^"]*"')
_FINE = re.compile(r"(-?\d+\.\d\d)\d+")  # a hundredth of a point is finer than any screen
_FAMILY = re.compile(r"font-family: ([^;\"]*);? ?")
_UNTURNED = re.compile(r'\stransform="rotate\(-?0 [^"]*"')
_STYLE = re.compile(r"(<style[^>]*>)\s*\*\s*\{")
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_INDENT = re.compile(r">\s*\n\s*<")
_SIZE = re.compile(r'\s(?:width|height|version|id|role|aria-label)="[^"]*"')
_WIDTH = re.compile(r'<svg[^>]*\bwidth="([\d.]+)pt"')
PIXELS_PER_POINT = 96 / 72
FAMILY = "'DejaVu Sans', Verdana, Arial, sans-serif"


def inline(svg: str, prefix: str, words: str) -> str:
    """The figure as an element: every id begins with `prefix`, and `words` stand for it where it is not seen."""
    body = _INDENT.sub(">\n<", _METADATA.sub("", svg[svg.index("<svg") :]))
    used = {found.group(2) for tag in _TAG.finditer(body) for found in _REFERENCE.finditer(tag.group())}
    body = _TAG.sub(lambda tag: _own(_lighter(tag.group()), prefix, used), body)
    body = _STYLE.sub(rf"\1#{prefix} *{{", body)  # a style sheet inside would hold for the whole page
    head = _TAG.match(body)
    assert head is not None  # index() found it
    opening = _SIZE.sub("", head.group()).removesuffix(">")
    style = f"--natural: {natural_width(svg)}px; font-family: {FAMILY}"
    return f'{opening} id="{prefix}" role="img" aria-label="{escape(words)}" style="{style}">{body[head.end() :]}'


def natural_width(svg: str) -> int:
    """Width in CSS pixels that the figure was drawn for."""
    found = _WIDTH.search(svg)
    return round(float(found.group(1)) * PIXELS_PER_POINT) if found else 720


def _lighter(tag: str) -> str:
    """The tag without what says nothing: a third of a figure's size."""
    tag = _COORDINATES.sub(lambda found: _FINE.sub(r"\1", found.group()), tag)
    return _UNTURNED.sub("", _FAMILY.sub("", tag))


def _own(tag: str, prefix: str, used: set[str]) -> str:
    """The tag with its id and references under the prefix; an id that nobody refers to goes."""
    tag = _ID.sub(lambda found: f' id="{prefix}-{found.group(1)}"' if found.group(1) in used else "", tag)
    return _REFERENCE.sub(lambda found: f"{found.group(1)}#{prefix}-{found.group(2)}", tag)
