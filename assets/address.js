// Sets query parameters in the address bar; an empty value removes one.
function address(changes) {
  const url = new URL(window.location);
  for (const [name, value] of Object.entries(changes))
    value ? url.searchParams.set(name, value) : url.searchParams.delete(name);
  history.replaceState(history.state, '', url);
}
