// A plot in the browser: draws in the page's colors, keeps the zoom, reports clicks, and marks the
// selected slot.
// Runs as js_on_load of a gr.HTML, which provides element, props, trigger and watch.
//
// Colors come from the page when a figure is drawn, so that a figure fits light and dark mode. A
// plot that is drawn while its tab is hidden has no width; the observer redraws it once it has one.
// Fields of a figure's layout.meta:
//   mark: the mark of the selected slot: "cell" of a heatmap, "bar", "point", "block", or "layer"
//     (a band across). A slot that is hovered over in one plot is marked in all visible plots, and
//     the event `focus` asks for the curves of a cell on which the pointer or the keyboard rests.
//   columns: for blocks, component -> begin and end of its column
//   axes: for bars, component -> [y axis, begin relative to the middle of the layer, width], both
//     in layers
//   steps: component -> [smallest step of a rank]: the selected bar gets a handle
// The caption is above the plot, and below it in a saved file (plot-saving.js).
const host = element.querySelector('.plot'),
  head = element.querySelector('.plot-head');
head.innerHTML = $HEAD;
const style = (name) => getComputedStyle(element).getPropertyValue(name).trim();
let figure = null,
  handle = null,
  dragged = false,
  hovered = null, // the slot under the pointer in another plot
  turn = null, // for the first drawing: true once it has come
  width = 0; // of the drawn plot: reading it from the browser would force a layout of the page

// A circle of 9 pixels around a point, as a path: on a logarithmic axis, plotly takes the logarithm
// of the corners of a circle and draws only a quarter of it.
const RING = 'M9,0C9,5 5,9 0,9C-5,9 -9,5 -9,0C-9,-5 -5,-9 0,-9C5,-9 9,-5 9,0Z';
const CELL_KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const LINKED = ['cell', 'point', 'bar', 'block'];
const REST = 120; // milliseconds on a cell before its curves are requested

function marks() {
  const mark = (figure.layout.meta || {}).mark,
    hoverMarks = LINKED.includes(mark) ? shapesAround(mark, hovered, 'hovered') : [];
  return [...shapesAround(mark, window.selectedSlot, 'selected'), ...hoverMarks];
}

// The shapes that mark a slot, with a name.
function shapesAround(mark, at, name) {
  if (!at || !mark) return [];
  const dash = name === 'hovered' ? 'dot' : 'solid',
    line = { color: style('--select'), width: 2.5, dash },
    half = 0.5;
  const box = { type: 'rect', x0: at.layer - half, x1: at.layer + half, line, name };
  if (mark === 'layer')
    return [
      {
        ...box,
        yref: 'paper',
        y0: 0,
        y1: 1,
        line: { width: 0 },
        fillcolor: style('--select'),
        opacity: 0.14,
      },
    ];
  if (mark === 'cell') {
    const row = figure.data[0].y.indexOf(at.component);
    return row < 0 ? [] : [{ ...box, y0: row - half, y1: row + half }];
  }
  if (mark === 'block') {
    const ends = figure.layout.meta.columns[at.component];
    const rows = { y0: at.layer - half, y1: at.layer + half };
    return ends ? [{ ...box, x0: ends[0], x1: ends[1], ...rows }] : [];
  }
  if (mark === 'point') {
    const point = pointOf(at);
    const ring = { type: 'path', path: RING, line, name, xsizemode: 'pixel', ysizemode: 'pixel' };
    return point ? [{ ...ring, xanchor: point.x, yanchor: point.y }] : [];
  }
  const axis = figure.layout.meta.axes[at.component];
  if (!axis) return [];
  const [yref, begin, width] = axis,
    x0 = at.layer + begin;
  return [{ ...box, yref, x0, x1: x0 + width, y0: 0, y1: 1.03 }];
}

function pointOf(at) {
  for (const trace of figure.data)
    for (const [i, [layer, name]] of (trace.customdata || []).entries())
      if (layer === at.layer && name === at.component) return { x: trace.x[i], y: trace.y[i] };
  return null;
}

function redrawMarks() {
  if (!figure || !figure.layout.meta.mark) return;
  const shapes = [...(figure.layout.shapes || []), ...marks()];
  Plotly.relayout(host, { shapes }).then(placeHandle);
}

