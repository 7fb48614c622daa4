// What a plot does in the browser: draw in the page's colours, keep its zoom, report clicks, mark
// the selected slot.
// Runs as js_on_load of a gr.HTML, which gives element, props, trigger and watch.
//
// Colours come from the page at drawing time, so that one figure serves light and dark. A plot
// drawn while its tab was hidden has no width: the observer redraws it once it has one. What a
// figure's layout.meta says:
//   mark: how to show the selected slot: "cell" of a heatmap, "bar", "point", "block", or "layer"
//     (a band across). Of cells and points, a slot that is hovered in one plot is marked in the
//     others.
//   columns: for blocks, component -> where its column begins and ends
//   axes: for bars, component -> its y axis, where it begins from the middle of its layer, and how
//     wide it is, in layers
//   steps: component -> [least step of a rank]: the selected bar gets a handle
// The figure's caption stands above the plot, and below it where it is saved (plot-saving.js).
const host = element.querySelector('.plot'),
  head = element.querySelector('.plot-head');
const style = (name) => getComputedStyle(element).getPropertyValue(name).trim();
let figure = null,
  handle = null,
  dragged = null,
  hovered = null, // the slot that is hovered in another plot
  width = 0; // of the plot once it is drawn: asking the browser anew has the page laid out

// A circle of 9 pixels around a point, as a path: of a circle with corners at -9 and 9 plotly takes
// the logarithm where an axis is logarithmic, and draws a quarter of it.
const RING = 'M9,0C9,5 5,9 0,9C-5,9 -9,5 -9,0C-9,-5 -5,-9 0,-9C5,-9 9,-5 9,0Z';
const LINKED = ['cell', 'point'];

function marks() {
  const mark = (figure.layout.meta || {}).mark,
    beside = LINKED.includes(mark) ? around(mark, hovered, 'hovered') : [];
  return [...around(mark, window.selectedSlot, 'selected'), ...beside];
}

// The shapes that mark a slot, under a name.
function around(mark, at, name) {
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
  const own = figure.layout.meta.axes[at.component];
  if (!own) return [];
  const [yref, begin, width] = own,
    x0 = at.layer + begin;
  return [{ ...box, yref, x0, x1: x0 + width, y0: 0, y1: 1.03 }];
}

function pointOf(at) {
  for (const trace of figure.data)
    for (const [i, [layer, name]] of (trace.customdata || []).entries())
      if (layer === at.layer && name === at.component) return { x: trace.x[i], y: trace.y[i] };
  return null;
}

function markAnew() {
  if (figure && figure.layout.meta.mark)
    Plotly.relayout(host, { shapes: [...(figure.layout.shapes || []), ...marks()] }).then(place);
}

// Tells the other plots which slot is hovered in this one; null: none any longer.
function tellHovered(slot) {
  if (figure && LINKED.includes(figure.layout.meta.mark))
    window.dispatchEvent(new CustomEvent('lrw-hovered', { detail: { host, slot } }));
}
function hoveredElsewhere({ detail }) {
  const linked = detail.host !== host && figure && LINKED.includes(figure.layout.meta.mark);
  if (!linked || JSON.stringify(detail.slot) === JSON.stringify(hovered)) return;
  hovered = detail.slot;
  markAnew();
}

function selectedBar() {
  const at = window.selectedSlot;
  for (const trace of figure.data)
    for (const [i, point] of (trace.customdata || []).entries())
      if (at && point[0] === at.layer && point[1] === at.component)
        return { trace, i, rank: point[2], full: point[3] };
  return null;
}

/* The handle on the selected bar: a slider for the mouse, for fingers and for the keyboard. */
function place() {
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
// At most one edit in 80 ms, and always the last one. Edits of one gesture (a drag, a burst of
// keys) are undone together.
function edit(rank, gesture) {
  clearTimeout(waiting);
  const slot = { ...window.selectedSlot };
  waiting = setTimeout(
    () => {
      sent = Date.now();
      trigger('edit', { ...slot, rank, gesture });
    },
    Math.max(0, sent + 80 - Date.now()),
  );
}
const QUIET = 1000; // ms without a key that end a burst
// While keys are pressed the handle runs ahead of the bar: an answer to the first press must not
// take back the third.
const keyed = () =>
  burst && burst.slot === JSON.stringify(window.selectedSlot) && Date.now() - burst.last < QUIET;
function ofKeys() {
  const now = Date.now(),
    slot = JSON.stringify(window.selectedSlot);
  burst = keyed() ? { ...burst, last: now } : { name: 'keys' + now, last: now, slot };
  setTimeout(place, QUIET + 20);
  return burst.name;
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
    dragged = String(Date.now());
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
    edit(rank, dragged);
  });
  for (const end of ['pointerup', 'pointercancel'])
    handle.addEventListener(end, () => {
      dragged = null;
    });
  handle.addEventListener('blur', () => {
    burst = null;
    place();
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
      edit(null, null);
      return;
    }
    const rank = near(
      now === bar.full && moves[e.key] < 0 ? now + moves[e.key] - (now % step) : now + moves[e.key],
      bar,
    );
    put(bar, rank);
    edit(rank, ofKeys());
  });
}

