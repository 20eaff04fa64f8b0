"""Runs a long command: its output goes to a log file, what it is doing now to the screen."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from install.errors import SetupError

Watch = Callable[[str], "str | None"]
"""Takes a line of output and returns what it says about the progress, or None."""

QUIET_INTERVAL_S = 15.0
"""How often a line is printed where the screen is a file."""
GRACE_S = 5.0


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Screen:
    """One status line, rewritten on a terminal, repeated now and then in a file."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.started = time.monotonic()
        self.status = ""
        self._tty = sys.stdout.isatty()
        self._printed = ("", self.started)

    def update(self) -> None:
        now = time.monotonic()
        if self._tty:
            text = f"  {self.title} {clock(now - self.started)}  {self.status}"
            width = os.get_terminal_size().columns - 1 if os.isatty(1) else 79
            print(f"\r{text[:width]:<{width}}", end="", flush=True)
        elif now - self._printed[1] >= QUIET_INTERVAL_S:
            print(f"  {self.title} {clock(now - self.started)}  {self.status}", flush=True)
            self._printed = (self.status, now)

    def close(self, outcome: str) -> None:
        text = f"  {self.title}: {outcome} in {time.monotonic() - self.started:.1f} s"
        if self._tty:
            print("\r\033[K", end="")
        print(text, flush=True)


def run(
    command: Sequence[str],
    title: str,
    log: Path,
    environ: Mapping[str, str],
    watch: Watch = lambda line: None,
    limit_s: float | None = None,
) -> None:
    """Run `command` to its end. Raises SetupError with the errors of the log, and the log's name."""
    log.parent.mkdir(parents=True, exist_ok=True)
    screen = Screen(title)
    with log.open("w", errors="replace") as sink:
        sink.write(f"$ {' '.join(command)}\n")
        sink.flush()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=dict(environ),
            start_new_session=True,
        )
        reader = threading.Thread(target=_copy, args=(process, sink, screen, watch), daemon=True)
        reader.start()
        try:
            code = _wait(process, screen, limit_s)
        except BaseException:
            _stop(process)
            screen.close("interrupted")
            raise
        reader.join(timeout=GRACE_S)
    screen.close("done" if code == 0 else "failed")
    if code:
        reason = f"no end after {limit_s:g} s" if code == -signal.SIGALRM else f"exit status {code}"
        raise SetupError(f"{title}: {reason}\n{excerpt(log.read_text(errors='replace'))}\nfull log: {log}")


def _copy(process: subprocess.Popen[str], sink: object, screen: Screen, watch: Watch) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        sink.write(line)  # type: ignore[attr-defined]
        screen.status = watch(line) or screen.status


def _wait(process: subprocess.Popen[str], screen: Screen, limit_s: float | None) -> int:
    while True:
        try:
            return process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            screen.update()
        if limit_s is not None and time.monotonic() - screen.started > limit_s:
            _stop(process)
            return -signal.SIGALRM


def _stop(process: subprocess.Popen[str]) -> None:
    """End the command and everything that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=GRACE_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def excerpt(text: str, errors: int = 6, tail: int = 12) -> str:
    """The first lines that name an error, and the end: a parallel build hides the cause far above."""
    lines = text.splitlines()
    named = [line for line in lines[:-tail] if re.search(r"\b(fatal )?error\b:?", line, re.IGNORECASE)]
    return "\n".join(f"    {line.strip()[:200]}" for line in [*named[:errors], *lines[-tail:]])


def watch_pip(total: int) -> Watch:
    """Counts the packages that pip has looked at, and names the one it is at."""
    seen: set[str] = set()

    def watch(line: str) -> str | None:
        match = re.match(r"\s*(?:Collecting|Requirement already satisfied:) ([A-Za-z0-9_.-]+)", line)
        if match:
            seen.add(match.group(1).lower())
            return f"{min(len(seen), total)}/{total} {match.group(1)}"
        match = re.match(r"\s*Downloading (\S+?)-\d\S* \(([\d.]+ \w+)\)", line)
        if match:
            return f"{min(len(seen), total)}/{total} {match.group(1)}, {match.group(2)}"
        return "unpacking all of them" if line.startswith("Installing collected packages") else None

    return watch


def watch_cmake(line: str) -> str | None:
    """The percentage that make prints, and the file that is compiled."""
    match = re.search(r"\[\s*(\d+)%\] (Building|Linking) .*?([^/\s]+?)(?:\.o)?$", line.rstrip())
    if match:
        return f"{match.group(1):>3} % {match.group(2).lower()} {match.group(3)}"
    return "configuring" if "-- The CXX compiler" in line else None