// Announce the slot under the pointer to the other plots; null: none.
function announceHover(slot) {
  if (figure && LINKED.includes(figure.layout.meta.mark))
    window.dispatchEvent(new CustomEvent('lrw-hovered', { detail: { host, slot } }));
}
function hoveredElsewhere({ detail }) {
  const isVisible = detail.host !== host && figure && host.offsetParent,
    linked = isVisible && LINKED.includes(figure.layout.meta.mark);
  if (!linked || JSON.stringify(detail.slot) === JSON.stringify(hovered)) return;
  hovered = detail.slot;
  redrawMarks();
}

// Ask for the curves of a cell in place of those of the selected cell, which null asks for again.
let resting = 0,
  previewed = null;
function preview(slot) {
  if (!figure || figure.layout.meta.mark !== 'cell') return;
  clearTimeout(resting);
  resting = setTimeout(() => {
    if (JSON.stringify(slot) === JSON.stringify(previewed)) return;
    previewed = slot;
    trigger('focus', { custom: slot && [slot.layer, slot.component] });
  }, REST);
}
function select(details) {
  clearTimeout(resting);
  previewed = null;
  trigger('select', details);
}

/* The keyboard: arrow keys mark a cell of a heatmap, Enter selects it. */
function moveCell(key) {
  const { x, y, customdata } = figure.data[0],
    rows = y.filter((_, row) => customdata[row].length), // without the gap between groups
    from = hovered || window.selectedSlot || {},
    [right, down] = CELL_KEYS[key],
    inside = (i, count) => Math.min(count - 1, Math.max(0, i));
  hovered = {
    layer: x[inside(x.indexOf(from.layer) + right, x.length)],
    component: rows[inside(rows.indexOf(from.component) + down, rows.length)],
  };
  announceHover(hovered);
  preview(hovered);
  redrawMarks();
}
function cellKey(event) {
  if (!figure || figure.layout.meta.mark !== 'cell') return;
  const isEnter = event.key === 'Enter' || event.key === ' ';
  if (!isEnter && !CELL_KEYS[event.key]) return;
  event.preventDefault();
  if (!isEnter) moveCell(event.key);
  const at = hovered || window.selectedSlot,
    [row, column] = [figure.data[0].y.indexOf(at?.component), figure.data[0].x.indexOf(at?.layer)];
  if (row < 0 || column < 0) return;
  const custom = figure.data[0].customdata[row][column],
    more = event.ctrlKey || event.metaKey;
  host.setAttribute('aria-label', `${$CELLS} ${custom[0]} · ${custom[1]}: ${custom[2]}`);
  if (isEnter) select({ x: at.layer, y: at.component, z: custom[2], custom, more });
}
function leaveCells() {
  if (!figure || figure.layout.meta.mark !== 'cell') return;
  hovered = null;
  announceHover(null);
  preview(null);
  redrawMarks();
}
function makeFocusable() {
  host.tabIndex = 0;
  host.setAttribute('role', 'application'); // so that screen readers pass arrow keys on
  host.setAttribute('aria-label', $CELLS);
  host.addEventListener('keydown', cellKey);
  host.addEventListener('blur', leaveCells);
}

function selectedBar() {
  const at = window.selectedSlot;
  for (const trace of figure.data)
    for (const [i, point] of (trace.customdata || []).entries())
      if (at && point[0] === at.layer && point[1] === at.component)
        return { trace, i, rank: point[2], full: point[3] };
  return null;
}

/* The handle on the selected bar: a slider for mouse, touch and keyboard. */
function placeHandle() {
  const bar = handle && figure && figure.layout.meta.steps && selectedBar();
  if (!handle) return;
  handle.hidden = !bar || !host._fullLayout;
  if (handle.hidden || dragged || keyed()) return;
  put(bar, bar.rank);
}
function put(bar, rank) {
  const at = window.selectedSlot,
    l = host._fullLayout,
    [axis, begin, width] = figure.layout.meta.axes[at.component];
  const x = l.xaxis,
    y = l[axis.replace('y', 'yaxis')],
    wide = 0.9 * Math.abs(x.d2p(at.layer + width) - x.d2p(at.layer)),
    middle = x.d2p(at.layer + begin + width / 2);
  if (!(middle >= 0 && middle <= x._length)) {
    handle.hidden = true;
    return;
  }
  handle.style.left = x._offset + middle - wide / 2 + 'px';
  handle.style.width = wide + 'px';
  handle.style.top = y._offset + y.d2p(rank / bar.full) + 'px';
  handle.dataset.rank = rank;
  const least = figure.layout.meta.steps[at.component][0],
    label = `Rank of layer ${at.layer}, ${at.component}`;
  const state = { label, valuemin: least, valuemax: bar.full, valuenow: rank };
  for (const [name, value] of Object.entries(state)) handle.setAttribute('aria-' + name, value);
}
function near(rank, bar) {
  const step = figure.layout.meta.steps[window.selectedSlot.component][0];
  return rank > bar.full - step / 2
    ? bar.full
    : Math.min(bar.full, Math.max(step, Math.round(rank / step) * step));
}
let burst = null,
  waiting = null,
  sent = 0;
