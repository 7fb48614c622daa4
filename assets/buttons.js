// A panel's buttons: a click on an element with data-action reports all its data-* through
// `select`.
// The listeners on the root survive every redraw of the inside.
// Runs as js_on_load of a gr.HTML, which gives element, props, trigger and watch.
const button = (e) => e.target.closest('[data-action]');
// One with data-pressed says at once that it was pressed, before the server has answered.
const report = (pressed) => {
  trigger('select', { ...pressed.dataset });
  if (!pressed.dataset.pressed) return;
  pressed.textContent = pressed.dataset.pressed;
  pressed.disabled = true;
};
element.addEventListener('click', (e) => {
  if (!button(e)) return;
  e.preventDefault();
  report(button(e));
});
// The browser makes no click where the button was drawn anew between press and release.
let down = null;
element.addEventListener('pointerdown', (e) => {
  down = button(e);
});
element.addEventListener('pointerup', (e) => {
  const up = button(e),
    same = up && down && JSON.stringify(up.dataset) === JSON.stringify(down.dataset);
  if (same && !down.isConnected) report(up);
  down = null;
});
