// Saves a plot as a picture for a paper, one or two columns wide, with the caption below, or its
// numbers as CSV. Shares the scope of plot.js; plot-pdf.js makes the PDF.
const PIXELS = 96 / 25.4; // CSS pixels per millimeter
const DPI = 300;
const PAPER = {
  family: 'Helvetica, Arial, sans-serif',
  size: 9, // CSS pixels: 6.75 points
  text: '#1a1a1a',
  soft: '#4d4d4d',
  grid: '#d4d4d4',
  background: '#ffffff',
  select: '#c2417c',
};
const FOOT = { size: 8, line: 11, edge: 8 };
const SVG = 'http://www.w3.org/2000/svg';

/* The figure with small text, dark on white, at its full range. */
function onPaper(width) {
  const small = (key, value) =>
    /font$/.test(key) && value.size ? { ...value, size: Math.min(value.size, PAPER.size) } : value;
  const { data, layout } = JSON.parse(props.value, small);
  painted(layout, PAPER);
  layout.paper_bgcolor = layout.plot_bgcolor = PAPER.background;
  layout.width = width;
  layout.height = Math.round(layout.height * (width < 600 ? 0.85 : 1)) + legendHeight(width);
  layout.margin = { ...layout.margin, l: 40, r: 12 };
  for (const name of Object.keys(layout).filter((key) => /^yaxis/.test(key)))
    layout[name].automargin = true;
  for (const title of layout.annotations || [])
    title.font = { ...title.font, size: fittingSize(title, width - 80) };
  return { data: data.filter((trace) => trace.mode !== 'text' || fits(trace, width)), layout };
}

/* The font size at which the longest line of a title fits the width in pixels. */
function fittingSize(title, room) {
  const pen = document.createElement('canvas').getContext('2d'),
    lines = title.text.split('<br>').map((line) => line.replace(/<[^>]*>/g, '')),
    size = title.font?.size ?? PAPER.size;
  pen.font = `${size}px ${PAPER.family}`;
  const longest = Math.max(...lines.map((line) => pen.measureText(line).width));
  return Math.min(size, (size * room) / longest);
}

// Whether the numbers in cells fit next to each other, at about 24 pixels each.
const fits = (trace, width) => width - 110 > 24 * new Set(trace.x).size;

function node(name, attributes, text = '') {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

/* The words as lines that fit a width in pixels. */
function wrapped(words, width) {
  const pen = document.createElement('canvas').getContext('2d');
  pen.font = `${FOOT.size}px ${PAPER.family}`;
  const lines = [''];
  for (const word of words.split(' ')) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    if (pen.measureText(longer).width * 1.04 <= width) lines[lines.length - 1] = longer;
    else lines.push(word); // 4 %: in other viewers, letters may be slightly wider
  }
  return lines;
}

async function picture(mm) {
  const width = Math.round(mm * PIXELS),
    drawn = onPaper(width),
    size = { width, height: drawn.layout.height };
  const url = await Plotly.toImage({ ...drawn, config: {} }, { format: 'svg', ...size });
  const source = decodeURIComponent(url.slice(url.indexOf(',') + 1));
  const plot = new DOMParser().parseFromString(source, 'image/svg+xml').documentElement;
  await sharpen(plot, drawn.data);
  const lines = wrapped(figure.caption || '', width - 2 * FOOT.edge);
  const height = size.height + lines.length * FOOT.line + FOOT.edge;
  const image = node('svg', {
    viewBox: `0 0 ${width} ${height}`,
    width: `${mm}mm`,
    height: `${((mm * height) / width).toFixed(2)}mm`,
  });
  image.append(node('rect', { width, height, fill: PAPER.background }), plot);
  const style = { 'font-family': PAPER.family, 'font-size': FOOT.size, fill: PAPER.soft };
  lines.forEach((line, i) =>
    image.append(
      node('text', { x: FOOT.edge, y: size.height + (i + 1) * FOOT.line - 2, ...style }, line),
    ),
  );
  return new XMLSerializer().serializeToString(image);
}

/* plotly draws the cells of a heatmap as a bitmap with the resolution of the page, which is blurred
   in print. Rectangles of the same colors replace it. */
