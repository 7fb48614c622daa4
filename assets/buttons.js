// A panel's buttons: a click on an element with data-action reports all its data-* through
// `select`.
// One listener on the root survives every redraw of the inside.
// Runs as js_on_load of a gr.HTML, which gives element, props, trigger and watch.
element.addEventListener('click', (e) => {
  const button = e.target.closest('[data-action]');
  if (button) {
    e.preventDefault();
    trigger('select', { ...button.dataset });
  }
});
