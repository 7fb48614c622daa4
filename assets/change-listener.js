// Sends `tick` when figures have to be redrawn: see after_changes() and when_visible() in
// workbench/widgets/components.py. element and trigger: as in the js_on_load of a gr.HTML. changes:
// the names of the DOM events of changes.
const REST = 200; // milliseconds without another change: while a slider moves there are many
function listenToChanges(element, trigger, changes, onlyVisible) {
  let isVisible = !onlyVisible;
  let isStale = onlyVisible; // not drawn at first
  let timer = 0;
  const tick = () => {
    if (!isVisible || !isStale) return;
    isStale = false;
    trigger('tick');
  };
  const changed = () => {
    if (!element.isConnected) {
      for (const name of changes) document.removeEventListener(name, changed);
      return;
    }
    isStale = true;
    clearTimeout(timer);
    timer = setTimeout(tick, REST);
  };
  for (const name of changes) document.addEventListener(name, changed);
  if (onlyVisible) {
    new IntersectionObserver(
      (entries) => {
        isVisible = entries.at(-1).isIntersecting;
        tick();
      },
      { rootMargin: '300px' }, // drawn before the user has scrolled to it
    ).observe(element.closest('.block').parentElement);
  }
}
