// Check marks on the tabs, and the button of the next step, which sends an event with the name of
// its tab, such as `compare`. data-steps: titles of tabs. data-next: [[tab, [label, next tab]],
// ...]. The value lists which steps are done.
const guide = element.querySelector('.guide'),
  go = guide.querySelector('.next'),
  steps = JSON.parse(guide.dataset.steps);
const next = Object.fromEntries(JSON.parse(guide.dataset.next));
const tabs = () => [
  ...document.querySelectorAll('#tabs [role=tab], .overflow-dropdown button'),
];
const current = () =>
  document.querySelector('#tabs [role=tab][aria-selected=true]')?.textContent.trim();
function open(title) {
  const buttons = tabs().filter((b) => b.textContent.trim() === title);
  buttons.find((b) => b.offsetParent)?.click() ?? buttons.at(-1)?.click();
}
function draw() {
  const at = current(),
    done = JSON.parse(props.value || '[]');
  tabs().forEach((tab) => {
    const isDone = !!done[steps.indexOf(tab.textContent.trim())];
    if (isDone !== tab.hasAttribute('data-done')) tab.toggleAttribute('data-done', isDone);
  });
  go.hidden = !next[at] || !done[steps.indexOf(at)];
  if (next[at]) {
    go.textContent = next[at][0];
    go.onclick = () => {
      open(next[at][1]);
      trigger(next[at][1].toLowerCase());
    };
  }
}
watch('value', draw);
(function observeTabs() {
  const tabs = document.querySelector('#tabs');
  if (!tabs) {
    setTimeout(observeTabs, 50);
    return;
  }
  new MutationObserver(draw).observe(tabs, {
    subtree: true,
    attributes: true,
    attributeFilter: ['aria-selected'],
  });
  draw();
})();
