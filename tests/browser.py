"""A real browser for tests of pages: Chromium without a window, spoken to over its DevTools pipe.

The pipe needs nothing but the standard library: JSON messages that end in a zero byte, to descriptor 3 of the browser
and from its descriptor 4.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page in one browser. `errors` and `requests` gather what the page complains of and asks the web for."""

    def __init__(self, program: str, width: int = 1200, height: int = 900) -> None:
        self.profile = tempfile.TemporaryDirectory()
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        options = (
            "--headless --no-sandbox --disable-gpu --hide-scrollbars --disable-dev-shm-usage --mute-audio"
        )
        command = (
            f"exec {program} {options} --window-size={width},{height} --user-data-dir={self.profile.name} "
            f"--remote-debugging-pipe about:blank 3<&{theirs_in} 4>&{theirs_out}"
        )
        self.process = subprocess.Popen(
            ["bash", "-c", command],  # dash knows no descriptors above 9
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in), os.close(theirs_out)
        self.out, self.into = ours_out, ours_in
        self.pending, self.count, self.session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask, and wait for the answer; events that come in between are kept."""
        self.count += 1
        message: dict[str, Any] = {"id": self.count, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            said = self._receive()
            if said.get("id") == self.count:
                assert "error" not in said, f"{method}: {said['error']}"
                return said["result"]
            self.events.append(said)

    def _receive(self) -> dict[str, Any]:
        """The next message, however long it takes; a browser that dies closes its end."""
        while b"\0" not in self.pending:
            data = os.read(self.into, 1 << 20)
            assert data, "the browser has gone"
            self.pending += data
        message, _, self.pending = self.pending.partition(b"\0")
        return json.loads(message)

    def open(self, path: Path) -> None:
        """Load a page; whatever was said of the one before is forgotten."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def hover(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def prefer(self, scheme: str) -> None:
        """`light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, height: int, kind: str = "png", **options: Any) -> bytes:
        clip = {"x": 0, "y": 0, "width": self.run("innerWidth"), "height": height, "scale": 1}
        shot = self.call(
            "Page.captureScreenshot", format=kind, clip=clip, captureBeyondViewport=True, **options
        )
        return base64.b64decode(shot["data"])

    @property
    def errors(self) -> list[str]:
        """Exceptions, console errors and warnings, failed loads."""
        self.run("0")  # by the time this is answered, all that was said before has arrived
        found = []
        for event in self.events:
            method, said = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(json.dumps(said["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(said["args"]))
            elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
                found.append(said["entry"]["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """What was asked of anybody but the page itself."""
        urls = [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith(("data:", "file:"))]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.out), os.close(self.into)
        shutil.rmtree(self.profile.name, ignore_errors=True)
        self.profile.cleanup()