// Send at most one edit in 80 ms, and always the last one.
function edit(rank) {
  clearTimeout(waiting);
  const slot = { ...window.selectedSlot };
  waiting = setTimeout(
    () => {
      sent = Date.now();
      trigger('edit', { ...slot, rank });
    },
    Math.max(0, sent + 80 - Date.now()),
  );
}
const QUIET = 1000; // ms without a key that end a burst
// While keys are pressed, the handle is ahead of the bar: the answer to the first press must not
// undo the third.
const keyed = () =>
  burst && burst.slot === JSON.stringify(window.selectedSlot) && Date.now() - burst.last < QUIET;
function keepAhead() {
  burst = { last: Date.now(), slot: JSON.stringify(window.selectedSlot) };
  setTimeout(placeHandle, QUIET + 20);
}
function makeHandle() {
  handle = document.createElement('div');
  handle.className = 'handle';
  Object.assign(handle, { tabIndex: 0, hidden: true });
  handle.setAttribute('role', 'slider');
  handle.title = $HANDLE;
  handle.setAttribute('aria-orientation', 'vertical');
  host.parentElement.style.position = 'relative';
  host.parentElement.appendChild(handle);
  handle.addEventListener('pointerdown', (e) => {
    handle.setPointerCapture(e.pointerId);
    dragged = true;
    e.preventDefault();
    handle.focus();
  });
  handle.addEventListener('pointermove', (e) => {
    const bar = dragged && selectedBar();
    if (!bar) return;
    const y =
      host._fullLayout[
        figure.layout.meta.axes[window.selectedSlot.component][0].replace('y', 'yaxis')
      ];
    const rank = near(
      bar.full * y.p2d(e.clientY - host.getBoundingClientRect().top - y._offset),
      bar,
    );
    if (rank === +handle.dataset.rank) return;
    put(bar, rank);
    edit(rank);
  });
  for (const end of ['pointerup', 'pointercancel'])
    handle.addEventListener(end, () => {
      dragged = false;
    });
  handle.addEventListener('blur', () => {
    burst = null;
    placeHandle();
  });
  handle.addEventListener('keydown', (e) => {
    const bar = selectedBar(),
      now = +handle.dataset.rank,
      step = bar && figure.layout.meta.steps[window.selectedSlot.component][0];
    const moves = {
      ArrowUp: step,
      ArrowRight: step,
      ArrowDown: -step,
      ArrowLeft: -step,
      PageUp: 5 * step,
      PageDown: -5 * step,
    };
    if (!bar || !(e.key in moves || e.key === 'Delete')) return;
    e.preventDefault();
    if (e.key === 'Delete') {
      edit(null);
      return;
    }
    const rank = near(
      now === bar.full && moves[e.key] < 0 ? now + moves[e.key] - (now % step) : now + moves[e.key],
      bar,
    );
    put(bar, rank);
    edit(rank);
    keepAhead();
  });
}

const CONFIG = {
  displaylogo: false,
  // A touch screen has no pointer that hovers, and Plotly would always show the buttons there.
  displayModeBar: window.matchMedia('(hover: hover)').matches && 'hover',
  showSendToCloud: false,
  responsive: true,
  modeBarButtonsToRemove: ['toImage', 'lasso2d', 'select2d', 'autoScale2d'],
};

const pageLook = () => ({
  family: getComputedStyle(element).fontFamily,
  size: 12,
  text: style('--body-text-color'),
  soft: style('--body-text-color-subdued'),
  grid: style('--border-color-primary'),
  background: style('--background-fill-primary'),
  select: style('--select'),
});

// Set the fonts and colors of a layout, and return it.
function painted(layout, look) {
  const font = { family: look.family, color: look.text, size: look.size };
  const lines = { gridcolor: look.grid, zerolinecolor: look.grid, linecolor: look.grid };
  layout.font = { ...font, ...layout.font };
  layout.hoverlabel = { font, bgcolor: look.background, bordercolor: look.grid };
  layout.modebar = { ...layout.modebar, color: look.soft, activecolor: look.text };
  for (const name of Object.keys(layout).filter((key) => /^[xy]axis/.test(key))) {
    const axis = (layout[name] = { ...lines, ...layout[name] });
    if (axis.title) axis.title = { ...axis.title, font: { size: look.size, ...axis.title.font } };
  }
  for (const cut of [...(layout.shapes || []), ...(layout.annotations || [])])
    if (cut.name !== 'title') (cut.line || cut.font).color = look.select;
  return layout;
}

