// Adds to each entry of the lists of methods and policies a description and, if this model was
// measured, its quality; entries that are not recommended follow under $MORE. Gradio renders the
// entries anew while the list is open, so only their attributes are set; style.css shows them.
const pickerLists = $ENTRIES,
  observedPickers = new WeakSet();
function describeOptions(field) {
  const { about, recommended } = pickerLists[field.id],
    data = document.getElementById('measured-choices')?.dataset.lists,
    measured = data ? JSON.parse(data)[field.id] : {};
  let isFirst = true;
  for (const option of field.querySelectorAll('[role=option]')) {
    const name = option.getAttribute('aria-label'),
      isMore = !recommended.includes(name);
    option.dataset.about = [about[name], measured[name]].filter(Boolean).join('\n');
    option.dataset.group = isMore && isFirst ? $MORE : '';
    option.setAttribute('aria-description', option.dataset.about);
    if (isMore) isFirst = false;
  }
}
document.addEventListener('focusin', ({ target }) => {
  const field = target.closest?.(Object.keys(pickerLists).map((id) => '#' + id).join());
  if (!field || observedPickers.has(field)) return;
  observedPickers.add(field);
  const changes = { childList: true, subtree: true, attributeFilter: ['aria-label'] };
  new MutationObserver(() => describeOptions(field)).observe(field, changes);
  describeOptions(field);
});
