// The address: as the page was opened with, and as it follows what a person does from then on. No
// other script writes it. Runs before Gradio's own.
window.openedWith = window.location.search;
let addressNow = null; // as it was last written here
// Sets query parameters in the address bar; an empty value removes one. step: whether the browser
// can go back to the address of before.
function address(changes, step = false) {
  const url = new URL(window.location);
  for (const [name, value] of Object.entries(changes))
    value ? url.searchParams.set(name, value) : url.searchParams.delete(name);
  history[step ? 'pushState' : 'replaceState'](history.state, '', url);
  addressNow = url;
}
// The same where the browser has gone back or forth: the rest stays as it was last written.
function addressAfterStep(changes) {
  if (addressNow) history.replaceState(history.state, '', addressNow);
  address(changes);
}
