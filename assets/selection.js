// The value, [layer, component, chosen by a person], is the selected slot. The plots listen for
// lrw-selected and draw their own marks, so a selection needs no figure from the server.
function spread() {
  const [layer, component, chosen] = JSON.parse(props.value || '[]');
  if (component === undefined) return;
  window.selectedSlot = { layer, component };
  window.dispatchEvent(new Event('lrw-selected'));
  if (chosen) address({ layer: String(layer), component });
}
watch('value', spread);
spread();
// A tab that a person opens is a step in the browser's history: Back and Forward go from tab to
// tab.
let shown = null,
  first = null,
  returned = null; // the tab that the browser went back to, until it is open
function remember() {
  const tab = document.querySelector('#tabs [role=tab][aria-selected=true]')?.textContent.trim();
  if (tab && shown && tab !== shown && tab !== returned)
    address({ tab }, navigator.userActivation?.isActive);
  if (tab === returned) returned = null;
  if (tab) shown = tab;
  first ||= tab;
}
window.addEventListener('popstate', () => {
  const tab = new URL(window.location).searchParams.get('tab') || first;
  addressAfterStep({ tab }); // all else stays as it is on show
  if (tab === shown) return;
  returned = tab;
  const named = [
    ...document.querySelectorAll('#tabs [role=tab], .overflow-dropdown button'),
  ].filter((one) => one.textContent.trim() === tab);
  (named.find((one) => one.offsetParent) || named.at(-1))?.click();
});
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
