// Sets query parameters in the address bar; an empty value removes one. step: whether the browser
// can go back to the address of before.
function address(changes, step = false) {
  const url = new URL(window.location);
  for (const [name, value] of Object.entries(changes))
    value ? url.searchParams.set(name, value) : url.searchParams.delete(name);
  history[step ? 'pushState' : 'replaceState'](history.state, '', url);
  window.addressNow = url;
}
