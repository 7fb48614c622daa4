// Buttons of a panel: a click on an element with data-action reports all its data-* by the event
// `select`, or by that in its data-event. The listeners are on the root, so they survive a redraw
// of the content.
// Runs as js_on_load of a gr.HTML, which provides element, props, trigger and watch.
const button = (e) => e.target.closest('[data-action]');
// A button with data-pressed shows that text at once, before the server answers.
const report = (pressed) => {
  const { event, ...data } = pressed.dataset;
  trigger(event || 'select', data);
  if (!pressed.dataset.pressed) return;
  pressed.textContent = pressed.dataset.pressed;
  pressed.disabled = true;
};
element.addEventListener('click', (e) => {
  if (!button(e)) return;
  e.preventDefault();
  report(button(e));
});
// The browser sends no click if the button was redrawn between press and release.
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
