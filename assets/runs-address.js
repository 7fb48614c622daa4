// Keeps the ids of the chosen runs in the address bar.
(ids) => {
  const url = new URL(window.location),
    runs = (ids || []).join(',');
  runs ? url.searchParams.set('runs', runs) : url.searchParams.delete('runs');
  history.replaceState(history.state, '', url);
  window.addressNow = url;
};
