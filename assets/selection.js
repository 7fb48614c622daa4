// The value, [layer, component, whether a user selected it], is the selected slot. The plots listen
// for lrw-selected and draw their marks, so a selection needs no figure from the server.
function announceSelection() {
  const [layer, component, byUser] = JSON.parse(props.value || '[]');
  if (component === undefined) return;
  window.selectedSlot = { layer, component };
  window.dispatchEvent(new Event('lrw-selected'));
  if (byUser) address({ layer: String(layer), component });
}
watch('value', announceSelection);
announceSelection();
// A tab that the user opens is a step in the browser's history: Back and Forward switch tabs.
let openTab = null,
  firstTab = null,
  pendingTab = null; // the tab of a Back or Forward step, until it is open
function remember() {
  const tab = document.querySelector('#tabs [role=tab][aria-selected=true]')?.textContent.trim();
  if (tab && openTab && tab !== openTab && tab !== pendingTab)
    address({ tab }, navigator.userActivation?.isActive);
  if (tab === pendingTab) pendingTab = null;
  if (tab) openTab = tab;
  firstTab ||= tab;
}
window.addEventListener('popstate', () => {
  const tab = new URL(window.location).searchParams.get('tab') || firstTab;
  addressAfterStep({ tab });
  if (tab === openTab) return;
  pendingTab = tab;
  const buttons = [
    ...document.querySelectorAll('#tabs [role=tab], .overflow-dropdown button'),
  ].filter((button) => button.textContent.trim() === tab);
  (buttons.find((button) => button.offsetParent) || buttons.at(-1))?.click();
});
(function observeTabs() {
  const tabs = document.querySelector('#tabs');
  if (!tabs) {
    setTimeout(observeTabs, 50);
    return;
  }
  new MutationObserver(remember).observe(tabs, {
    subtree: true,
    attributes: true,
    attributeFilter: ['aria-selected'],
  });
  remember();
})();
