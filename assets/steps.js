// The steps above the tabs. The button of the next step reports its tab, such as `compare`.
// data-steps: [[tab, label], ...]; data-next: [[tab, [label, next tab]],
// ...]; the value: which steps are done.
const nav = element.querySelector('nav'),
  steps = JSON.parse(nav.dataset.steps);
const next = Object.fromEntries(JSON.parse(nav.dataset.next));
const current = () =>
  document.querySelector('#tabs [role=tab][aria-selected=true]')?.textContent.trim();
function open(title) {
  const named = [
    ...document.querySelectorAll('#tabs [role=tab], .overflow-dropdown button'),
  ].filter((b) => b.textContent.trim() === title);
  named.find((b) => b.offsetParent)?.click() ?? named.at(-1)?.click();
}
function draw() {
  const at = current(),
    done = JSON.parse(props.value || '[]');
  nav.querySelectorAll('ol button').forEach((button, i) => {
    const here = steps[i][0] === at;
    here ? button.setAttribute('aria-current', 'step') : button.removeAttribute('aria-current');
    button.querySelector('.tick').textContent = done[i] ? '✓' : i + 1;
    button.classList.toggle('done', !!done[i]);
  });
  const go = nav.querySelector('.next'),
    place = steps.findIndex((step) => step[0] === at);
  go.hidden = !next[at] || !done[place];
  if (next[at]) {
    go.textContent = next[at][0];
    go.onclick = () => {
      open(next[at][1]);
      trigger(next[at][1].toLowerCase());
    };
  }
}
nav.querySelectorAll('ol button').forEach((button, i) => {
  button.onclick = () => open(steps[i][0]);
});
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
