"""Take screenshots of all tabs, on a laptop and 390 pixels wide, light and dark.

    python scripts/screenshots.py FOLDER [--url http://127.0.0.1:7860]

--readme also updates the three pictures in assets/pictures, from the runs of the workbench. Without
--url the script starts a server. It needs playwright and Chromium (CHROMIUM overrides the path
/usr/bin/chromium).
"""

import argparse
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import chromium
from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parent.parent
TABS = ("Spectra", "Allocation", "Compress", "Compare", "Runs & export", "Experiments")
VIEWS = {  # width, height and theme
    "light": (1440, 900, "light"),
    "dark": (1440, 900, "dark"),
    "narrow": (390, 844, "light"),
    "narrow-dark": (390, 844, "dark"),
}
HEIGHT = "Math.ceil(document.documentElement.scrollHeight)"
SWEPT = ("svd", "svd_llm", "modegpt", "a3")
README = ("light-spectra", "light-compare", "dark-spectra")
MAX_HEIGHT = 1500  # pixels of a picture in README


@contextmanager
def server() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "app.py", "--port", str(port)], cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(url, timeout=1).close()
                break
            except OSError:
                time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def prepare(page: Page) -> None:
    """Compress with a sweep if there are no runs, and compare two runs."""
    page.wait_for_selector("#bars .plot, #heatmap .js-plotly-plot", timeout=120_000)
    open_tab(page, "Compress")
    page.wait_for_timeout(1500)
    if page.locator(".job.done").count() == 0:
        open_tab(page, "Experiments")
        page.locator("button.label-wrap", has_text="Sweep:").click()
        methods = page.locator("#sweep-methods input")
        for name in SWEPT:
            methods.fill(name)
            methods.press("Enter")
        methods.blur()
        page.locator("#sweep-ratios").locator("input, textarea").first.fill("0.1, 0.2, 0.3, 0.4")
        page.click("#start-sweep")
        open_tab(page, "Compress")
        page.wait_for_selector(".job.done", timeout=900_000)
    open_tab(page, "Runs & export")
    for number in (2, 6):  # two methods at the same ratio
        page.locator("#runs-table [role=row]").nth(number).locator("input").click()
        page.wait_for_timeout(1000)
    page.get_by_text("Compare selected").click()
    page.wait_for_timeout(1500)
    page.click("#generate")
    page.wait_for_selector("#answers .tokens", timeout=120_000)


def open_tab(page: Page, title: str) -> None:
    tab = page.get_by_role("tab", name=title, exact=True)
    if not tab.is_visible():
        page.locator(".overflow-menu > button").first.click()
        page.locator(".overflow-dropdown button", has_text=title).click()
    else:
        tab.click()
    page.wait_for_timeout(1800)


def shoot(page: Page, folder: Path, view: str) -> None:
    for title in TABS:
        open_tab(page, title)
        if title == "Spectra":
            page.locator("#heatmap .nsewdrag").first.click(position={"x": 120, "y": 20})
            page.wait_for_timeout(1200)
        if title == "Allocation":
            page.click("#expert-allocation > button.label-wrap")
            page.locator("#field-policy input").click()
            page.get_by_role("option").nth(1).click()
            page.wait_for_timeout(1200)
            page.wait_for_function(
                "() => !document.querySelector(\"#size-and-cost [data-known='False']\")",
                timeout=60_000,
            )
            page.locator("#policies").scroll_into_view_if_needed()
            page.wait_for_timeout(1500)  # the ranking follows after a second
        if title == "Compare":
            page.click("#expert-compare > button.label-wrap")
            page.click("#generate")
            page.get_by_role("button", name="Loss, token by token").click()
            page.click("#colour")
            page.wait_for_selector("#answers .tokens", timeout=120_000)
            page.wait_for_timeout(4000)
            page.evaluate("document.activeElement.blur()")
        if title == "Runs & export" and page.locator("#runs-table [role=gridcell]").count():
            page.locator("#runs-table [role=row]").nth(1).locator("[role=gridcell]").nth(1).click()
            page.wait_for_timeout(1500)
        name = title.split()[0].lower()
        page.mouse.move(5, 5)
        page.evaluate("window.scrollTo(0, 0)")
        page.wait_for_timeout(400)
        picture_page(page, folder / f"{view}-{name}.png")


def picture_page(page: Page, path: Path) -> None:
    """Take a screenshot of the complete page in a window of its height.

    In a screenshot beyond the window, Chromium omits the bars of plots.
    """
    width, height = page.viewport_size["width"], page.viewport_size["height"]
    page.set_viewport_size({"width": width, "height": page.evaluate(HEIGHT)})
    page.wait_for_timeout(1500)
    page.screenshot(path=path)
    page.set_viewport_size({"width": width, "height": height})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--url")
    options.add_argument("--readme", action="store_true")
    options.add_argument("--views", nargs="*", default=list(VIEWS))
    arguments = options.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    url = arguments.url
    with server() if not url else running_server(url) as url, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium.PATH, args=chromium.FLAGS)
        for view in arguments.views:
            width, height, theme = VIEWS[view]
            page = browser.new_page(viewport={"width": width, "height": height})
            page.add_init_script(chromium.VISITED)
            page.goto(f"{url}/?__theme={theme}")
            prepare(page)
            shoot(page, arguments.folder, view)
            page.close()
        browser.close()
    if arguments.readme:
        for name in README:
            optimize(arguments.folder / f"{name}.png", ROOT / "assets" / "pictures" / f"{name}.png")


def optimize(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.open(source).convert("RGB")
    picture.crop((0, 0, picture.width, min(picture.height, MAX_HEIGHT))).save(target, optimize=True)


@contextmanager
def running_server(url: str) -> Iterator[str]:
    yield url


if __name__ == "__main__":
    main()
