// Copies a text to the clipboard.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // a page over plain http, or in a frame, has no access to the clipboard
    return copyAsSelection(text);
  }
}
function copyAsSelection(text) {
  const box = document.createElement('textarea');
  box.value = text;
  document.body.appendChild(box);
  box.select();
  const done = document.execCommand('copy');
  box.remove();
  return done;
}
