"""The rows on file sizes as a person sees them. Presentation only: rounding, no arithmetic on measurements."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.rows import Row, places
from analysis.view import TEXTS, Reasons, View, mega, number, told_apart

LEFT = ["framework", "strategy", "format", "model", "kind", "tensor", *TEXTS]
KIB = 1024


def views(rows: Sequence[Row]) -> list[View]:
    """Per place: sizes, how they are written, kinds, and tensors that drag a storage."""
    found = []
    for place in places(rows):
        here = [row for row in rows if row["place"] == place]
        parts = {about: [row for row in here if row["about"] == about] for about in ("size", "kind", "dragger")}
        found += [_sizes(place, parts["size"]), _writing(parts["size"])]
        found += [_kinds(parts["kind"])] if parts["kind"] else []
        found += [_draggers(parts["dragger"])] if parts["dragger"] else []
    return found


def names(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The columns that say which row it is."""
    return told_apart(("framework", "strategy", "format", "model"), rows)


def _sizes(place: str, rows: Sequence[Row]) -> View:
    reasons = Reasons()

    def cells(texts: Sequence[str | None], reason: str) -> list[str]:
        return [reasons.cell(text, row[reason]) for text, row in zip(texts, rows, strict=True)]

    columns = {
        "runs": [str(row["runs"]) for row in rows],
        "MB\non disk": cells([mega(row["checkpoint_bytes"]) for row in rows], "checkpoint_reason"),
        "MB\ncontents": cells([mega(row["logical_bytes"]) for row in rows], "logical_reason"),
        "disk over\ncontents": cells([number(row["size_over_contents"], 4) for row in rows], "logical_reason"),
        "bytes per\nparameter": cells([number(row["bytes_per_parameter"]) for row in rows], "checkpoint_reason"),
        "first\nMB": cells([mega(row["first_bytes"]) for row in rows], "last_over_first_reason"),
        "last over\nfirst": cells([number(row["last_over_first_ratio"], 4) for row in rows], "last_over_first_reason"),
    }
    return View(title=place, columns=names(rows) | columns, left=LEFT, below=reasons.lines())


def _writing(rows: Sequence[Row]) -> View:
    reasons = Reasons()

    def cells(texts: Sequence[str | None], reason: str) -> list[str]:
        return [reasons.cell(text, row[reason]) for text, row in zip(texts, rows, strict=True)]

    kib = [None if row["bytes_per_call"] is None else row["bytes_per_call"] / KIB for row in rows]
    columns = {
        "files": cells([number(row["files"]) for row in rows], "files_reason"),
        "of them\n< 1 MiB": cells([number(row["small_files"]) for row in rows], "files_reason"),
        "largest\nMB": cells([mega(row["largest_file_bytes"]) for row in rows], "files_reason"),
        "write\ncalls": cells([number(row["write_calls"]) for row in rows], "write_calls_reason"),
        "KiB a\ncall": cells([number(value) for value in kib], "write_calls_reason"),
    }
    legend = "per checkpoint, all ranks together; calls by the I/O trace"
    return View(title="", columns=names(rows) | columns, left=LEFT, below=[legend, *reasons.lines()])


def _kinds(rows: Sequence[Row]) -> View:
    """One line per row, one column per kind."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    groups = list(dict.fromkeys(row["group"] for row in rows))
    first = [next(row for row in rows if row["group"] == group) for group in groups]
    cells = {(row["group"], row["kind"]): mega(row["kind_disk_bytes"]) or "n.m." for row in rows}
    columns = {f"{kind.replace('_', ' ')}\nMB": [cells.get((group, kind), "-") for group in groups] for kind in kinds}
    below = ["-: the files hold nothing of this kind; n.m.: the size of a file is not known"]
    return View(title="", columns=names(first) | columns, left=LEFT, below=below)


def _draggers(rows: Sequence[Row]) -> View:
    columns = {
        "tensor": [row["tensor"] for row in rows],
        "bytes": [str(row["tensor_bytes"]) for row in rows],
        "of storage": [str(row["storage_bytes"]) for row in rows],
        "dragged\nat most": [str(row["dragged_bytes"]) for row in rows],
    }
    legend = "tensors whose file holds more of their storage than they use"
    return View(title="", columns=names(rows) | columns, left=LEFT, below=[legend])
