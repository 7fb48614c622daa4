"""Words and controls that each tab shows at first sight, counted in Chromium.

Needs playwright and a Chromium (environment variable CHROMIUM).
"""

import chromium

from .page_speed import HEAT, served
from .report import log, table, write_section

VIEWPORT = {"width": 1440, "height": 900}
MOST_WORDS, MOST_CONTROLS = 120, 14
RUN = "first"  # name of the run that is made between the two counts
STEP = 600  # pixels per turn of the wheel: figures are drawn when they come near the screen
PATIENCE = 600_000  # ms
QUIET = 2000  # ms without an unfinished figure
UNFINISHED = ".status-bar.running, .status-bar.queued, .note.working, [data-known=False]"

TITLES = """() => [...document.querySelectorAll('#tabs [role=tab]')]
  .map(tab => tab.textContent.trim())"""
# Counts words, words in figures, and controls of the open tab. A word has a letter or a digit; it
# may consist of several colored tokens, so the texts of a block are joined. The elements of a
# labeled field are one control, such as the number box and the handle of a slider; so are those of
# a table, of which each row has two.
COUNT = """() => {
  const panel = [...document.querySelectorAll('#tabs > [role=tabpanel]')]
    .find(tab => tab.checkVisibility());
  const isShown = element => element.getClientRects().length > 0 &&
    element.checkVisibility({visibilityProperty: true, opacityProperty: true});
  const texts_of = {words: new Map(), drawn: new Map()};
  const block = element => {
    while (getComputedStyle(element).display === 'inline') element = element.parentElement;
    return element;
  };
  const texts = document.createTreeWalker(panel, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const parent = texts.currentNode.parentElement;
    if (!isShown(parent) || parent.closest('style, script')) continue;
    const drawn = parent.closest('svg'), blocks = drawn ? texts_of.drawn : texts_of.words;
    const at = drawn ? parent : block(parent);
    blocks.set(at, (blocks.get(at) ?? '') + texts.currentNode.data);
  }
  const count = blocks => [...blocks.values()].flatMap(text => text.split(/\\s+/))
    .filter(part => /[\\p{L}\\p{N}]/u.test(part)).length;
  const fields = new Set();
  const inputs = 'button, a[href], input, select, textarea, summary, [role=slider], [role=button]';
  for (const element of panel.querySelectorAll(inputs)) {
    if (!isShown(element) || element.closest('.modebar')) continue;
    const field = element.closest('table') ??
      element.closest('.block:has(> label, > fieldset, [data-testid=block-info])');
    fields.add(field ?? element);
  }
  return count(texts_of.words) + ' ' + count(texts_of.drawn) + ' ' + fields.size;
}"""


def first_sight(models: list[str]) -> None:
    """Count what each tab shows on a new page with the demo model, then with one run."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play, served("app.py") as url:
        browser = play.chromium.launch(executable_path=chromium.PATH, args=chromium.FLAGS)
        fresh = count_tabs(opened(browser, url))
        page = opened(browser, url)
        make_run(page)
        used = count_tabs(page)
        browser.close()
    rows = [[title, *fresh[title], *used[title]] for title in fresh]
    counted = ("words", "words in figures", "controls")
    header = ["tab", *counted, *(f"{name}, with a run" for name in counted)]
    log(str(rows))
    tabs_within_limits = sum(
        max(row[1], row[4]) <= MOST_WORDS and max(row[3], row[6]) <= MOST_CONTROLS for row in rows
    )
    caption = (
        f"demo-llama, a window of {VIEWPORT['width']} x {VIEWPORT['height']} pixels. "
        f"{tabs_within_limits} of {len(rows)} tabs show at most {MOST_WORDS} words and "
        f"{MOST_CONTROLS} controls, with and without a run."
    )
    write_section("first_sight", f"{caption}\n\n{table(header, rows)}")


def opened(browser, url: str):
    """Open the page in a fresh profile, and wait until the first analysis ends."""
    page = browser.new_context(viewport=VIEWPORT).new_page()
    page.add_init_script(chromium.VISITED)
    page.goto(url)
    page.wait_for_selector(f"{HEAT} .main-svg", timeout=PATIENCE)
    until_idle(page)
    return page


def until_idle(page) -> None:
    """Wait until no job runs and no visible figure is awaited."""
    page.wait_for_timeout(QUIET)
    page.wait_for_function(
        "parts => ![...document.querySelectorAll(parts)].some(part => part.checkVisibility())",
        arg=UNFINISHED,
        timeout=PATIENCE,
    )
    page.wait_for_timeout(QUIET)


def make_run(page) -> None:
    """Compress the demo model, open the run, and select it to be compared."""
    open_tab(page, "Compress")
    page.locator("#run-name textarea, #run-name input").fill(RUN)
    page.click("#start")
    page.wait_for_selector(".job.done", timeout=PATIENCE)
    until_idle(page)
    page.locator(".guide .next").click()
    page.wait_for_selector("#headline .cells", timeout=PATIENCE)
    open_tab(page, "Runs & export")
    page.locator("#runs-table .open", has_text=RUN).first.click()
    page.wait_for_selector("#run-heading h3")


def count_tabs(page) -> dict[str, list[int]]:
    """Return words, words in figures and controls by the title of the tab."""
    counts = {}
    for title in page.evaluate(TITLES):
        open_tab(page, title)
        height = page.evaluate("document.documentElement.scrollHeight")
        for _ in range(0, height, STEP):
            page.mouse.wheel(0, STEP)
            page.wait_for_timeout(300)
        until_idle(page)
        counts[title] = [int(number) for number in page.evaluate(COUNT).split()]
    return counts


def open_tab(page, title: str) -> None:
    """Open a tab, and move the pointer away from everything."""
    page.get_by_role("tab", name=title, exact=True).first.click()
    page.mouse.move(1, 450)
    page.wait_for_timeout(500)
