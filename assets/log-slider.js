// Lays a slider with a logarithmic scale over one of Gradio's, $SLIDER, whose own is linear: a
// temperature spans decades. A mark stands at the number that its explanation names after $MARKED.
// Runs as js_on_load of a gr.HTML that is shown together with the slider.
const PLACES = 1000, // of the thumb
  KEY = 1.1; // what a key multiplies the value by, at least by a step
let plain = null,
  over = null,
  mark = null,
  sent = null; // what the thumb was put to last: value and ends of the slider below

const read = () => {
  const [low, high, step, value] = ['min', 'max', 'step', 'value'].map((name) => +plain[name]);
  return { low, high, step, value };
};
const now = () => Object.values(read()).join();
const shareOf = (value) => {
  const { low, high } = read();
  return Math.min(1, Math.max(0, Math.log(value / low) / Math.log(high / low)));
};
function put(value) {
  const { low, high, step } = read(),
    near = Math.round(Math.min(high, Math.max(low, value)) / step) * step,
    own = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value');
  own.set.call(plain, +near.toPrecision(12));
  sent = now();
  plain.dispatchEvent(new Event('input', { bubbles: true }));
  tell();
}
const released = () => plain.dispatchEvent(new Event('pointerup', { bubbles: true }));
function tell() {
  over.style.setProperty('--range_progress', (100 * over.value) / PLACES + '%');
  over.setAttribute('aria-valuetext', plain.value);
}
// What stands after $MARKED in the explanation; NaN where nothing does.
function marked() {
  const texts = document.createTreeWalker(plain.closest('.block'), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const named = texts.currentNode.data.split($MARKED)[1];
    if (named) return parseFloat(named);
  }
  return NaN;
}
// The thumb follows what is typed, and what the server says.
function follow() {
  const at = marked();
  over.disabled = plain.disabled;
  mark.hidden = !(at > 0);
  if (at > 0) mark.style.setProperty('--at', shareOf(at));
  if (now() === sent) return;
  sent = now();
  over.value = PLACES * shareOf(+plain.value);
  tell();
}
function lay() {
  plain = document.querySelector('#' + $SLIDER + ' input[type=range]');
  if (!plain) {
    setTimeout(lay, 50);
    return;
  }
  const box = document.createElement('span');
  box.className = 'log-slider';
  over = document.createElement('input');
  Object.assign(over, { type: 'range', min: 0, max: PLACES, step: 1, className: plain.className });
  [over.id, plain.id] = [plain.id, '']; // a click on the name goes to the slider that is seen
  over.setAttribute('aria-label', plain.getAttribute('aria-label') + $LABEL);
  mark = document.createElement('i');
  box.append(mark, over);
  plain.parentElement.querySelector('.log-slider')?.remove(); // of a page that showed it before
  plain.after(box);
  plain.tabIndex = -1;
  plain.setAttribute('aria-hidden', 'true');
  over.addEventListener('input', () => {
    const { low, high } = read();
    put(low * (high / low) ** (over.value / PLACES));
  });
  over.addEventListener('pointerup', released);
  over.addEventListener('keydown', (e) => {
    const way = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 }[e.key];
    if (!way) return;
    e.preventDefault();
    const { value, step } = read();
    put(way > 0 ? Math.max(value + step, value * KEY) : Math.min(value - step, value / KEY));
    over.value = PLACES * shareOf(+plain.value);
    tell();
  });
  const observer = new MutationObserver(follow);
  observer.observe(plain, { attributes: true });
  observer.observe(plain.closest('.block'), {
    characterData: true,
    childList: true,
    subtree: true,
  });
  follow();
}
lay();
