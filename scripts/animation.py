"""The moving picture of README: the budget slider of the page, and what follows it.

    python scripts/animation.py [--url http://127.0.0.1:7860]

Frames are of the real page with the demo model, method fused and policy probed, whose probes are
measured first where the cache has none (minutes). Without --url it starts a workbench of its own.
Needs playwright and a Chromium, as screenshots.py does.
"""

import argparse
import io
from collections.abc import Iterator

import chromium
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from screenshots import ROOT, given, open_tab, server

TARGET = ROOT / "assets" / "pictures" / "allocation.webp"
VIEW = {"width": 1440, "height": 900}
WIDTH = 960  # pixels of a frame
STEP = 200  # milliseconds between frames
MOST = 3_000_000  # bytes
PLAN = "method=fused&policy=probed&ratio=0.1"
# Where the slider goes, as ratios, and for how many frames it rests there
PATH = ((0.1, 5), (0.5, 10), (0.8, 6), (0.3, 15))
SPEED = 0.02  # of the ratio, from frame to frame


def main() -> None:
    """Read the arguments, take the frames, write the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url")
    given_url = parser.parse_args().url
    with server() if not given_url else given(given_url) as url, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium.PATH, args=chromium.FLAGS)
        page = browser.new_page(viewport=VIEW)
        page.goto(f"{url}/?__theme=light&{PLAN}")
        prepare(page)
        write(list(frames(page)))
        browser.close()


def prepare(page: Page) -> None:
    """Allocation, with the curve of the probes drawn."""
    page.wait_for_selector("#heatmap .js-plotly-plot", timeout=120_000)
    open_tab(page, "Allocation")
    ask = page.locator("#size-and-cost button", has_text="Run")
    page.wait_for_selector("#size-and-cost button, #budget-curve .js-plotly-plot")
    if ask.count():
        ask.click()
    page.wait_for_selector("#budget-curve .js-plotly-plot", timeout=900_000)
    measured(page)


def measured(page: Page) -> None:
    """Wait for the actual perplexities."""
    page.wait_for_function(
        "() => !document.querySelector(\"#size-and-cost [data-known='False']\")", timeout=60_000
    )


def frames(page: Page) -> Iterator[Image.Image]:
    """One after every step of the slider, and some where it rests."""
    for ratio in positions():
        page.evaluate(
            """ratio => {
              const slider = document.querySelector('#field-ratio input[type=range]');
              if (+slider.value === ratio) return;
              const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set;
              set.call(slider, ratio);
              slider.dispatchEvent(new Event('input', { bubbles: true }));
              slider.dispatchEvent(new PointerEvent('pointerup', { bubbles: true }));
            }""",
            ratio,
        )
        page.wait_for_timeout(STEP)
        taken = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        yield taken.resize((WIDTH, taken.height * WIDTH // taken.width), Image.Resampling.LANCZOS)


def positions() -> Iterator[float]:
    """The ratio of every frame."""
    at = PATH[0][0]
    for end, rest in PATH:
        steps = round(abs(end - at) / SPEED)
        for step in range(steps):
            yield round(at + (end - at) * (step + 1) / steps, 2)
        yield from [end] * rest
        at = end


def write(taken: list[Image.Image]) -> None:
    """An endless WebP, with as much detail as fits."""
    for quality in (80, 60, 40, 20):
        taken[0].save(
            TARGET,
            save_all=True,
            append_images=taken[1:],
            duration=STEP,
            loop=0,
            quality=quality,
            method=6,
        )
        if TARGET.stat().st_size < MOST:
            break
    print(f"{TARGET}: {len(taken)} frames, {TARGET.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
