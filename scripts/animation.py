"""Write the animation in README: the path of a newcomer, in four clicks from opening the page to
the answers of two models side by side.

    python scripts/animation.py [--url http://127.0.0.1:7860]

The frames show smollm2-135m, or the model in --model. Waiting is shortened: a frame is taken when
the progress bar has moved. Without --url the script starts a server without runs. It needs
playwright and Chromium, as screenshots.py does.
"""

import argparse
import io
import os
import tempfile
import time
from dataclasses import dataclass, field

import chromium
from PIL import Image
from playwright.sync_api import Locator, Page, sync_playwright
from screenshots import ROOT, running_server, server

TARGET = ROOT / "assets" / "pictures" / "four-clicks.webp"
VIEW = {"width": 1440, "height": 900}
WIDTH = 960  # pixels of a frame
MAX_BYTES = 3_000_000
WAIT = 1_800_000  # ms, of the compression and the answers
MOVES, MOVE, PRESS = 6, 60, 700  # frames of the pointer on its way; ms of each, and after a click
LOOK, LAST = 1200, 5000  # ms of the first and the last frame
BUSY, ANSWER = 250, 200  # ms of a frame while the job runs, and while the models answer
PIECE = 0.04  # least part of the progress bar between two frames

# Draws a pointer, because a screenshot has none, and a ring around it when a button is pressed.
POINTER = """() => {
  const shape = document.createElement('div');
  shape.innerHTML = `<svg width="24" height="32" viewBox="0 0 12 16"><path d="M1 1v12l3-3 2 5 2-1
    -2-5h4z" fill="#111" stroke="#fff"/></svg><i style="position: absolute; left: -16px; top: -16px;
    width: 32px; height: 32px; border: 3px solid #db2777; border-radius: 50%; opacity: 0"></i>`;
  shape.style = 'position: fixed; z-index: 9999; pointer-events: none; left: 700px; top: 500px';
  document.body.append(shape);
  addEventListener('mousemove', (event) => {
    shape.style.left = event.clientX + 'px';
    shape.style.top = event.clientY + 'px';
  }, true);
  const ring = (opacity) => (shape.querySelector('i').style.opacity = opacity);
  addEventListener('mousedown', () => ring(1), true);
  window.hideRing = () => ring(0);
}"""
# Position of the progress bar, in [0, 1]; null if no job runs
PROGRESS = """() => {
  const pieces = [...document.querySelectorAll('.status-bar.running .phases i')];
  return pieces.length
    ? pieces.reduce((sum, piece) => sum + parseFloat(piece.style.width), 0) / 100 / pieces.length
    : null;
}"""
ANSWERED = "() => document.querySelectorAll('#answers .tokens').length === 2"


@dataclass
class Film:
    """The frames of a page, and how many milliseconds each is shown."""

    page: Page
    frames: list[Image.Image] = field(default_factory=list)
    durations: list[int] = field(default_factory=list)
    pointer: tuple[float, float] = (700.0, 500.0)

    def add_frame(self, duration: int) -> None:
        """Add a frame. duration: in milliseconds."""
        image = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        size = (WIDTH, image.height * WIDTH // image.width)
        self.frames.append(image.resize(size, Image.Resampling.LANCZOS))
        self.durations.append(duration)

    def click(self, target: Locator) -> None:
        """Move the pointer to an element and click it."""
        target.wait_for()
        box = target.bounding_box()
        assert box is not None
        aim = box["x"] + min(box["width"] / 2, 90), box["y"] + box["height"] / 2
        start = self.pointer
        for step in range(1, MOVES + 1):
            share = step / MOVES
            self.page.mouse.move(*(a + share * (b - a) for a, b in zip(start, aim, strict=True)))
            self.add_frame(MOVE)
        self.pointer = aim
        self.page.mouse.down()
        self.add_frame(PRESS // 2)
        self.page.mouse.up()
        self.page.evaluate("hideRing()")
        self.page.wait_for_timeout(600)
        self.add_frame(PRESS)


def main() -> None:
    """Take the frames and write the animation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url")
    parser.add_argument("--model", default="smollm2-135m")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as runs:
        os.environ["LRCORE_RUNS"] = runs
        with (
            server() if not arguments.url else running_server(arguments.url) as url,
            sync_playwright() as play,
        ):
            browser = play.chromium.launch(executable_path=chromium.PATH, args=chromium.FLAGS)
            page = browser.new_page(viewport=VIEW)
            page.add_init_script(chromium.VISITED)
            page.goto(f"{url}/?__theme=light")
            film = Film(page)
            record(film, arguments.model)
            write(film)
            browser.close()


def record(film: Film, model: str) -> None:
    """Follow the path, and take its frames."""
    page = film.page
    page.wait_for_selector("#heatmap .js-plotly-plot[data-drawn]", timeout=WAIT)
    page.wait_for_timeout(2000)
    page.evaluate(POINTER)
    film.add_frame(LOOK)
    film.click(page.locator("#field-model input"))
    film.click(page.get_by_role("option", name=model).first)
    film.click(page.get_by_role("tab", name="Allocation", exact=True))
    film.click(page.locator("#compress"))
    progress, end = -1.0, time.monotonic() + WAIT / 1000
    while not page.evaluate("() => !!document.querySelector('#answer-0')"):
        assert time.monotonic() < end, "the answers do not appear"
        position = page.evaluate(PROGRESS)
        if position is not None and abs(position - progress) >= PIECE:
            progress = position
            film.add_frame(BUSY)
        page.wait_for_timeout(200)
    former_text = ""
    while not page.evaluate(ANSWERED):
        assert time.monotonic() < end, "the answers do not end"
        text = page.locator("#answers").inner_text()
        if len(text) >= len(former_text) + 24:
            former_text = text
            film.add_frame(ANSWER)
        page.wait_for_timeout(100)
    page.wait_for_timeout(1500)
    film.add_frame(LAST)


def write(film: Film) -> None:
    """Write a looping WebP with the best quality below the size limit."""
    for quality in (80, 60, 40, 20):
        film.frames[0].save(
            TARGET,
            save_all=True,
            append_images=film.frames[1:],
            duration=film.durations,
            loop=0,
            quality=quality,
            method=6,
        )
        if TARGET.stat().st_size < MAX_BYTES:
            break
    seconds = sum(film.durations) / 1000
    size = TARGET.stat().st_size / 1e6
    print(f"{TARGET}: {len(film.frames)} frames, {seconds:.1f} s, {size:.2f} MB")


if __name__ == "__main__":
    main()
