// Says by its `tick` event when what depends on something is to be drawn anew: see at_rest() and
// in_sight() in workbench/components.py. DOM events of the names $CHANGES say that it changed.
// Runs as js_on_load of a gr.HTML, which gives element and trigger.
const REST = 200; // milliseconds without another change: while a slider moves there are many
let seen = !$WATCHED;
let stale = $WATCHED; // nothing was drawn at first
let timer = 0;
const look = () => {
  if (!seen || !stale) return;
  stale = false;
  trigger('tick');
};
const changed = () => {
  if (!element.isConnected) {
    for (const name of $CHANGES) document.removeEventListener(name, changed);
    return;
  }
  stale = true;
  clearTimeout(timer);
  timer = setTimeout(look, REST);
};
for (const name of $CHANGES) document.addEventListener(name, changed);
if ($WATCHED) {
  new IntersectionObserver(
    (changes) => {
      seen = changes.at(-1).isIntersecting;
      look();
    },
    { rootMargin: '300px' }, // drawn by the time one has scrolled to it
  ).observe(element.closest('.block').parentElement);
}
