"""Chromium without a window, driven through a pair of pipes: what a page looks like, and how it is walked by keyboard.

``python tests/support/browser.py PAGE FOLDER`` writes screenshots of a page for people to look at.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDE, MIDDLE, NARROW = 1280, 768, 390
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
    "--disable-dev-shm-usage",  # containers have little of it
)

# Chromium reads commands from descriptor 3 and answers on 4.
_BECOME = "import os, sys; a = sys.argv; os.dup2(int(a[1]), 3); os.dup2(int(a[2]), 4); os.execv(a[3], a[3:])"

# Every text of the page with less contrast than WCAG 2.1 AA asks of text: 4.5, of large or bold large text 3.
LOW_CONTRAST = """
(() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const channel = value => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = node => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || node.closest('svg, style')) continue;
    const style = getComputedStyle(node);
    const [one, other] = [luminance(parse(style.color)), luminance(behind(node))].sort((a, b) => b - a);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < (large ? 3 : 4.5)) low.push(`${ratio.toFixed(2)} ${walker.currentNode.data.trim().slice(0, 40)}`);
  }
  return low;
})()
"""
# Every word, apart from digests, paths and the like, that a line's end breaks in two.
BROKEN_WORDS = """
(() => {
  const broken = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.parentElement.closest('svg, style, .mono, .unseen')) continue;
    for (const word of node.data.matchAll(/[^\\s–-]+/g)) {
      if (word[0].length >= 32 || node.data.slice(0, word.index).match(/\\/\\S*$/)) continue;
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) broken.push(word[0]);
    }
  }
  return broken;
})()
"""
# Every text of a picture that its edge cuts off.
CUT_TEXTS = """
[...document.querySelectorAll('figure > svg text')].filter(text => {
  const [name, picture] = [text, text.closest('svg')].map(one => one.getBoundingClientRect());
  return name.left < picture.left - 0.5 || name.right > picture.right + 0.5 || name.bottom > picture.bottom + 0.5;
}).map(text => text.textContent)
"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
FOCUSED = """
(() => {
  const node = document.activeElement;
  const name = node.getAttribute('aria-labelledby') || node.getAttribute('href') || node.textContent.trim().slice(0, 8);
  return `${node.tagName.toLowerCase()} ${name}`;
})()
"""


class Tab:
    """One page in the browser."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._number, self._rest = 0, b""
        self._session = ""
        self.complaints: list[str] = []
        """What the console and the browser's own log said."""
        self.asked: list[str] = []
        """Every URL that a page asked for, itself included."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, page: Path | str, width: int = WIDE) -> None:
        """Show a file, or what a URL names."""
        self.resize(width)
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while self._read().get("method") != "Page.loadEventFired":
            pass

    def resize(self, width: int, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def use(self, *, scheme: str = "light", media: str = "") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def evaluate(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_until(self, condition: str) -> None:
        """Wait until an expression is true in the page, which looks again and again by itself."""
        look = f"done => {{ const look = () => {{ if ({condition}) done(); else setTimeout(look, 50); }}; look(); }}"
        self.call("Runtime.evaluate", expression=f"new Promise({look})", awaitPromise=True)

    def press_tab(self) -> str:
        """Move the focus on, and say where it is."""
        self._press("Tab", 9)
        return str(self.evaluate(FOCUSED))

    def press_enter(self) -> None:
        """Do what the focus is on."""
        self._press("Enter", 13, text="\r")

    def _press(self, key: str, code: int, **more: str) -> None:
        for kind in ("keyDown" if more else "rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)

    def screenshot(self, file: Path) -> None:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._commands, json.dumps(request).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._answers, 1 << 20)
            assert data, "the browser is gone"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        if answer.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(answer["params"]))
        if answer.get("method") == "Network.requestWillBeSent":
            self.asked.append(answer["params"]["request"]["url"])
        return answer


@contextmanager
def browser() -> Iterator[Tab]:
    """A browser with a profile of its own, ended and removed behind the block."""
    assert CHROMIUM is not None
    to_child, commands = os.pipe()
    answers, from_child = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        line = [sys.executable, "-c", _BECOME, str(to_child), str(from_child), CHROMIUM, *_FLAGS]
        process = subprocess.Popen(
            [*line, f"--user-data-dir={profile}"],
            pass_fds=(to_child, from_child),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        try:
            yield Tab(commands, answers)
        finally:
            os.close(commands)
            os.close(answers)
            process.terminate()
            process.wait(30)


def main(page: Path, folder: Path) -> None:
    """Screenshots at both widths, light and dark, and the print."""
    folder.mkdir(parents=True, exist_ok=True)
    with browser() as tab:
        for scheme in ("light", "dark"):
            for width in (WIDE, MIDDLE, NARROW):
                tab.use(scheme=scheme)
                tab.open(page, width)
                tab.screenshot(folder / f"{scheme}-{width}.png")
        tab.use()
        tab.pdf(folder / "print.pdf")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
