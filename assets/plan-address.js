// Keeps the value, an object of query parameters, in the address bar, and copies the address.
watch('value', () => address(JSON.parse(props.value || '{}')));
const said = element.querySelector('[role=status]');
let clearing = null;
element.querySelector('button').addEventListener('click', async () => {
  said.textContent = (await copied(window.location.href)) ? $COPIED : $FAILED;
  clearTimeout(clearing);
  clearing = setTimeout(() => (said.textContent = ''), 4000);
});
async function copied(link) {
  try {
    await navigator.clipboard.writeText(link);
    return true;
  } catch {
    return copiedAsSelection(link); // a page over plain http, or in a frame, has no clipboard
  }
}
function copiedAsSelection(link) {
  const box = document.createElement('textarea');
  box.value = link;
  document.body.appendChild(box);
  box.select();
  const done = document.execCommand('copy');
  box.remove();
  return done;
}
