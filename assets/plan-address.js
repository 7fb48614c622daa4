// Stores the value, an object of query parameters, in the address, and copies the address.
watch('value', () => address(JSON.parse(props.value || '{}')));
const message = element.querySelector('[role=status]');
let clearing = null;
element.querySelector('button').addEventListener('click', async () => {
  message.textContent = (await copy(window.location.href)) ? $COPIED : $FAILED;
  clearTimeout(clearing);
  clearing = setTimeout(() => (message.textContent = ''), 4000);
});
async function copy(link) {
  try {
    await navigator.clipboard.writeText(link);
    return true;
  } catch {
    // a page over plain http, or in a frame, has no access to the clipboard
    return copyAsSelection(link);
  }
}
function copyAsSelection(link) {
  const box = document.createElement('textarea');
  box.value = link;
  document.body.appendChild(box);
  box.select();
  const done = document.execCommand('copy');
  box.remove();
  return done;
}
