// Lays a slider with a logarithmic scale over $SLIDER, a linear slider of Gradio: a temperature
// spans decades. A mark shows the number after $MARKED in the slider's explanation.
// Runs as js_on_load of a gr.HTML that is shown together with the slider.
const POSITIONS = 1000, // of the thumb
  KEY = 1.1; // factor of an arrow key, which moves by at least one step
let linear = null,
  overlay = null,
  mark = null,
  sent = null; // last value and ends of the slider below

const read = () => {
  const [low, high, step, value] = ['min', 'max', 'step', 'value'].map((name) => +linear[name]);
  return { low, high, step, value };
};
const state = () => Object.values(read()).join();
const shareOf = (value) => {
  const { low, high } = read();
  return Math.min(1, Math.max(0, Math.log(value / low) / Math.log(high / low)));
};
function put(value) {
  const { low, high, step } = read(),
    near = Math.round(Math.min(high, Math.max(low, value)) / step) * step,
    descriptor = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value');
  descriptor.set.call(linear, +near.toPrecision(12));
  sent = state();
  linear.dispatchEvent(new Event('input', { bubbles: true }));
  announceValue();
}
const released = () => linear.dispatchEvent(new Event('pointerup', { bubbles: true }));
function announceValue() {
  overlay.style.setProperty('--range_progress', (100 * overlay.value) / POSITIONS + '%');
  overlay.setAttribute('aria-valuetext', linear.value);
}
// The number after $MARKED in the explanation; NaN without one.
function markedValue() {
  const texts = document.createTreeWalker(linear.closest('.block'), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const number = texts.currentNode.data.split($MARKED)[1];
    if (number) return parseFloat(number);
  }
  return NaN;
}
// Move the thumb after the user types a value or the server sets one.
function follow() {
  const at = markedValue();
  overlay.disabled = linear.disabled;
  mark.hidden = !(at > 0);
  if (at > 0) mark.style.setProperty('--at', shareOf(at));
  if (state() === sent) return;
  sent = state();
  overlay.value = POSITIONS * shareOf(+linear.value);
  announceValue();
}
function lay() {
  linear = document.querySelector('#' + $SLIDER + ' input[type=range]');
  if (!linear) {
    setTimeout(lay, 50);
    return;
  }
  const box = document.createElement('span');
  box.className = 'log-slider';
  overlay = document.createElement('input');
  Object.assign(overlay, { type: 'range', min: 0, max: POSITIONS, step: 1 });
  overlay.className = linear.className;
  [overlay.id, linear.id] = [linear.id, '']; // a click on the label focuses the visible slider
  overlay.setAttribute('aria-label', linear.getAttribute('aria-label') + $LABEL);
  mark = document.createElement('i');
  box.append(mark, overlay);
  linear.parentElement.querySelector('.log-slider')?.remove(); // from an earlier display of the tab
  linear.after(box);
  linear.tabIndex = -1;
  linear.setAttribute('aria-hidden', 'true');
  overlay.addEventListener('input', () => {
    const { low, high } = read();
    put(low * (high / low) ** (overlay.value / POSITIONS));
  });
  overlay.addEventListener('pointerup', released);
  overlay.addEventListener('keydown', (e) => {
    const way = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 }[e.key];
    if (!way) return;
    e.preventDefault();
    const { value, step } = read();
    put(way > 0 ? Math.max(value + step, value * KEY) : Math.min(value - step, value / KEY));
    overlay.value = POSITIONS * shareOf(+linear.value);
    announceValue();
  });
  const observer = new MutationObserver(follow);
  observer.observe(linear, { attributes: true });
  observer.observe(linear.closest('.block'), {
    characterData: true,
    childList: true,
    subtree: true,
  });
  follow();
}
lay();
