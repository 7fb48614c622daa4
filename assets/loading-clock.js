// Stops the clock of Gradio's "Loading..." sign. It continues after the sign has disappeared
// (Gradio 6.31) and makes an idle page draw 60 frames per second. This script runs before the
// scripts of Gradio, which store the requestAnimationFrame that they find. The clock requests a
// frame within each frame, so the first two frames after the tabs appear show whether it runs.
(() => {
  const requestFrame = window.requestAnimationFrame.bind(window);
  let isWatching = true,
    isCounting = false;
  const stop = () => {
    isWatching = false;
  };
  window.requestAnimationFrame = (draw) => {
    if (!isWatching || !document.getElementById('tabs')) return requestFrame(draw);
    if (String(draw).includes('performance.now()')) {
      stop();
      return 0;
    }
    if (!isCounting) requestFrame(() => requestFrame(stop));
    isCounting = true;
    return requestFrame(draw);
  };
})();
