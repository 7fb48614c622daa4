// Numbers the gestures of the user. A gesture is a press of the pointer with all its moves, or a
// burst of keys in one element. All changes of the plan in one gesture are undone together.
// Undo, Redo and keys with Ctrl are no gestures.
const BURST = 1000; // milliseconds without a key that end a burst
let gesture = 0,
  lastKey = null; // time and element of the last key, null after a press of the pointer
function countGesture(event) {
  if (event.target.closest?.('#undo, #redo')) return;
  if (event.ctrlKey || event.metaKey || event.key === 'Shift') return;
  const key = event.type === 'keydown' ? { time: Date.now(), target: event.target } : null;
  const isBurst = key && lastKey?.target === key.target && key.time - lastKey.time < BURST;
  if (!isBurst) gesture += 1;
  lastKey = key;
}
for (const type of ['pointerdown', 'keydown', 'drop'])
  document.addEventListener(type, countGesture, true);
