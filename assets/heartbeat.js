// Reports `tick` while the page may have something new to show, and `wake` in case an answer got
// lost: see heartbeat() in workbench/components.py.
// Runs as js_on_load of a gr.HTML, which gives element, props, trigger, watch and server.
const EVERY = 1000, // milliseconds: while something runs, or a person does something
  AT_REST = 5000,
  AFTER_INPUT = 5000,
  AT_LEAST = 15000,
  WAKE = 3000;
let known = null,
  runs = true,
  active = performance.now() + AFTER_INPUT,
  ticked = 0,
  woken = 0,
  timer = 0,
  asks = false;
// A screen reader presses a button with nothing but a click.
for (const name of ['pointerdown', 'keydown', 'click', 'input', 'change'])
  document.addEventListener(
    name,
    () => {
      const rested = performance.now() > active;
      active = performance.now() + AFTER_INPUT;
      if (rested) again();
    },
    true,
  );
// A page that nobody sees asks nothing; once it is seen again, it asks at once.
document.addEventListener('visibilitychange', () => {
  if (!document.hidden) beat();
});
function again() {
  clearTimeout(timer);
  const soon = runs || performance.now() < active;
  timer = setTimeout(beat, soon ? EVERY : AT_REST);
}
async function beat() {
  if (asks || document.hidden) return;
  asks = true;
  let version = known;
  try {
    [version, runs] = await server.version_now();
  } catch {
    /* the server is away; Gradio says so */
  }
  asks = false;
  const now = performance.now();
  if (ticked > woken && now - woken > WAKE) {
    woken = now;
    trigger('wake');
  }
  if (version !== known || now < active || now - ticked > AT_LEAST) {
    known = version;
    ticked = now;
    trigger('tick');
  }
  again();
}
beat();
