"""The path through the page in four steps, with one primary button: what to do next from the tab
on show.
"""

import json

import gradio as gr

from .session import Session

STEPS = (
    ("Spectra", "Analyse"),
    ("Allocation", "Allocate"),
    ("Compress", "Compress"),
    ("Compare", "Compare"),
)
NEXT = {
    "Spectra": ("Next: set the ranks", "Allocation"),
    "Allocation": ("Next: compress", "Compress"),
    "Compress": ("Next: compare the answers", "Compare"),
}

DRAW = """
const steps = STEPS, next = NEXT, nav = element.querySelector('nav');
const current = () => document.querySelector('#tabs [role=tab][aria-selected=true]')?.textContent.trim();
function open(title) {
  const named = [...document.querySelectorAll('#tabs [role=tab], .overflow-dropdown button')].filter(b => b.textContent.trim() === title);
  named.find(b => b.offsetParent)?.click() ?? named.at(-1)?.click();
}
function draw() {
  const at = current(), done = JSON.parse(props.value || '[]');
  nav.querySelectorAll('ol button').forEach((button, i) => {
    const here = steps[i][0] === at;
    here ? button.setAttribute('aria-current', 'step') : button.removeAttribute('aria-current');
    button.querySelector('.tick').textContent = done[i] ? '✓' : i + 1;
    button.classList.toggle('done', !!done[i]);
  });
  const go = nav.querySelector('.next'), place = steps.findIndex(step => step[0] === at);
  go.hidden = !next[at] || !done[place];
  if (next[at]) { go.textContent = next[at][0]; go.onclick = () => open(next[at][1]); }
}
nav.querySelectorAll('ol button').forEach((button, i) => { button.onclick = () => open(steps[i][0]); });
watch('value', draw);
(function look() {
  const tabs = document.querySelector('#tabs');
  if (!tabs) { setTimeout(look, 50); return; }
  new MutationObserver(draw).observe(tabs, {subtree: true, attributes: true, attributeFilter: ['aria-selected']});
  draw();
})();
"""


def build() -> gr.HTML:
    """Its value, what `said` gives, says which steps are done."""
    steps = "".join(
        f"<li><button type='button'><span class='tick'>{i + 1}</span> {label}</button></li>"
        for i, (_, label) in enumerate(STEPS)
    )
    template = (
        f"<nav class='guide' aria-label='Steps'><ol>{steps}</ol><button type='button' class='next' "
        "hidden></button></nav>"
    )
    script = DRAW.replace("STEPS", json.dumps(STEPS)).replace("NEXT", json.dumps(NEXT))
    return gr.HTML(
        said(False, False, False), html_template=template, js_on_load=script, elem_id="guide"
    )


def said(analysed: bool, factored: bool, ran: bool) -> str:
    return json.dumps([analysed, factored, ran, False])


def done(session: Session, analysed: bool, factored: bool) -> str:
    return said(analysed, factored, bool(session.runs.ids()))
