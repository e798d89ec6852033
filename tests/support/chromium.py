"""Debian's Chromium without a window, driven through its DevTools protocol over two pipes: no driver, no package, no port."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

PROGRAM = shutil.which("chromium")
PATIENCE_S = 30


class Chromium:
    """One browser with one page. `folder`: an empty one for its profile."""

    def __init__(self, folder):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe", f"--user-data-dir={folder}",
                   "about:blank"]
        # The browser reads from descriptor 3 and writes to 4.
        redirect = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        with open(os.path.join(folder, "log"), "wb") as log:
            self._process = subprocess.Popen(["bash", "-c", redirect, "bash", *command], pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL,
                                             stdout=log, stderr=log, env={**os.environ, "HOME": folder}, start_new_session=True)
        os.close(to_browser)
        os.close(from_browser)
        self._bytes = b""
        self._last_id = 0
        self._session = None
        self.complaints = []  # exceptions and refusals that a person would find in the console
        target = next(each for each in self._call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(domain + ".enable")

    def close(self):
        os.close(self._write)
        os.close(self._read)
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def _next_message(self, deadline):
        while b"\0" not in self._bytes:
            if not select.select([self._read], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            piece = os.read(self._read, 1 << 20)
            if not piece:
                raise ConnectionError("Chromium is gone")
            self._bytes += piece
        text, self._bytes = self._bytes.split(b"\0", 1)
        return json.loads(text)

    def _call(self, method, **parameters):
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data):]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._next_message(deadline)
            self._hear(answer)
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _hear(self, message):
        if message.get("method") == "Runtime.exceptionThrown":
            details = message["params"]["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.complaints.append(message["params"]["entry"]["text"])

    def open(self, url):
        self._call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def look(self, expression):
        """The value of a JavaScript expression; a promise's when it is fulfilled."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression, timeout_s=PATIENCE_S):
        deadline = time.monotonic() + timeout_s
        while True:
            value = self.look(expression)
            if value:
                return value
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{expression} within {timeout_s} s; the page says:\n{self.look('document.body.innerText')[:3000]}")
            time.sleep(0.05)

    def text(self, selector):
        return self.look(f"(document.querySelector({json.dumps(selector)}) || {{}}).innerText || ''")

    def resize(self, width, height, phone=False):
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def prefer(self, scheme):
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key):
        text = {"Enter": "\r"}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text if kind == "keyDown" else "",
                       windowsVirtualKeyCode={"Enter": 13, "Tab": 9, "ArrowLeft": 37, "ArrowDown": 40, "End": 35, "Home": 36, "Escape": 27}.get(key, 0))

    def type(self, text):
        self._call("Input.insertText", text=text)

    def picture(self, path, whole=False):
        data = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
