"""`python -m analysis`: the questions that can be asked."""

from __future__ import annotations

from analysis.cli import questions


def main() -> int:
    """List every question with the command that asks it."""
    for name, question in questions().items():
        print(f"python -m analysis.{name}\n    {question.asks}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
