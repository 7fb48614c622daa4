"""Write the animation in README: the budget slider and the results that follow it.

    python scripts/animation.py [--url http://127.0.0.1:7860]

The frames show the page with the demo model, method fused and policy probed. Probes that are not
cached are measured first (minutes). Without --url the script starts a server. It needs playwright
and Chromium, as screenshots.py does.
"""

import argparse
import io
from collections.abc import Iterator

import chromium
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from screenshots import ROOT, open_tab, running_server, server

TARGET = ROOT / "assets" / "pictures" / "allocation.webp"
VIEW = {"width": 1440, "height": 900}
WIDTH = 960  # pixels of a frame
STEP = 200  # milliseconds between frames
MAX_BYTES = 3_000_000
PLAN = "method=fused&policy=probed&ratio=0.1"
# Ratios of the slider, and the number of frames at each
PATH = ((0.1, 5), (0.5, 10), (0.8, 6), (0.3, 15))
SPEED = 0.02  # change of the ratio per frame


def main() -> None:
    """Take the frames and write the animation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url")
    running = parser.parse_args().url
    with (
        server() if not running else running_server(running) as url,
        sync_playwright() as play,
    ):
        browser = play.chromium.launch(executable_path=chromium.PATH, args=chromium.FLAGS)
        page = browser.new_page(viewport=VIEW)
        page.goto(f"{url}/?__theme=light&{PLAN}")
        prepare(page)
        write(list(frames(page)))
        browser.close()


def prepare(page: Page) -> None:
    """Open the Allocation tab and wait for the curve of the probes."""
    page.wait_for_selector("#heatmap .js-plotly-plot", timeout=120_000)
    open_tab(page, "Allocation")
    fold = page.locator("#expert-allocation > button.open")  # the method in the link opens it
    fold.wait_for()
    page.wait_for_timeout(2000)  # until expert-fold.js no longer opens it
    fold.click()
    run = page.locator("#size-and-cost button", has_text="Run")
    page.wait_for_selector("#size-and-cost button, #budget-curve .js-plotly-plot")
    if run.count():
        run.click()
    page.wait_for_selector("#budget-curve .js-plotly-plot", timeout=900_000)
    measured(page)


def measured(page: Page) -> None:
    """Wait until all perplexities are measured."""
    page.wait_for_function(
        "() => !document.querySelector(\"#size-and-cost [data-known='False']\")", timeout=60_000
    )


def frames(page: Page) -> Iterator[Image.Image]:
    """Yield a frame per step of the slider, and further frames at its stops."""
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
        image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        yield image.resize((WIDTH, image.height * WIDTH // image.width), Image.Resampling.LANCZOS)


def positions() -> Iterator[float]:
    """Yield the ratio of each frame."""
    position = PATH[0][0]
    for end, pause in PATH:
        steps = round(abs(end - position) / SPEED)
        for step in range(steps):
            yield round(position + (end - position) * (step + 1) / steps, 2)
        yield from [end] * pause
        position = end


def write(images: list[Image.Image]) -> None:
    """Write a looping WebP with the best quality below the size limit."""
    for quality in (80, 60, 40, 20):
        images[0].save(
            TARGET,
            save_all=True,
            append_images=images[1:],
            duration=STEP,
            loop=0,
            quality=quality,
            method=6,
        )
        if TARGET.stat().st_size < MAX_BYTES:
            break
    print(f"{TARGET}: {len(images)} frames, {TARGET.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