const CONFIG = {
  displaylogo: false,
  showSendToCloud: false,
  responsive: true,
  modeBarButtonsToRemove: ['toImage', 'lasso2d', 'select2d', 'autoScale2d'],
};

const ofPage = () => ({
  family: getComputedStyle(element).fontFamily,
  size: 12,
  text: style('--body-text-color'),
  soft: style('--body-text-color-subdued'),
  grid: style('--border-color-primary'),
  background: style('--background-fill-primary'),
  select: style('--select'),
});

// Puts fonts and colours into a layout, and returns it.
function painted(layout, look) {
  const font = { family: look.family, color: look.text, size: look.size };
  const lines = { gridcolor: look.grid, zerolinecolor: look.grid, linecolor: look.grid };
  layout.font = { ...font, ...layout.font };
  layout.hoverlabel = { font, bgcolor: look.background, bordercolor: look.grid };
  layout.modebar = { ...layout.modebar, color: look.soft, activecolor: look.text };
  for (const name of Object.keys(layout).filter((one) => /^[xy]axis/.test(one))) {
    const axis = (layout[name] = { ...lines, ...layout[name] });
    if (axis.title) axis.title = { ...axis.title, font: { size: look.size, ...axis.title.font } };
  }
  for (const cut of [...(layout.shapes || []), ...(layout.annotations || [])])
    if (cut.name !== 'title') (cut.line || cut.font).color = look.select;
  return layout;
}

// On a narrow page a long legend takes several lines: they come on top of the height that the axes
// need.
function ofLegend(width) {
  const named = figure.data.filter((trace) => trace.name && trace.showlegend !== false).length;
  return width < 600 && named > 4 ? 20 * Math.ceil(named / 2) : 0;
}

// Whether the numbers in cells have room beside each other, about 7 pixels for a letter.
function readable(trace) {
  if (trace.mode !== 'text' || !trace.text.length) return true;
  const letters = Math.max(...trace.text.map((words) => String(words).length)),
    room = (width || host.clientWidth || window.innerWidth) - 150;
  return room > new Set(trace.x).size * 7 * letters;
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
  figure = JSON.parse(props.value);
  const layout = painted(figure.layout, ofPage());
  layout.meta ||= {};
  layout.height += ofLegend(window.innerWidth);
  host.style.height = layout.height + 'px';
  head.firstElementChild.textContent = head.firstElementChild.title = figure.caption || '';
  Plotly.react(
    host,
    figure.data.filter(readable),
    { ...layout, shapes: [...(layout.shapes || []), ...marks()] },
    CONFIG,
  ).then(() => {
    host.dataset.drawn = (+host.dataset.drawn || 0) + 1;
    if (figure && figure.layout.meta.steps && !handle) makeHandle();
    place();
    if (host.wired) return;
    host.wired = true;
    // Where a page has a <base>, plotly names clips and gradients by the address at the first
    // drawing, and loses them when that changes.
    if (host._context._baseUrl) {
      host._context._baseUrl = '';
      Plotly.redraw(host);
    }
    host.on('plotly_click', (e) => {
      const p = e.points[0];
      const more = e.event && (e.event.ctrlKey || e.event.metaKey);
      trigger('select', { x: p.x, y: p.y, z: p.z, custom: p.customdata, more: !!more });
    });
    host.on('plotly_relayout', place);
    host.on('plotly_hover', (e) => {
      const [layer, component] = e.points[0].customdata || [];
      if (component) tellHovered({ layer, component });
    });
    host.on('plotly_unhover', () => tellHovered(null));
    window.addEventListener('lrw-selected', markAnew);
    window.addEventListener('lrw-hovered', hoveredElsewhere);
    width = host.clientWidth;
    new ResizeObserver(() => {
      if (host.clientWidth && host.clientWidth !== width) {
        width = host.clientWidth;
        Plotly.Plots.resize(host).then(place);
        if (figure && figure.data.filter(readable).length !== host.data.length) draw();
      }
    }).observe(host);
  });
}
watch('value', draw);
draw();
