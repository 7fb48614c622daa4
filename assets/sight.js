// Says whether an accordion is open and near what one sees of the page: see in_sight() in
// workbench/components.py. The value is "seen" or empty.
// Runs as js_on_load of a gr.HTML inside the accordion, which gives element, props and trigger.
new IntersectionObserver(
  (changes) => {
    const now = changes.at(-1).isIntersecting ? 'seen' : '';
    if (now === props.value) return;
    props.value = now;
    trigger('change');
  },
  { rootMargin: '300px' }, // drawn by the time one has scrolled to it
).observe(element.closest('.block').parentElement);
