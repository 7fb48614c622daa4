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
}
watch('value', () => {
  if (!props.value) return;
  const panel = document.querySelector('#size-and-cost');
  Object.assign(known, JSON.parse(props.value));
  place();
  if (panel && panel !== seen) {
    seen = panel;
    new MutationObserver(place).observe(panel, { childList: true, subtree: true });
  }
});
