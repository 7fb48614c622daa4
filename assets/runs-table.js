// The table of runs: asks the server for one page of rows whenever the view or the runs change and
// the table is on show. Columns, order and words are kept in the browser.
// Runs as js_on_load of a gr.HTML, which gives element, props, trigger, watch and server. The
// value: JSON of [stamp of the runs, ids chosen to compare, id of the run on show].
const KEY = 'runs-table',
  MOST = $MOST,
  AGAIN = 2000; // milliseconds
const root = element.querySelector('.runs'),
  tools = root.querySelector('.runs-tools'),
  words = tools.querySelector('[type=search]'),
  rows = root.querySelector('.runs-page');
const usual = { columns: JSON.parse(root.dataset.usual), sort: 'date', falling: true, words: '' };
let view = { ...usual, ...kept(), page: 0 },
  onShow = false,
  stale = true,
  asked = 0,
  typing = null,
  ticked = null, // the runs that are ticked, until the server has them; null: those of the value
  sent = []; // JSON of the lists sent that were not yet in the value

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) || {};
  } catch {
    return {};
  }
}
function shown() {
  const [stamp, chosen, opened] = JSON.parse(props.value || '[]');
  return { stamp, chosen: ticked || chosen || [], opened };
}
function change(parts) {
  view = { ...view, page: 0, ...parts };
  const { page, ...rest } = view;
  try {
    localStorage.setItem(KEY, JSON.stringify(rest));
  } catch {
    /* a browser that keeps nothing */
  }
  ask();
}
async function ask() {
  stale = true;
  if (!onShow) return;
  const mine = ++asked;
  let answer;
  try {
    answer = await server.runs_listed(view);
  } catch {
    setTimeout(() => mine === asked && ask(), AGAIN); // the server is away; Gradio says so
    return;
  }
  if (mine !== asked) return;
  stale = false;
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
/* The ticks and the run on show. */
function mark() {
  const { chosen, opened } = shown();
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
  const others = view.columns.filter((one) => one !== name);
  change({ columns: e.target.checked ? [...others, name] : others });
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
    others = shown().chosen.filter((one) => one !== run);
  ticked = e.target.checked ? [...others, run] : others;
  sent.push(JSON.stringify(ticked));
  trigger('choose', { runs: ticked });
  mark();
});
/* Of ticks in a row, what the server says of the earlier ones is not what is wanted. */
function heard() {
  const place = sent.indexOf(JSON.stringify(JSON.parse(props.value || '[]')[1] || []));
  sent = place < 0 ? [] : sent.slice(place + 1);
  if (!sent.length) ticked = null;
}
let stamp = shown().stamp;
watch('value', () => {
  heard();
  const now = shown().stamp;
  if (now !== stamp) ask();
  stamp = now;
  mark();
});
// On show: in the open tab, scrolled to or not. A busy page tells several changes at once; the last
// is what is now.
new IntersectionObserver(
  (changes) => {
    onShow = changes.at(-1).isIntersecting;
    if (onShow && stale) ask();
  },
  { rootMargin: '100000px' },
).observe(root);
