"""Headless Chromium over WebDriver."""

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 300.0
"""The limit of each wait, far longer than any step takes on a busy machine."""
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key under which WebDriver names elements (W3C WebDriver, section 12)."""


def missing() -> str | None:
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: chromium, chromium-driver)"
    return None


class Browser:
    """A browser whose processes end with the `with` block."""

    def __init__(self, *, dark: bool = False, width: int = 1280, height: int = 800) -> None:
        self._files = tempfile.mkdtemp(prefix="browser-")
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env=os.environ | {"TMPDIR": self._files},
        )
        try:
            assert self._driver.stdout is not None
            line = next(line for line in self._driver.stdout if "successfully on port" in line)
            port = int(line.rstrip(". \n").rsplit(" ", 1)[1])
            self._url = f"http://127.0.0.1:{port}"
            arguments = [
                "--headless=new",
                "--no-sandbox",
                "--disable-dev-shm-usage",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--window-size={width},{height}",
            ]
            if dark:
                arguments.append("--blink-settings=preferredColorScheme=0")
            options = {"args": arguments, "binary": shutil.which("chromium")}
            capabilities = {
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL"},
                "acceptInsecureCerts": True,
            }
            session = self._call(
                "POST", "/session", {"capabilities": {"alwaysMatch": capabilities}}
            )
            self._url += f"/session/{session['sessionId']}"
            self.command(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=height,
                deviceScaleFactor=1,
                mobile=False,
            )
            scheme = "dark" if dark else "light"
            self.command(
                "Emulation.setEmulatedMedia",
                features=[{"name": "prefers-color-scheme", "value": scheme}],
            )
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._end()

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._driver.pid, signal.SIGKILL)
        self._driver.wait()
        if self._driver.stdout is not None:
            self._driver.stdout.close()
        end = time.monotonic() + PATIENCE_SECONDS
        while os.path.exists(self._files) and time.monotonic() < end:
            shutil.rmtree(self._files, ignore_errors=True)

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()}") from None

    def command(self, name: str, **parameters: object) -> Any:
        return self._call("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def open(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str = "body") -> str:
        return str(
            self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        )

    def type(self, selector: str, keys: str) -> None:
        element = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"/element/{element[ELEMENT]}/value", {"text": keys})

    def press(self, keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call(
            "POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}
        )

    def click(self, selector: str) -> None:
        element = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"/element/{element[ELEMENT]}/click", {})

    def wait_for(self, script: str, *arguments: object) -> Any:
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            if found := self.run(script, *arguments):
                return found
            if time.monotonic() > end:
                raise AssertionError(
                    f"waited in vain for {script!r}; the page says:\n{self.text()}\n{self.log()}"
                )
            time.sleep(0.05)

    def wait_for_text(self, text: str, selector: str = "body") -> None:
        self.wait_for(
            "return document.querySelector(arguments[1])?.innerText.includes(arguments[0])",
            text,
            selector,
        )

    def log(self) -> list[str]:
        """The console's messages, without refusals of a busy shard, which the page retries."""
        busy = "the server responded with a status of 503"
        entries = self._call("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if busy not in entry["message"]]

    def photograph(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))
