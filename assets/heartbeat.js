// Sends `tick` while the content of the page may change, and `wake` in case an answer was lost: see
// heartbeat() in workbench/widgets/components.py.
// Runs as js_on_load of a gr.HTML, which provides element, props, trigger, watch and server.
const ACTIVE = 1000, // milliseconds between requests while a job runs or the user acts
  IDLE = 5000,
  AFTER_INPUT = 5000,
  LONGEST = 15000,
  WAKE = 3000;
let lastVersion = null,
  runs = true,
  activeUntil = performance.now() + AFTER_INPUT,
  ticked = 0,
  woken = 0,
  timer = 0,
  isAsking = false;
// A screen reader presses a button by a click without pointer events.
for (const name of ['pointerdown', 'keydown', 'click', 'input', 'change'])
  document.addEventListener(
    name,
    () => {
      const wasIdle = performance.now() > activeUntil;
      activeUntil = performance.now() + AFTER_INPUT;
      if (wasIdle) schedule();
    },
    true,
  );
// A hidden page sends no requests; when it becomes visible again, it sends one at once.
document.addEventListener('visibilitychange', () => {
  if (!document.hidden) beat();
});
function schedule() {
  clearTimeout(timer);
  const soon = runs || performance.now() < activeUntil;
  timer = setTimeout(beat, soon ? ACTIVE : IDLE);
}
async function beat() {
  if (isAsking || document.hidden) return;
  isAsking = true;
  let version = lastVersion;
  try {
    [version, runs] = await server.version_now();
  } catch {
    /* the server is not reachable; Gradio shows a message */
  }
  isAsking = false;
  const now = performance.now();
  if (ticked > woken && now - woken > WAKE) {
    woken = now;
    trigger('wake');
  }
  if (version !== lastVersion || now < activeUntil || now - ticked > LONGEST) {
    lastVersion = version;
    ticked = now;
    trigger('tick');
  }
  schedule();
}
beat();
