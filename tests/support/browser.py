"""Headless Chromium on the service's page: what a user does there, and what the browser says about it."""

import base64
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait
from support.serving import PATIENCE

AXE = Path(__file__).resolve().parents[2] / ".venv/axe/node_modules/axe-core/axe.min.js"
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


class Browser:
    """A tab, at a width and in a theme."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.look()

    def look(self, width: int = 1280, *, dark: bool = False) -> None:
        """Another width of the window, and the light or the dark theme."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})
        self.script("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def open(self, address: str) -> None:
        self.messages()
        self.driver.get(address)

    # What is there ------------------------------------------------------------------------------

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """The text of an element with ordinary spaces and minus signs, whether it can be seen or not."""
        text = self.script("return document.querySelector(arguments[0]).textContent", selector)
        return " ".join(text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{MINUS SIGN}", "-").split())

    def script(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def wait(self, selector: str, *contained: str) -> str:
        """Wait until an element has these texts; its text."""

        def has_them(_: Any) -> bool:
            return bool(self.all(selector)) and all(each in self.text(selector) for each in contained)

        WebDriverWait(self.driver, PATIENCE, 0.1).until(has_them, f"{selector} never had {contained}")
        return self.text(selector)

    # What a user does ---------------------------------------------------------------------------

    def choose(self, paths: Sequence[Path]) -> None:
        self.one("#files").send_keys("\n".join(map(str, paths)))

    def drop(self, paths: Sequence[Path]) -> None:
        """Drag files from the desktop onto the page."""
        place = self.one("#drop").rect
        data = {"items": [], "files": list(map(str, paths)), "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            event = {"type": kind, "x": place["x"] + 30, "y": place["y"] + 30, "data": data}
            self.driver.execute_cdp_cmd("Input.dispatchDragEvent", event)

    def screenshot(self, path: Path) -> None:
        """The whole page, however long."""
        height = self.script("return document.documentElement.scrollHeight")
        area = {"x": 0, "y": 0, "width": self.script("return innerWidth"), "height": height, "scale": 1}
        taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": area})
        path.write_bytes(base64.b64decode(taken["data"]))

    # What the browser says ----------------------------------------------------------------------

    def messages(self) -> list[str]:
        """Warnings and errors since the last call, refusals of scripts and styles included, answers of servers not."""
        entries = self.driver.get_log("browser")
        return [each["message"] for each in entries if each["source"] != "network" and each["level"] != "INFO"]

    def hosts(self) -> set[str]:
        """Every host on the network that was asked for something since the last call."""
        entries = [json.loads(each["message"])["message"] for each in self.driver.get_log("performance")]
        asked = [each["params"]["request"]["url"] for each in entries if each["method"] == "Network.requestWillBeSent"]
        return {urlsplit(url).netloc for url in asked if url.startswith(("http", "ws"))}  # not blob: or data:

    def violations(self) -> list[str]:
        """What axe-core finds wrong with the page as it is."""
        self.script(AXE.read_text(encoding="utf-8"))
        found = self.driver.execute_async_script("axe.run(document).then(arguments[0])")
        assert len(found["passes"]) > 20
        return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found["violations"]]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for option in (*OPTIONS, f"--user-data-dir={profile}"):
            options.add_argument(option)
        driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        driver.set_script_timeout(PATIENCE)
        try:
            yield Browser(driver)
        finally:
            driver.quit()
