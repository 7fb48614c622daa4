// Says when what holds this element is to be drawn: see in_sight() in workbench/components.py.
// A DOM event of its elem_id says that something changed; the `tick` event comes soon while the
// holder is on the screen or near it, else once it is. Nothing was drawn at first.
// Runs as js_on_load of a gr.HTML inside the holder, which gives element and trigger.
const REST = 200; // milliseconds without another change: while a slider moves there are many
const block = element.closest('.block');
let seen = false;
let stale = true;
let timer = 0;
const look = () => {
  if (!seen || !stale) return;
  stale = false;
  trigger('tick');
};
const changed = () => {
  if (!element.isConnected) return document.removeEventListener(block.id, changed);
  stale = true;
  clearTimeout(timer);
  timer = setTimeout(look, REST);
};
document.addEventListener(block.id, changed);
new IntersectionObserver(
  (changes) => {
    seen = changes.at(-1).isIntersecting;
    look();
  },
  { rootMargin: '300px' }, // drawn by the time one has scrolled to it
).observe(block.parentElement);
