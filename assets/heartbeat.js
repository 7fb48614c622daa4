// Reports `tick` while the page may have something new to show, and `wake` in case an answer got
// lost: see heartbeat() in workbench/components.py.
// Runs as js_on_load of a gr.HTML, which gives element, props, trigger, watch and server.
const EVERY = 1000,
  AFTER_INPUT = 5000,
  AT_LEAST = 15000,
  WAKE = 3000; // milliseconds
let known = null,
  active = performance.now() + AFTER_INPUT,
  ticked = 0,
  woken = 0;
for (const name of ['pointerdown', 'keydown', 'input', 'change'])
  document.addEventListener(
    name,
    () => {
      active = performance.now() + AFTER_INPUT;
    },
    true,
  );
async function beat() {
  let version = known;
  try {
    version = await server.version_now();
  } catch {
    /* the server is away; Gradio says so */
  }
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
  setTimeout(beat, EVERY);
}
beat();
