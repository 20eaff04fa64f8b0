"""A headless Chromium for tests, driven over its DevTools pipe: JSON messages that end with a zero byte.

Only what the report's tests need: open a page at a size, evaluate, press keys, take pictures, print.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PATIENCE_S = 60.0
# The browser reads messages from descriptor 3 and writes to 4; Python's own pipes may lie there, so move them first.
_LAUNCH = """
import os, sys
read, write = (os.dup(int(fd)) for fd in sys.argv[1:3])
for high, fixed in ((os.dup2(read, 50), 3), (os.dup2(write, 51), 4)):
    os.dup2(high, fixed)
os.execv(sys.argv[3], sys.argv[3:])
"""


def program() -> str | None:
    """The browser of this machine, if any."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Browser:
    """One page in one browser. `errors` and `requests` are what the page did since `open`."""

    def __init__(self, to: int, source: int) -> None:
        self._to, self._from, self._number, self._rest = to, source, 0, b""
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def open(self, page: Path, width: int = 1280, height: int = 900) -> None:
        """Load the page at this size and wait until it is complete."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        self.errors.clear()
        self.requests.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        end = time.monotonic() + _PATIENCE_S
        while self.run("document.readyState") != "complete" or self.run("location.protocol") != "file:":
            if time.monotonic() > end:
                raise TimeoutError(f"{page}: not loaded after {_PATIENCE_S} s")
            time.sleep(0.05)

    def run(self, expression: str) -> Any:
        """Evaluate in the page; a promise is awaited. Raises AssertionError for what the page throws."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """A key as a person presses it."""
        more = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **more, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **more)

    def picture(self, path: Path, whole: bool = True) -> Path:
        """What is seen, as PNG; with `whole` the page from its head to its foot."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def pdf(self) -> bytes:
        """The page as it is printed."""
        found = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(found["data"])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its answer; what the page reports meanwhile is kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        for answer in self._messages():
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._keep(answer)
        raise EOFError(f"{method}: the browser has gone")

    def _messages(self) -> Iterator[dict[str, Any]]:
        while True:
            while b"\0" not in self._rest:
                if not select.select([self._from], [], [], _PATIENCE_S)[0]:
                    raise TimeoutError(f"the browser has said nothing for {_PATIENCE_S} s")
                data = os.read(self._from, 1 << 20)
                if not data:
                    return
                self._rest += data
            line, _, self._rest = self._rest.partition(b"\0")
            yield json.loads(line)

    def _keep(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning"):
                self.errors.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.errors.append(json.dumps(params["entry"]))
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """A browser with a profile of its own, which goes when the block ends."""
    to_child, our_end = os.pipe()
    our_source, from_child = os.pipe()
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        options = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--disable-gpu"]
        # A container has a small /dev/shm, and root cannot have Chromium's sandbox.
        options += ["--no-sandbox", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars", "about:blank"]
        launch = [sys.executable, "-c", _LAUNCH, str(to_child), str(from_child), path, *options]
        started = subprocess.Popen(launch, pass_fds=(to_child, from_child), stderr=subprocess.DEVNULL)
        os.close(to_child)
        os.close(from_child)
        try:
            yield Browser(our_end, our_source)
        finally:
            os.close(our_end)  # the browser ends with its pipe
            try:
                started.wait(10)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()
            os.close(our_source)
