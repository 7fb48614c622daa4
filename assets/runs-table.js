// The table of runs: requests a page of rows when the view or the runs change while the table is
// visible. Columns, order and search terms are stored in the browser.
// Runs as js_on_load of a gr.HTML, which provides element, props, trigger, watch and server. The
// value is JSON of [stamp of the runs, ids of the selected runs, id of the opened run].
const KEY = 'runs-table',
  MOST = $MOST,
  RETRY = 2000; // milliseconds
const root = element.querySelector('.runs'),
  tools = root.querySelector('.runs-tools'),
  words = tools.querySelector('[type=search]'),
  rows = root.querySelector('.runs-page');
const usualColumns = JSON.parse(root.dataset.usual);
const defaults = { columns: usualColumns, sort: 'date', falling: true, words: '' };
let view = { ...defaults, ...stored(), page: 0 },
  isVisible = false,
  isStale = true,
  requests = 0,
  typing = null,
  selected = null, // the selected runs, until the server has them; null: those of the value
  sent = []; // JSON of sent lists that the value does not have yet

function stored() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) || {};
  } catch {
    return {};
  }
}
function state() {
  const [stamp, chosen, opened] = JSON.parse(props.value || '[]');
  return { stamp, chosen: selected || chosen || [], opened };
}
function change(parts) {
  view = { ...view, page: 0, ...parts };
  const { page, ...settings } = view;
  try {
    localStorage.setItem(KEY, JSON.stringify(settings));
  } catch {
    /* a browser without storage */
  }
  requestRows();
}
async function requestRows() {
  isStale = true;
  if (!isVisible) return;
  const number = ++requests;
  let answer;
  try {
    answer = await server.runs_listed(view);
  } catch {
    // the server is not reachable; Gradio shows a message
    setTimeout(() => number === requests && requestRows(), RETRY);
    return;
  }
  if (number !== requests) return;
  isStale = false;
  view.page = answer.page;
  tools.hidden = !answer.rows;
  const focus = rows.contains(document.activeElement) && document.activeElement.dataset.sort;
  rows.innerHTML = answer.html;
  if (focus) rows.querySelector(`[data-sort='${focus}']`)?.focus();
  tools.querySelector('.runs-rows').textContent = answer.rows;
  tools.querySelector("[data-turn='-1']").disabled = answer.page === 0;
  tools.querySelector("[data-turn='1']").disabled = !answer.more;
  mark();
}
/* The selected runs and the opened run. */
function mark() {
  const { chosen, opened } = state();
  for (const row of rows.querySelectorAll('tr[data-run]')) {
    const box = row.querySelector('[type=checkbox]');
    box.checked = chosen.includes(row.dataset.run);
    box.disabled = !box.checked && chosen.length >= MOST;
    row.classList.toggle('opened', row.dataset.run === opened);
  }
  tools.querySelector('.compare').disabled = !chosen.length;
  for (const box of tools.querySelectorAll('[data-column]'))
    box.checked = view.columns.includes(box.dataset.column);
}
words.value = view.words;
words.addEventListener('input', () => {
  clearTimeout(typing);
  typing = setTimeout(() => change({ words: words.value }), 150);
});
tools.addEventListener('change', (e) => {
  const name = e.target.dataset.column;
  if (!name) return;
  const columns = view.columns.filter((column) => column !== name);
  change({ columns: e.target.checked ? [...columns, name] : columns });
});
tools.addEventListener('click', (e) => {
  const turn = e.target.closest('[data-turn]');
  if (turn) change({ page: view.page + +turn.dataset.turn });
  if (e.target.closest('.compare')) trigger('compare');
});
rows.addEventListener('click', (e) => {
  const head = e.target.closest('[data-sort]'),
    row = e.target.closest('tr[data-run]');
  if (head) {
    const same = head.dataset.sort === view.sort;
    change({
      sort: head.dataset.sort,
      falling: same ? !view.falling : head.dataset.falling === '1',
    });
  } else if (row && !e.target.closest('.tick')) trigger('open', { run: row.dataset.run });
});
rows.addEventListener('change', (e) => {
  const { run } = e.target.closest('tr').dataset,
    otherRuns = state().chosen.filter((id) => id !== run);
  selected = e.target.checked ? [...otherRuns, run] : otherRuns;
  sent.push(JSON.stringify(selected));
  trigger('choose', { runs: selected });
  mark();
});
/* After several selections, the answers to the earlier ones are ignored. */
function acknowledge() {
  const position = sent.indexOf(JSON.stringify(JSON.parse(props.value || '[]')[1] || []));
  sent = position < 0 ? [] : sent.slice(position + 1);
  if (!sent.length) selected = null;
}
let stamp = state().stamp;
watch('value', () => {
  acknowledge();
  const newStamp = state().stamp;
  if (newStamp !== stamp) requestRows();
  stamp = newStamp;
  mark();
});
// Visible: in the open tab, scrolled to or not. A busy page reports several changes at once; the
// last one is current.
new IntersectionObserver(
  (changes) => {
    isVisible = changes.at(-1).isIntersecting;
    if (isVisible && isStale) requestRows();
  },
  { rootMargin: '100000px' },
).observe(root);
