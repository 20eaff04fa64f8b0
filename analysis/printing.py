"""Printing a view on a terminal. What stands in it, and its rounding, is the question's business."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from analysis.view import View

if TYPE_CHECKING:
    from rich.console import Console


def print_view(out: Console, view: View) -> None:
    """Title, what its rows have in common, table, and what is to be known of its cells."""
    from rich.markup import escape

    if view.title:
        out.print(f"[bold]{escape(view.title)}[/bold]")
    for line in view.above:
        out.print(escape(line))
    if any(view.columns.values()):
        print_table(out, view.columns, view.left)
    for line in view.below:
        out.print(f"  {escape(line)}")
    if view.below:
        out.print()


def print_table(out: Console, columns: dict[str, list[str]], left: Collection[str] = ()) -> None:
    """Columns by heading, aligned right but those in `left`.

    A table that is wider than the screen keeps its width: cut numbers would be worse.
    """
    from rich import box
    from rich.markup import escape
    from rich.measure import Measurement
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in columns:
        table.add_column(escape(heading), justify="left" if heading in left else "right", no_wrap=True)
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*map(escape, cells))
    screen = out.width
    out.width = max(screen, Measurement.get(out, out.options.update(max_width=1000), table).maximum)
    out.print(table)
    out.width = screen
