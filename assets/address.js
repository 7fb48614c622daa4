// The address of the page: as opened, and as it follows the user's actions. This is the only script
// that writes it. It runs before Gradio's scripts.
window.openedWith = window.location.search;
let lastAddress = null; // as last written here
// Sets query parameters in the address bar; an empty value removes one. step: whether the browser
// can go back to the previous address.
function address(changes, step = false) {
  const url = new URL(window.location);
  for (const [name, value] of Object.entries(changes))
    value ? url.searchParams.set(name, value) : url.searchParams.delete(name);
  history[step ? 'pushState' : 'replaceState'](history.state, '', url);
  lastAddress = url;
}
// The same after Back or Forward: all other parameters stay as last written.
function addressAfterStep(changes) {
  if (lastAddress) history.replaceState(history.state, '', lastAddress);
  address(changes);
}
