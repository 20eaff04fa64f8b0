"""A finding: one claim about the runs, with its verdict, its numbers and the rows behind it.

What may be claimed and when is each question's own business; here is only the shape that all
share, and the two ways of making one that keep verdict and value consistent.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Verdict = Literal["supports", "contradicts", "not_measured"]
Level = Literal["ok", "info", "warning", "critical"]

LEVELS: tuple[Level, ...] = ("ok", "info", "warning", "critical")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One claim. Numbers are plain, in `unit`; sentences are for people and never parsed."""

    code: str
    """Stable, as SC01: two letters of the question and a number that is never given twice."""
    claim: str
    """What is asserted, true or not."""
    verdict: Verdict
    level: Level
    group: str
    """Which rows it speaks of."""
    sentence: str
    """The verdict in one sentence with its numbers."""
    value: float | None = None
    unit: str | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    """Why it was not measured."""
    recommendation: str | None = None
    """What the user of the framework can do."""
    for_developers: str | None = None
    """What the framework's developers could change."""
    evidence: list[str] = []
    """Runs, or rows of a table, that it rests on."""

    def __post_init__(self) -> None:
        if (self.verdict == "not_measured") != (self.reason is not None):
            raise ValueError(f"{self.code}: a reason belongs to what was not measured, and only to that")
        if self.level == "ok":  # what is fine asks for nothing, whatever its claim has to say otherwise
            msgspec.structs.force_setattr(self, "recommendation", None)
            msgspec.structs.force_setattr(self, "for_developers", None)


def not_measured(code: str, claim: str, group: str, reason: str, evidence: list[str], **more: Any) -> Finding:
    """The finding for a claim that these runs can neither support nor contradict."""
    return Finding(
        code=code,
        claim=claim,
        verdict="not_measured",
        level="info",
        group=group,
        sentence=f"not measured: {reason}",
        reason=reason,
        evidence=evidence,
        **more,
    )


def signed(value: float) -> str:
    """A difference in seconds for a sentence, to the nanosecond: what is smaller is rounding."""
    return f"{round(value, 9) + 0.0:+.4g}"


def counted(n: int, word: str) -> str:
    """1 run, 2 runs; 2 entries."""
    if n == 1:
        return f"{n} {word}"
    return f"{n} {word[:-1]}ies" if word.endswith("y") and word[-2:-1] not in "aeiou" else f"{n} {word}s"


def worst(findings: list[Finding]) -> Level:
    """The highest level among the findings, `ok` for none."""
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")
