// Stores the value, an object of query parameters, in the address, and copies the address.
watch('value', () => address(JSON.parse(props.value || '{}')));
const message = element.querySelector('[role=status]');
let clearing = null;
element.querySelector('button').addEventListener('click', async () => {
  message.textContent = (await copy(window.location.href)) ? $COPIED : $FAILED;
  clearTimeout(clearing);
  clearing = setTimeout(() => (message.textContent = ''), 4000);
});
