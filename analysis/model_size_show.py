"""The rows on model size as a person sees them. Presentation only: rounding, no arithmetic on measurements."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.rows import Row, places
from analysis.view import TEXTS, Reasons, View, mega, number, told_apart

LEFT = ["framework", "strategy", "format", "model", "models", "of", *TEXTS]
_UNITS = {"stall": ("ms", 1e3), "checkpoint": ("MB", 1e-6), "extra": ("MB", 1e-6)}


def views(rows: Sequence[Row]) -> list[View]:
    """Per place: models with their numbers, and the lines through them."""
    found = []
    for place in places(rows):
        here = [row for row in rows if row["place"] == place]
        found += [_models(place, [row for row in here if row["about"] == "model"])]
        fits = [row for row in here if row["about"] == "fit"]
        found += [_fits(fits)] if fits else []
    return found


def _models(place: str, rows: Sequence[Row]) -> View:
    reasons = Reasons()
    ordered = sorted(rows, key=lambda row: (row["series"], row["parameters"]))

    def cells(texts: Sequence[str | None], metric: str) -> list[str]:
        return [reasons.cell(text, row[f"{metric}_reason"]) for text, row in zip(texts, ordered, strict=True)]

    columns = {
        **told_apart(("framework", "strategy", "format", "model"), ordered),
        "runs": [str(row["runs"]) for row in ordered],
        "M para-\nmeters": [mega(row["parameters"]) or "" for row in ordered],
        "stall ms\nmedian [low, high]": cells([_bracket(row) for row in ordered], "stall"),
        "MB\non disk": cells([mega(row["checkpoint_bytes"]) for row in ordered], "checkpoint"),
        "bytes per\nparameter": cells([number(row["checkpoint_per_parameter"], 4) for row in ordered], "checkpoint"),
        "disk over\nstate": cells([number(row["per_state"], 4) for row in ordered], "checkpoint"),
        "extra\nmemory MB": cells([mega(row["extra_bytes"]) for row in ordered], "extra"),
    }
    return View(title=place, columns=columns, left=LEFT, below=reasons.lines())


def _bracket(row: Row) -> str | None:
    value, low, high = (_milli(row[f"stall_{part}s"]) for part in ("", "low_", "high_"))
    return value if value is None or row["stall_runs"] < 2 else f"{value} [{low}, {high}]"


def _milli(value: float | None) -> str | None:
    return number(None if value is None else value * 1e3)


def _fits(rows: Sequence[Row]) -> View:
    reasons = Reasons()
    columns = {
        **{name: [str(row[name]) for row in rows] for name in ("framework", "strategy", "format")},
        "of": [row["metric"] for row in rows],
        "models": [", ".join(dict.fromkeys(row["models"])) for row in rows],
        "runs": [str(row["runs"]) for row in rows],
        "per million parameters\n[95 %]": [reasons.cell(_slope(row), row["reason"]) for row in rows],
        "R2": [reasons.cell(number(row["r2"]), row["reason"]) for row in rows],
    }
    return View(title="", columns=columns, left=LEFT, below=["lines over the number of parameters", *reasons.lines()])


def _slope(row: Row) -> str | None:
    unit, factor = _UNITS[row["metric"]]
    keys = ("slope_per_million_parameters", "slope_low", "slope_high")
    value, low, high = (number(None if row[key] is None else row[key] * factor) for key in keys)
    return None if value is None else f"{value} [{low}, {high}] {unit}"
