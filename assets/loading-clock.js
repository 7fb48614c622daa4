// Ends the clock of Gradio's "Loading..." sign, which goes on after the sign is gone (Gradio 6.31)
// and makes a page at rest draw 60 frames per second. Runs before Gradio's own scripts, which keep
// the requestAnimationFrame that they find. The clock asks for a frame within each frame, so the
// first two after the tabs stand show whether it still runs.
(() => {
  const ask = window.requestAnimationFrame.bind(window);
  let looking = true,
    counting = false;
  const stop = () => {
    looking = false;
  };
  window.requestAnimationFrame = (draw) => {
    if (!looking || !document.getElementById('tabs')) return ask(draw);
    if (String(draw).includes('performance.now()')) {
      stop();
      return 0;
    }
    if (!counting) ask(() => ask(stop));
    counting = true;
    return ask(draw);
  };
})();