const NARROW = 600; // pixels
// The height of the further lines of a legend on a narrow page; an entry takes about 130 pixels.
function legendHeight(width) {
  if (width >= NARROW) return 0;
  const named = figure.data.filter((trace) => trace.name && trace.showlegend !== false).length;
  return 20 * Math.max(0, Math.ceil(named / Math.max(1, Math.floor((width - 160) / 130))) - 1);
}

// On a narrow page, titles have one line; the caption has what follows.
function shortened(layout) {
  for (const note of layout.annotations || [])
    if (note.name === 'title' && window.innerWidth < NARROW) note.text = note.text.split('<br>')[0];
  return layout;
}

// Whether the numbers in cells fit next to each other, at about 7 pixels per character.
function readable(trace) {
  if (trace.mode !== 'text' || !trace.text.length) return true;
  const letters = Math.max(...trace.text.map((words) => String(words).length)),
    room = (width || host.clientWidth || window.innerWidth) - 150;
  return room > new Set(trace.x).size * 7 * letters;
}

// The first drawings of all plots follow each other, each in a frame of its own: the page shows the
// heatmap before it draws the curves.
function takeTurn() {
  turn = false;
  const painted = () => new Promise((resume) => requestAnimationFrame(() => setTimeout(resume)));
  window.firstDrawings = (window.firstDrawings || Promise.resolve()).then(() => {
    turn = true;
    draw();
    return painted();
  });
}

// On a page with a <base>, a new plot would refer to its clips and gradients by the address of the
// page, and lose them when the address changes.
function withoutBase(plot) {
  const base = document.querySelector('base[href]'),
    href = base?.getAttribute('href');
  base?.removeAttribute('href');
  try {
    return plot();
  } finally {
    base?.setAttribute('href', href);
  }
}

function draw() {
  if (!window.Plotly) {
    setTimeout(draw, 30);
    return;
  }
  if (props.value) host.classList.remove('awaited');
  host.style.display = props.value || host.classList.contains('awaited') ? '' : 'none';
  head.hidden = !props.value;
  if (!props.value) {
    figure = null;
    if (handle) handle.hidden = true;
    return;
  }
  if (turn === null) takeTurn();
  if (!turn) return;
  figure = JSON.parse(props.value);
  const layout = shortened(painted(figure.layout, pageLook()));
  layout.meta ||= {};
  layout.height += legendHeight(window.innerWidth);
  host.style.height = layout.height + 'px';
  head.firstElementChild.textContent = head.firstElementChild.title = figure.caption || '';
  const shapes = [...(layout.shapes || []), ...marks()],
    react = () => Plotly.react(host, figure.data.filter(readable), { ...layout, shapes }, CONFIG);
  (host.wired ? react() : withoutBase(react)).then(() => {
    host.dataset.drawn = (+host.dataset.drawn || 0) + 1;
    if (figure && figure.layout.meta.steps && !handle) makeHandle();
    placeHandle();
    if (host.wired) return;
    host.wired = true;
    if (layout.meta.mark === 'cell') makeFocusable();
    host.on('plotly_click', (e) => {
      const p = e.points[0];
      const more = e.event && (e.event.ctrlKey || e.event.metaKey);
      select({ x: p.x, y: p.y, z: p.z, custom: p.customdata, more: !!more });
    });
    host.on('plotly_relayout', placeHandle);
    host.on('plotly_hover', (e) => {
      const [layer, component] = e.points[0].customdata || [];
      if (!component) return;
      announceHover({ layer, component });
      preview({ layer, component });
    });
    host.on('plotly_unhover', () => {
      announceHover(null);
      preview(null);
    });
    window.addEventListener('lrw-selected', redrawMarks);
    window.addEventListener('lrw-hovered', hoveredElsewhere);
    width = host.clientWidth;
    new ResizeObserver(() => {
      if (host.clientWidth && host.clientWidth !== width) {
        width = host.clientWidth;
        Plotly.Plots.resize(host).then(placeHandle);
        if (figure && figure.data.filter(readable).length !== host.data.length) draw();
      }
    }).observe(host);
  });
}
watch('value', draw);
draw();
