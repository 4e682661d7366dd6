"""A browser without a window for pages: Chromium, where there is one, and what tests ask of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: seconds after which what a page does has failed to happen, on any machine
PATIENCE = 60


@contextmanager
def browser(width: int = 1400, height: int = 1000) -> Iterator[Any]:
    """A session of Chromium; skips the test where there is none, or no Selenium."""
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("there is no Chromium with its driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={width},{height}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    session = webdriver.Chrome(options=options, service=Service(driver))
    try:
        session.set_page_load_timeout(PATIENCE)
        session.set_script_timeout(PATIENCE)
        yield session
    finally:
        session.quit()


def opened(session: Any, file: Path, scheme: str = "light") -> None:
    """Open a file, as a user who prefers that colour scheme sees it."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    session.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    session.get(file.as_uri())


def find(session: Any, selector: str) -> Any:
    """The first element of a CSS selector."""
    return session.find_element("css selector", selector)


def until(session: Any, script: str) -> None:
    """Wait until an expression of JavaScript is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(session, PATIENCE).until(lambda d: d.execute_script(f"return Boolean({script})"))


def press(session: Any, *keys: str) -> None:
    """Press keys, by their names in Selenium's `Keys` or as text, one after the other."""
    from selenium.webdriver import ActionChains, Keys

    for key in keys:
        ActionChains(session).send_keys(getattr(Keys, key, key)).perform()


def point_at(session: Any, element: Any) -> None:
    """Move the mouse onto an element."""
    from selenium.webdriver import ActionChains

    session.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    ActionChains(session).move_to_element(element).perform()


#: the contrast of an element's text with what lies behind it (Web Content Accessibility Guidelines 2, contrast ratio)
CONTRAST = """
const luminance = (c) => {
  const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const parts = (text) => text.match(/[\\d.]+/g).map(Number);
let e = arguments[0];
const style = getComputedStyle(e);
const ink = luminance(parts(e.namespaceURI.endsWith("svg") ? style.fill : style.color));
let back = [255, 255, 255];
for (; e; e = e.parentElement) {
  const found = parts(getComputedStyle(e).backgroundColor);
  if (found.length < 4 || found[3] > 0) { back = found; break; }
}
const paper = luminance(back.slice(0, 3));
return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
"""
