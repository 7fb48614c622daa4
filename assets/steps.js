// Ticks on the tabs, and the button of the next step, which reports its tab, such as `compare`.
// data-steps: titles of tabs; data-next: [[tab, [label, next tab]], ...]; the value: which steps
// are done.
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
  const named = tabs().filter((b) => b.textContent.trim() === title);
  named.find((b) => b.offsetParent)?.click() ?? named.at(-1)?.click();
}
function draw() {
  const at = current(),
    done = JSON.parse(props.value || '[]');
  tabs().forEach((tab) => {
    const ticked = !!done[steps.indexOf(tab.textContent.trim())];
    if (ticked !== tab.hasAttribute('data-done')) tab.toggleAttribute('data-done', ticked);
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
(function look() {
  const tabs = document.querySelector('#tabs');
  if (!tabs) {
    setTimeout(look, 50);
    return;
  }
  new MutationObserver(draw).observe(tabs, {
    subtree: true,
    attributes: true,
    attributeFilter: ['aria-selected'],
  });
  draw();
})();
