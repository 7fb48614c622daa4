// Sends `tick` when figures have to be redrawn: see after_changes() and when_visible() in
// workbench/widgets/components.py. $CHANGES are the names of the DOM events of changes.
// Runs as js_on_load of a gr.HTML, which provides element and trigger.
const REST = 200; // milliseconds without another change: while a slider moves there are many
let isVisible = !$WATCHED;
let isStale = $WATCHED; // not drawn at first
let timer = 0;
const tick = () => {
  if (!isVisible || !isStale) return;
  isStale = false;
  trigger('tick');
};
const changed = () => {
  if (!element.isConnected) {
    for (const name of $CHANGES) document.removeEventListener(name, changed);
    return;
  }
  isStale = true;
  clearTimeout(timer);
  timer = setTimeout(tick, REST);
};
for (const name of $CHANGES) document.addEventListener(name, changed);
if ($WATCHED) {
  new IntersectionObserver(
    (changes) => {
      isVisible = changes.at(-1).isIntersecting;
      tick();
    },
    { rootMargin: '300px' }, // drawn before the user has scrolled to it
  ).observe(element.closest('.block').parentElement);
}
