// Fills cells that become known later than the panel they stand in. The value maps plan keys to
// HTML; each cell names its plan, so one of an earlier slider position has no place to go.
const known = {};
let seen = null;
// A cell that was measured on more windows takes the place of one with fewer, or none.
function windows(html) {
  const made = document.createElement('template');
  made.innerHTML = html;
  return Number(made.content.firstElementChild.dataset.windows);
}
function place() {
  for (const cell of document.querySelectorAll('[data-plan]')) {
    const html = known[cell.dataset.plan];
    if (html && windows(html) > Number(cell.dataset.windows)) cell.outerHTML = html;
  }
  continuation();
}
// The continuation of the ranks before stays, pale, until that of those on show is there.
let written = '';
function continuation() {
  const panel = document.querySelector('#continuation');
  const html = known.continuation;
  if (!panel || !html) return;
  if (html !== written || !panel.querySelector('[data-of]')) {
    panel.querySelector('.note, [data-of]').outerHTML = html;
    written = html;
  }
  const shown = document.querySelector('.cell.actual')?.dataset.plan;
  // on what is drawn here: Gradio writes the classes of its panels anew
  const said = panel.querySelector('[data-of]');
  said.classList.toggle('stale', said.dataset.of !== shown);
}
// What becomes known before the tab was opened waits for it: Gradio mounts a tab when it is opened.
function follow() {
  const panel = document.getElementById('size-and-cost');
  if (!panel || panel === seen || !document.getElementById('continuation')) return;
  seen = panel;
  // Gradio changes what a cell says, or puts another one in its place
  const what = { childList: true, subtree: true, attributeFilter: ['data-plan'] };
  new MutationObserver(place).observe(panel, what);
  place();
}
let tabs = null;
watch('value', () => {
  if (!props.value) return;
  Object.assign(known, JSON.parse(props.value));
  follow();
  place();
  if (tabs) return;
  tabs = document.getElementById('tabs');
  new MutationObserver(follow).observe(tabs, { childList: true, subtree: true });
});
