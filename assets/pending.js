// Fills cells that become known later than the panel they stand in. The value maps plan keys to
// HTML; each cell names its plan, so one of an earlier slider position has no place to go.
const known = {};
let seen = null;
function place() {
  for (const cell of document.querySelectorAll("[data-plan][data-known='False']"))
    if (known[cell.dataset.plan]) cell.outerHTML = known[cell.dataset.plan];
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
