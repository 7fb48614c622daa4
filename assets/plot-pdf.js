// The picture of a plot as a PDF with paths and text, for a paper. `pictureAsPdf(svg, mm)` returns
// a Blob; plot-saving.js calls it. Loaded once for all plots of the page.
//
// The picture is inserted into the page, hidden, so that the browser computes positions and colors.
// Supported are the elements that plotly draws: paths, rectangles, lines, text, clips and the
// gradient of a color bar. Text is in Helvetica, which every PDF viewer has.
window.pictureAsPdf = (() => {
  const POINTS = 72 / 25.4, // per millimeter
    STRIPS = 64, // of a gradient
    WIN = { '–': 150, '−': 150, '—': 151, '…': 133, '“': 147, '”': 148, '’': 146, '•': 149 };
  const short = (value) => String(+value.toFixed(3));
  const matrix = ({ a, b, c, d, e, f }) => `${[a, b, c, d, e, f].map(short).join(' ')} cm`;

  /* Red, green, blue and opacity in [0, 1] of a CSS color; null for none. */
  function color(words) {
    const [r, g, b, a = 1] = (words.match(/[\d.]+/g) || []).map(Number);
    return /^rgb/.test(words) && a > 0 ? { ink: [r, g, b].map((value) => value / 255), a } : null;
  }

  /* A PDF string in the encoding of the standard fonts. */
  function encoded(words) {
    const codes = [...words.replaceAll('→', '->').replaceAll('\u202f', ' ')].map((letter) => {
      const code = WIN[letter] ?? letter.codePointAt(0);
      return code < 256 ? code : 63;
    });
    return codes.map((code) => code.toString(16).padStart(2, '0')).join('');
  }

  /* An SVG arc as curves, at most a quarter each, after its center. */
  function arc([x0, y0], [rx, ry, turn, large, sweep, x, y]) {
    const at = (turn * Math.PI) / 180,
      [cos, sin] = [Math.cos(at), Math.sin(at)];
    const u = (cos * (x0 - x) + sin * (y0 - y)) / 2,
      v = (cos * (y0 - y) - sin * (x0 - x)) / 2,
      grow = Math.max(1, Math.sqrt((u / rx) ** 2 + (v / ry) ** 2));
    [rx, ry] = [rx * grow, ry * grow];
    const under = (rx * ry) ** 2 / ((rx * v) ** 2 + (ry * u) ** 2) - 1,
      root = Math.sqrt(Math.max(0, under)) * (large === sweep ? -1 : 1),
      [p, q] = [(root * rx * v) / ry, (-root * ry * u) / rx];
    const place = (x1, y1) => [
      cos * x1 - sin * y1 + (x0 + x) / 2,
      sin * x1 + cos * y1 + (y0 + y) / 2,
    ];
    const begin = Math.atan2((v - q) / ry, (u - p) / rx);
    let whole = Math.atan2((-v - q) / ry, (-u - p) / rx) - begin;
    if (sweep && whole < 0) whole += 2 * Math.PI;
    if (!sweep && whole > 0) whole -= 2 * Math.PI;
    const parts = Math.ceil(Math.abs(whole) / (Math.PI / 2) - 1e-6) || 1,
      step = whole / parts,
      bend = (4 / 3) * Math.tan(step / 4);
    return [...Array(parts).keys()].flatMap((i) => {
      const [one, two] = [begin + i * step, begin + (i + 1) * step],
        on = (angle, back) => [
          p + rx * (Math.cos(angle) - back * Math.sin(angle)),
          q + ry * (Math.sin(angle) + back * Math.cos(angle)),
        ];
      return [on(one, bend), on(two, -bend), on(two, 0)].flatMap((xy) => place(...xy));
    });
  }

  /* An SVG path as PDF operators. */
  function path(d) {
    const lengths = { M: 2, L: 2, H: 1, V: 1, C: 6, Q: 4, A: 7, Z: 0 },
      out = [];
    let [x, y, startX, startY] = [0, 0, 0, 0];
    for (const [, letter, rest] of d.matchAll(/([a-zA-Z])([^a-zA-Z]*(?:e[-+]?\d+[^a-zA-Z]*)*)/g)) {
      const numbers = (rest.match(/[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?/g) || []).map(Number),
        kind = letter.toUpperCase(),
        count = lengths[kind];
      for (let i = 0; i === 0 || (count && i < numbers.length); i += count) {
        const own = numbers.slice(i, i + count),
          [dx, dy] = letter === kind ? [0, 0] : [x, y];
        if (kind === 'Z') {
          out.push('h');
          [x, y] = [startX, startY];
          break;
        }
        if (kind === 'H') own.push(y - dy);
        if (kind === 'V') own.unshift(x - dx);
        const moved = own.map((one, j) => one + (j % 2 ? dy : dx));
        if (kind === 'A') [moved[5], moved[6]] = [own[5] + dx, own[6] + dy];
        const to = moved.slice(-2);
        if (kind === 'M' && i === 0) {
          out.push(`${to.map(short).join(' ')} m`);
          [startX, startY] = to;
        } else if (kind === 'C' || kind === 'A' || kind === 'Q') {
          const [a, b] = moved,
            bent = [x + (2 / 3) * (a - x), y + (2 / 3) * (b - y)],
            back = [to[0] + (2 / 3) * (a - to[0]), to[1] + (2 / 3) * (b - to[1])];
          const curves =
            kind === 'C'
              ? moved
              : kind === 'Q'
                ? [...bent, ...back, ...to]
                : arc([x, y], [...own.slice(0, 5), ...to]);
          for (let j = 0; j < curves.length; j += 6)
            out.push(`${curves.slice(j, j + 6).map(short).join(' ')} c`);
        } else out.push(`${to.map(short).join(' ')} l`);
        [x, y] = to;
      }
    }
    return out.join('\n');
  }

  function outline(shape) {
    const number = (name) => +(shape.getAttribute(name) || 0);
    if (shape.tagName === 'path') return path(shape.getAttribute('d') || '');
    if (shape.tagName === 'line') {
      const [x1, y1, x2, y2] = ['x1', 'y1', 'x2', 'y2'].map(number);
      return `${short(x1)} ${short(y1)} m ${short(x2)} ${short(y2)} l`;
    }
    const box = ['x', 'y', 'width', 'height'].map(number);
    return box[2] > 0 && box[3] > 0 ? `${box.map(short).join(' ')} re` : '';
  }

  /* The drawing as a list of PDF operators. states: collects the opacities that they use. */
  function drawing(root, states) {
    const toRoot = root.getScreenCTM().inverse(),
      placed = (one) => toRoot.multiply(one.getScreenCTM()),
      named = (words) => root.querySelector(`[id="${/#([^"')]+)/.exec(words)?.[1]}"]`);
    const state = (kind, a) => {
      const name = `${kind}${Math.round(a * 100)}`;
      states[name] = `/${kind} ${short(a)}`;
      return `/${name} gs`;
    };
    const above = (shape) => {
      const chain = [];
      for (let one = shape; one && one !== root; one = one.parentElement) chain.unshift(one);
      return chain;
    };

    function clipped(shape) {
      let now = new DOMMatrix();
      const out = [];
      const enter = (next) => {
        out.push(matrix(now.inverse().multiply(next)));
        now = next;
      };
      for (const one of above(shape)) {
        const clip = named(getComputedStyle(one).clipPath);
        const inside = clip && [...clip.children].map(outline).filter(Boolean);
        if (!inside?.length) continue;
        enter(DOMMatrix.fromMatrix(placed(one)));
        out.push(...inside, 'W n');
      }
      enter(DOMMatrix.fromMatrix(placed(shape)));
      return out;
    }

    function gradient(shape, fill) {
      const stops = [...fill.querySelectorAll('stop')],
        { x, y, width, height } = shape.getBBox(),
        upwards = +fill.getAttribute('y1') > +fill.getAttribute('y2');
      const inkAt = (share) => {
        const after = Math.max(1, stops.findIndex((one) => one.offset.baseVal >= share)),
          [one, two] = [stops[after - 1], stops[after]],
          [low, high] = [one.offset.baseVal, two.offset.baseVal],
          part = (share - low) / (high - low || 1);
        const inks = [one, two].map((stop) => color(getComputedStyle(stop).stopColor).ink);
        return inks[0].map((value, i) => value + part * (inks[1][i] - value));
      };
      return [...Array(STRIPS).keys()].map((i) => {
        const share = (i + 0.5) / STRIPS,
          top = y + ((upwards ? STRIPS - 1 - i : i) * height) / STRIPS,
          box = [x, top, width, (1.05 * height) / STRIPS];
        return `${inkAt(share).map(short).join(' ')} rg ${box.map(short).join(' ')} re f`;
      });
    }

    function filled(shape, look, opacity) {
      const line = outline(shape),
        fill = color(look.fill),
        stroke = color(look.stroke),
        wide = parseFloat(look.strokeWidth),
        out = [];
      if (!line) return out;
      const from = /^url/.test(look.fill) ? named(look.fill) : null;
      if (from?.querySelector('stop')) out.push('q', line, 'W n', ...gradient(shape, from), 'Q');
      if (fill && look.fillOpacity > 0)
        out.push(
          state('ca', fill.a * look.fillOpacity * opacity),
          `${fill.ink.map(short).join(' ')} rg`,
          line,
          look.fillRule === 'evenodd' ? 'f*' : 'f',
        );
      if (stroke && wide > 0 && look.strokeOpacity > 0) {
        const dashes = (look.strokeDasharray.match(/[\d.]+/g) || []).join(' ');
        const ends = { round: 1, square: 2 }[look.strokeLinecap] ?? 0;
        out.push(
          state('CA', stroke.a * look.strokeOpacity * opacity),
          `${stroke.ink.map(short).join(' ')} RG ${short(wide)} w [${dashes}] 0 d ${ends} J`,
          line,
          'S',
        );
      }
      return out;
    }

    function written(shape, opacity) {
      const nodes = document.createTreeWalker(shape, NodeFilter.SHOW_TEXT),
        out = [];
      let first = 0;
      for (let words = nodes.nextNode(); words; words = nodes.nextNode()) {
        const look = getComputedStyle(words.parentElement),
          fill = color(look.fill);
        if (first < shape.getNumberOfChars() && fill && words.data.trim()) {
          const { x, y } = shape.getStartPositionOfChar(first),
            font = +look.fontWeight >= 600 ? 'F2' : 'F1';
          const size = short(parseFloat(look.fontSize));
          out.push(
            state('ca', fill.a * look.fillOpacity * opacity),
            `BT ${fill.ink.map(short).join(' ')} rg /${font} ${size} Tf`,
            `1 0 0 -1 ${short(x)} ${short(y)} Tm <${encoded(words.data)}> Tj ET`,
          );
        }
        first += words.data.length;
      }
      return out;
    }

    return [...root.querySelectorAll('path, rect, line, text')].flatMap((shape) => {
      const look = getComputedStyle(shape);
      if (shape.closest('defs, clipPath') || look.visibility === 'hidden') return [];
      if (!shape.getScreenCTM() || look.display === 'none') return [];
      const opacity = above(shape).reduce((all, one) => all * getComputedStyle(one).opacity, 1);
      const drawn =
        shape.tagName === 'text' ? written(shape, opacity) : filled(shape, look, opacity);
      return drawn.length && opacity > 0 ? ['q', ...clipped(shape), ...drawn, 'Q'] : [];
    });
  }

  /* A PDF file with one page, `mm` wide. */
  async function pdf(svg, mm) {
    const unseen = document.createElement('div'),
      states = {};
    unseen.style.cssText = 'position: absolute; left: -99999px; top: 0';
    unseen.innerHTML = svg;
    document.body.append(unseen);
    const root = unseen.firstElementChild,
      { width, height } = root.viewBox.baseVal,
      scale = (mm * POINTS) / width;
    const lines = drawing(root, states);
    unseen.remove();
    const flip = `${short(scale)} 0 0 ${short(-scale)} 0 ${short(height * scale)} cm`,
      content = await squeezed([flip, ...lines].join('\n')),
      fonts = ['Helvetica', 'Helvetica-Bold'].map(
        (name, i) =>
          `/F${i + 1} << /Type /Font /Subtype /Type1 /BaseFont /${name} ` +
          '/Encoding /WinAnsiEncoding >>',
      ),
      looks = Object.entries(states).map(([name, one]) => `/${name} << ${one} >>`),
      box = `[0 0 ${short(width * scale)} ${short(height * scale)}]`;
    return new Blob(
      filed([
        ['<< /Type /Catalog /Pages 2 0 R >>'],
        ['<< /Type /Pages /Kids [3 0 R] /Count 1 >>'],
        [
          `<< /Type /Page /Parent 2 0 R /MediaBox ${box} /Contents 4 0 R /Resources ` +
            `<< /Font << ${fonts.join(' ')} >> /ExtGState << ${looks.join(' ')} >> >> >>`,
        ],
        [
          `<< /Length ${content.byteLength} /Filter /FlateDecode >>\nstream\n`,
          content,
          '\nendstream',
        ],
      ]),
      { type: 'application/pdf' },
    );
  }

  const squeezed = (words) =>
    new Response(
      new Blob([words]).stream().pipeThrough(new CompressionStream('deflate')),
    ).arrayBuffer();

  /* The objects of a PDF, numbered from 1, with the table of their offsets. */
  function filed(objects) {
    const parts = ['%PDF-1.4\n'],
      begins = [];
    let length = parts[0].length;
    const add = (part) => {
      parts.push(part);
      length += part.byteLength ?? part.length; // all characters are ASCII
    };
    objects.forEach((object, i) => {
      begins.push(length);
      [`${i + 1} 0 obj\n`, ...object, '\nendobj\n'].forEach(add);
    });
    const table = begins.map((one) => `${String(one).padStart(10, '0')} 00000 n \n`).join(''),
      size = objects.length + 1;
    const at = length;
    add(`xref\n0 ${size}\n0000000000 65535 f \n${table}`);
    add(`trailer\n<< /Size ${size} /Root 1 0 R >>\nstartxref\n${at}\n%%EOF\n`);
    return parts;
  }
  return pdf;
})();