async function sharpen(plot, data) {
  const cells = data.find((trace) => trace.type === 'heatmap'),
    drawn = plot.querySelector('.hm image');
  if (!cells || !drawn) return;
  const [x, y, width, height] = ['x', 'y', 'width', 'height'].map((a) => +drawn.getAttribute(a));
  const dots = new Image();
  dots.src = drawn.getAttribute('href') || drawn.getAttribute('xlink:href');
  await dots.decode();
  const canvas = Object.assign(document.createElement('canvas'), { width, height }),
    pen = canvas.getContext('2d', { willReadFrequently: true });
  pen.drawImage(dots, 0, 0, width, height);
  const wide = width / cells.x.length,
    high = height / cells.y.length;
  for (let i = 0; i < cells.x.length; i++)
    for (let j = 0; j < cells.y.length; j++) {
      const [r, g, b, a] = pen.getImageData((i + 0.5) * wide, (j + 0.5) * high, 1, 1).data;
      const corner = { x: x + i * wide + 0.5, y: y + j * high + 0.5 },
        box = { ...corner, width: wide - 1, height: high - 1 };
      if (a) drawn.before(node('rect', { ...box, fill: `rgb(${r},${g},${b})` }));
    }
  drawn.remove();
}

async function dots(svg, mm) {
  const image = new Image(),
    url = URL.createObjectURL(new Blob([svg], { type: 'image/svg+xml' }));
  image.src = url;
  await image.decode();
  const width = Math.round((mm / 25.4) * DPI),
    height = Math.round((width * image.height) / image.width);
  const canvas = Object.assign(document.createElement('canvas'), { width, height });
  canvas.getContext('2d').drawImage(image, 0, 0, width, height);
  URL.revokeObjectURL(url);
  const made = await new Promise((done) => canvas.toBlob(done, 'image/png'));
  return new Blob(withDensity(await made.arrayBuffer()), { type: 'image/png' });
}

/* Add the dots per meter to a PNG, so that LaTeX and Word show it at its width. */
function withDensity(png) {
  const chunk = new DataView(new ArrayBuffer(21)),
    perMeter = Math.round(DPI / 0.0254),
    head = 33; // bytes of the signature and of the chunk that must be the first
  chunk.setUint32(0, 9);
  [...'pHYs'].forEach((letter, i) => chunk.setUint8(4 + i, letter.charCodeAt(0)));
  chunk.setUint32(8, perMeter);
  chunk.setUint32(12, perMeter);
  chunk.setUint8(16, 1);
  chunk.setUint32(17, crc(new Uint8Array(chunk.buffer, 4, 13)));
  return [png.slice(0, head), chunk.buffer, png.slice(head)];
}
function crc(bytes) {
  let sum = ~0;
  for (const byte of bytes) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit++) sum = (sum >>> 1) ^ (sum & 1 ? 0xedb88320 : 0);
  }
  return ~sum >>> 0;
}

function csv() {
  const quote = (v) => `"${String(v ?? '').replaceAll('"', '""')}"`,
    rows = [['series', 'x', 'y', 'value', 'component']];
  for (const t of host.data.filter((t) => t.mode !== 'text')) {
    if (t.type === 'heatmap')
      t.customdata.forEach((cells, j) =>
        cells.forEach(([, component, value], i) =>
          rows.push([t.name, t.x[i], t.y[j], value ?? t.z[j][i], component]),
        ),
      );
    else
      t.y.forEach((y, i) => {
        const [, component, value] = t.customdata?.[i] ?? [];
        rows.push([t.name, t.x[i], y, value, component]);
      });
  }
  return rows.map((r) => r.map(quote).join(',')).join('\n') + '\n';
}

function saveFile(blob, ending) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = element.parentElement.closest('[id]').id + ending;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const SAVERS = {
  svg: async (mm) => new Blob([await picture(mm)], { type: 'image/svg+xml' }),
  pdf: async (mm) => pictureAsPdf(await picture(mm), mm),
  png: async (mm) => dots(await picture(mm), mm),
  csv: async () => new Blob([csv()], { type: 'text/csv' }),
};
const menu = element.querySelector('.plot-head details');
menu.addEventListener('click', async (e) => {
  const { save: kind, mm } = e.target.closest('[data-save]')?.dataset ?? {};
  if (!kind) return;
  menu.open = false;
  saveFile(await SAVERS[kind](+mm), `${mm ? `-${mm}mm` : ''}.${kind}`);
});
menu.addEventListener('keydown', (e) => {
  if (e.key === 'Escape') menu.open = false;
});
document.addEventListener('click', (e) => {
  if (menu.open && !menu.contains(e.target)) menu.open = false;
});
