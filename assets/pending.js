// Fills cells whose figures arrive later than their panel. The value maps keys to HTML. Each cell
// has the key of its plan, so a cell of an earlier slider position is not filled.
const htmlByKey = {};
let observedPanel = null;
// The number of windows of a cell: a cell with more windows replaces one with fewer or none.
function windows(html) {
  const made = document.createElement('template');
  made.innerHTML = html;
  return Number(made.content.firstElementChild.dataset.windows);
}
function fillCells() {
  for (const cell of document.querySelectorAll('[data-plan]')) {
    const html = htmlByKey[cell.dataset.plan];
    if (html && windows(html) > Number(cell.dataset.windows)) cell.outerHTML = html;
  }
  continuation();
}
// The continuation of the previous plan stays, dimmed, until the displayed plan's arrives.
let written = '';
function continuation() {
  const panel = document.querySelector('#continuation');
  const html = htmlByKey.continuation;
  if (!panel || !html) return;
  if (html !== written || !panel.querySelector('[data-of]')) {
    panel.querySelector('.note, [data-of]').outerHTML = html;
    written = html;
  }
  const displayed = document.querySelector('.cell.actual')?.dataset.plan;
  // set on the content, because Gradio rewrites the classes of its panels
  const text = panel.querySelector('[data-of]');
  text.classList.toggle('stale', text.dataset.of !== displayed);
}
// Figures that arrive before the tab is opened wait: Gradio mounts a tab when it is opened.
function follow() {
  const panel = document.getElementById('size-and-cost');
  if (!panel || panel === observedPanel || !document.getElementById('continuation')) return;
  observedPanel = panel;
  // Gradio changes the text of a cell or replaces the cell
  const options = { childList: true, subtree: true, attributeFilter: ['data-plan'] };
  new MutationObserver(fillCells).observe(panel, options);
  fillCells();
}
let tabs = null;
watch('value', () => {
  if (!props.value) return;
  Object.assign(htmlByKey, JSON.parse(props.value));
  follow();
  fillCells();
  if (tabs) return;
  tabs = document.getElementById('tabs');
  new MutationObserver(follow).observe(tabs, { childList: true, subtree: true });
});
