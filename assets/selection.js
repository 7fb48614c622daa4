// The value, [layer, component, chosen by a person], is the selected slot. The plots listen for
// lrw-selected and draw their own marks, so a selection needs no figure from the server.
// Needs address.js.
function spread() {
  const [layer, component, chosen] = JSON.parse(props.value || '[]');
  if (component === undefined) return;
  window.selectedSlot = { layer, component };
  window.dispatchEvent(new Event('lrw-selected'));
  if (chosen) address({ layer: String(layer), component });
}
watch('value', spread);
spread();
let shown = null;
function remember() {
  const tab = document.querySelector('#tabs [role=tab][aria-selected=true]')?.textContent.trim();
  if (tab && shown && tab !== shown) address({ tab });
  if (tab) shown = tab;
}
(function look() {
  const tabs = document.querySelector('#tabs');
  if (!tabs) {
    setTimeout(look, 50);
    return;
  }
  new MutationObserver(remember).observe(tabs, {
    subtree: true,
    attributes: true,
    attributeFilter: ['aria-selected'],
  });
  remember();
})();
