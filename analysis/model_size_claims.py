"""The findings MS01 to MS04 of the question on model size, from its rows.

Thresholds stand here with their reasons; nothing is counted or shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from analysis.finding import Finding, counted, not_measured
from analysis.rows import Row

EQUAL = 0.05
"""Bytes per parameter that differ by less differ by containers and small entries only."""
EXPLAINS = 0.9
"""R2 from which a straight line over the parameters leaves little for the architecture."""
CHANCE = 0.05
"""Chance, where a line holds, of a departure from it as large as the one that is blamed on the architecture."""
CLAIMS = {
    "MS01": "the stall grows with the number of parameters",
    "MS02": "a checkpoint's bytes are proportional to the number of parameters",
    "MS03": "the extra memory of a save grows with the number of parameters",
    "MS04": "the number of parameters explains the stall, whatever the architecture",
}
ONE_MODEL = "at no point of these runs' other axes are there two models"
_UNITS = {"stall": "ms", "checkpoint": "MB", "extra": "MB"}
_FACTORS = {"stall": 1e3, "checkpoint": 1e-6, "extra": 1e-6}


def findings(series: Mapping[str, Sequence[Row]], fits: Sequence[Row]) -> list[Finding]:
    """MS01 to MS04 for every set of rows that differ in the model only."""
    found = []
    several = {title: rows for title, rows in series.items() if len({row["model"] for row in rows}) > 1}
    if not several:
        evidence = [run for rows in series.values() for row in rows for run in row["evidence"]]
        return [not_measured(code, claim, "all", ONE_MODEL, evidence) for code, claim in CLAIMS.items()]
    for title, rows in several.items():
        lines = {row["metric"]: row for row in fits if row["series"] == title}
        found += [grows("MS01", lines["stall"]), proportional(title, rows)]
        found += [grows("MS03", lines["extra"]), explains(lines["stall"])]
    return found


def grows(code: str, fit: Row) -> Finding:
    """MS01, MS03: the slope's whole interval lies on one side of zero."""
    claim = CLAIMS[code]
    slope, low, high = (fit[name] for name in ("slope_per_million_parameters", "slope_low", "slope_high"))
    metric, group, evidence = fit["metric"], fit["series"], fit["evidence"]
    if slope is None:
        return not_measured(code, claim, group, fit["reason"], evidence)
    unit, factor = _UNITS[metric], _FACTORS[metric]
    words = f"{slope * factor:+.4g} {unit} per million parameters [{low * factor:+.4g}, {high * factor:+.4g}]"
    if low <= 0 <= high:
        reason = f"{words} over {counted(fit['runs'], 'run')}: the interval holds 0"
        return not_measured(code, claim, group, reason, evidence)
    return Finding(
        code=code, claim=claim, group=group, value=slope * factor, unit=f"{unit}/million parameters", evidence=evidence,
        low=low * factor, high=high * factor, verdict="supports" if low > 0 else "contradicts",
        level="info" if low > 0 else "ok",
        sentence=f"{words}, 95 % over {counted(fit['runs'], 'run')} of {fit['sizes']} sizes, R2 {fit['r2']:.3f}",
    )  # fmt: skip


def proportional(title: str, rows: Sequence[Row]) -> Finding:
    """MS02: a parameter costs as many bytes in every model."""
    code, claim = "MS02", CLAIMS["MS02"]
    evidence = [run for row in rows for run in row["evidence"]]
    known = [row for row in rows if row["checkpoint_per_parameter"] is not None]
    if len(known) < 2:
        reason = next((row["checkpoint_reason"] for row in rows if row["checkpoint_reason"]), ONE_MODEL)
        return not_measured(code, claim, title, reason, evidence)
    values = [row["checkpoint_per_parameter"] for row in known]
    spread = max(values) / min(values) - 1
    words = ", ".join(f"{row['model']} {row['checkpoint_per_parameter']:.4g}" for row in known)
    return Finding(
        code=code, claim=claim, group=title, value=spread, unit="largest/smallest - 1", evidence=evidence,
        verdict="supports" if spread < EQUAL else "contradicts", level="ok" if spread < EQUAL else "info",
        sentence=f"bytes on disk per parameter: {words}",
        recommendation=None if spread < EQUAL else "Buffers and compression differ by model: measure each one.",
    )  # fmt: skip


def explains(fit: Row) -> Finding:
    """MS04: what the architecture adds to the number of parameters."""
    code, claim = "MS04", CLAIMS["MS04"]
    if fit["r2"] is None:
        return not_measured(code, claim, fit["series"], fit["reason"], fit["evidence"])
    enough, p = fit["r2"] >= EXPLAINS, fit["lack_of_fit_p"]
    words = f"a straight line over the parameters explains {100 * fit['r2']:.1f} % of the stall's variance over "
    words += f"{counted(fit['runs'], 'run')} of {', '.join(fit['models'])}"
    if not enough and p is None:
        reason = f"{fit['lack_of_fit_reason']}: {words}"
        return not_measured(code, claim, fit["series"], reason, fit["evidence"])
    if not enough and p >= CHANCE:
        rest = f"of the rest {100 * fit['between_repeats']:.0f} % lies between repeats of one model"
        test = f"the models depart from the line by no more than repeats of one model scatter (F test, p {p:.2g})"
        reason = f"{test}: {words}; {rest}"
        return not_measured(code, claim, fit["series"], reason, fit["evidence"])
    beyond = "" if enough else f"; the models depart from it by more than their repeats scatter (F test, p {p:.2g})"
    return Finding(
        code=code, claim=claim, group=fit["series"], value=fit["r2"], unit="R2", evidence=fit["evidence"],
        verdict="supports" if enough else "contradicts", level="ok" if enough else "info", sentence=words + beyond,
    )  # fmt: skip
