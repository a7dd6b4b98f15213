// @ts-check
// A chart of counts over time: areas on top of each other, drawn by uPlot, which is loaded when the
// first chart is. The figures are there as text too.
import { count, fill, h, rate, visible } from './text.js';
import { outages } from './stream.js';
import { moment, outageTime, span, tick } from './time.js';

/**
 * @typedef {object} Line
 * @property {string} title
 * @property {string} colour class c-…
 * @property {number[]} values counts of each step
 */

/**
 * @typedef {object} Mark
 * @property {number} t Unix seconds
 * @property {number} [until]
 * @property {string} words
 * @property {boolean} [away] a store was away: words say when
 */

/** @type {Set<() => void>} */
const redraws = new Set();

/** themeChanged draws all charts in the colours that hold now. */
export const themeChanged = () => redraws.forEach((redraw) => redraw());
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => requestAnimationFrame(themeChanged));

/**
 * colourOf reads the colour of a class as it is now: light-dark() does not resolve in the value of
 * a custom property, but does in a computed colour.
 * @param {Element} near
 * @param {string} kind
 */
function colourOf(near, kind) {
  const probe = h('span', { class: `c-${kind}` });
  near.append(probe);
  const c = getComputedStyle(probe).color;
  probe.remove();
  return c;
}

/** outageMarks are the bands of outages in some time, in Unix seconds. @param {number} from @param {number} to @returns {Mark[]} */
const outageMarks = (from, to) => outages.list.flatMap((o) => {
  const t = Date.parse(o.from) / 1000;
  const until = o.to ? Date.parse(o.to) / 1000 : Infinity;
  return t > to || until < from ? [] : [{ t, until, away: true, words: `${visible(o.title)} ${outageTime(o)}: ${visible(o.summary)}` }];
});

/**
 * load loads uPlot, which wants a browser whose language is a tag: under LANG=C it is none.
 * @returns {Promise<any>}
 */
async function load() {
  try {
    new Intl.NumberFormat(navigator.language);
  } catch {
    Object.defineProperty(navigator, 'language', { value: 'en', configurable: true });
  }
  return (await import('../vendor/uplot.js')).default;
}

/**
 * chart draws lines on top of each other: the first is the lowest.
 * @param {object} o
 * @param {string} o.label what is drawn
 * @param {number} [o.height]
 * @returns {{el: HTMLElement, leave: () => void,
 *   draw: (t: number[], step: number, lines: Line[], marks?: Mark[]) => void}}
 */
export function chart(o) {
  const height = o.height ?? 220;
  const box = h('div', { class: 'chart', role: 'img', 'aria-label': o.label, vars: { '--h': `${height}px` } });
  const read = h('p', { class: 'read', 'aria-hidden': 'true' });
  const figures = h('details', { class: 'figures' }, h('summary', null, 'Figures'));
  const without = h('p', { class: 'sub away', hidden: true });
  const el = h('div', null, box, without, read, figures);
  /** @type {any} */
  let plot = null;
  /** @type {{t: number[], step: number, lines: Line[], marks: Mark[]} | null} */
  let now = null;
  let left = false;

  const size = () => ({ width: Math.max(200, box.clientWidth), height });
  // The first size comes when the view is shown.
  const watch = new ResizeObserver(() => {
    if (!box.clientWidth) return;
    if (plot) plot.setSize(size()); else if (now) void redraw();
  });
  watch.observe(box);

  /** @param {Line[]} lines @param {number} step */
  function stacked(lines, step) {
    /** @type {number[] | null} */
    let below = null;
    return lines.map((l) => {
      const b = below;
      const sum = l.values.map((v, i) => v / step + (b ? b[i] : 0));
      below = sum;
      return sum;
    });
  }

  /** ended gives the last step its width. @param {number[]} values */
  const ended = (values) => [...values, values[values.length - 1]];

  /** band is where a mark that lasts begins, and how wide it is; 0: it is not there. @param {any} u @param {Mark} m */
  function band(u, m) {
    const { left: from, width } = u.bbox;
    const at = (/** @type {number} */ t) => (t === Infinity ? from + width : Math.min(from + width, Math.max(from, u.valToPos(t, 'x', true))));
    if (!m.until || u.valToPos(m.t, 'x', true) > from + width || m.until < u.scales.x.min) return [0, 0];
    const x = Math.min(at(m.t), from + width - 3);
    return [x, Math.max(3, at(m.until) - x)];
  }

  /** failed says that there is no chart, and shows the figures in its place. @param {unknown} err */
  function failed(err) {
    if (left || box.classList.contains('gone')) return;
    box.classList.add('gone');
    box.setAttribute('role', 'status');
    box.removeAttribute('aria-label');
    fill(box, h('p', { class: 'none' }, `The chart could not be loaded (${visible(err instanceof Error ? err.message : String(err))}). Its figures:`));
    figures.setAttribute('open', '');
    tell();
  }

  async function redraw() {
    /** @type {any} */
    let UPlot;
    try {
      UPlot = await load();
    } catch (err) {
      failed(err);
      return;
    }
    if (!now || left || !box.clientWidth) return;
    plot?.destroy();
    const { t, step, lines, marks } = now;
    const grid = { stroke: colourOf(box, 'line'), width: 1 };
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: colourOf(box, 'soft'), grid, ticks: { show: false }, font };
    const stack = stacked(lines, step).map(ended);
    const colours = lines.map((l) => colourOf(box, l.colour));
    const long = t.length > 1 && t[t.length - 1] - t[0] > 26 * 3600;
    const soft = colourOf(box, 'soft');
    const awayColour = colourOf(box, 'away');
    // The tallest is drawn first, and the others over it.
    const order = lines.map((_, i) => lines.length - 1 - i);
    plot = new UPlot({
      ...size(),
      legend: { show: false },
      cursor: { points: { show: false }, y: false, drag: { x: false, y: false } },
      padding: [8, 20, 0, 0],
      scales: { x: { time: true }, y: { range: (/** @type {any} */ _u, /** @type {number} */ _min, /** @type {number} */ max) => [0, max > 0 ? max * 1.08 : 1] } },
      axes: [
        { ...axis, size: 28, space: long ? 90 : 60, values: (/** @type {any} */ _u, /** @type {number[]} */ at) => at.map((s) => tick(s * 1000, long ? 'day' : step < 2 && at[1] - at[0] < 60 ? 'second' : 'minute')) },
        { ...axis, size: 56, space: 36, values: (/** @type {any} */ _u, /** @type {number[]} */ at) => at.map((v) => `${v >= 10000 ? `${v / 1000} k` : Number(v.toPrecision(6))}/s`) },
      ],
      series: [{}, ...order.map((i) => ({ label: lines[i].title, stroke: colours[i], fill: colours[i], width: 1, paths: UPlot.paths.stepped?.({ align: 1 }), points: { show: false } }))],
      hooks: {
        drawClear: [(/** @type {any} */ u) => {
          const { ctx, bbox } = u;
          ctx.save();
          for (const m of marks) {
            const [x, width] = band(u, m);
            if (!width) continue;
            ctx.fillStyle = m.away ? awayColour : soft;
            ctx.globalAlpha = 0.16;
            ctx.fillRect(x, bbox.top, width, bbox.height);
            ctx.globalAlpha = 1;
          }
          ctx.restore();
        }],
        draw: [(/** @type {any} */ u) => {
          const { ctx, bbox } = u;
          ctx.save();
          for (const m of marks) {
            const x = u.valToPos(m.t, 'x', true);
            ctx.fillStyle = m.away ? awayColour : soft;
            // What is drawn over a band leaves its edge.
            if (m.away) ctx.fillRect(band(u, m)[0], bbox.top, band(u, m)[1], Math.round(4 * devicePixelRatio));
            if (!m.until && x >= bbox.left && x <= bbox.left + bbox.width) ctx.fillRect(Math.round(x) - 1, bbox.top, 2, bbox.height);
          }
          ctx.restore();
        }],
        setCursor: [(/** @type {any} */ u) => say(u.cursor.idx)],
      },
    }, [[...t, t[t.length - 1] + step], ...order.map((i) => stack[i])], box);
  }

  /** @param {number | null | undefined} i */
  function say(i) {
    if (!now) return;
    const { t, step, lines, marks } = now;
    if (i === null || i === undefined || t[i] === undefined) {
      read.textContent = '';
      return;
    }
    const near = marks.filter((m) => (m.until ? t[i] >= m.t - step && t[i] <= m.until : Math.abs(m.t - t[i]) <= step)).map((m) => m.words);
    read.textContent = [`${moment(t[i] * 1000)}, ${span(step)}:`, lines.map((l) => `${count(l.values[i])} ${l.title}`).join(', '), ...near].join(' ');
  }

  /** the figures as a table: at most 24 rows, each the sum of several steps. */
  function tell() {
    if (!now || !figures.hasAttribute('open')) return;
    const { t, step, lines, marks } = now;
    const group = Math.max(1, Math.ceil(t.length / 24));
    const rows = [];
    for (let i = 0; i < t.length; i += group) {
      rows.push(h('tr', null, h('th', { scope: 'row' }, moment(t[i] * 1000)),
        lines.map((l) => h('td', { class: 'n' }, count(l.values.slice(i, i + group).reduce((a, b) => a + b, 0))))));
    }
    fill(figures, h('summary', null, 'Figures'),
      h('div', { class: 'scroll', role: 'region', tabindex: '0', 'aria-label': o.label }, h('table', null,
        h('caption', { class: 'sr' }, `${o.label}, in steps of ${span(group * step)}`),
        h('thead', null, h('tr', null, h('th', { scope: 'col' }, `From, ${span(group * step)} each`), lines.map((l) => h('th', { scope: 'col', class: 'n' }, l.title)))), h('tbody', null, rows))),
      marks.length ? h('ul', null, marks.map((m) => h('li', null, m.away ? m.words : `${moment(m.t * 1000)} ${m.words}`))) : null);
  }
  figures.addEventListener('toggle', tell);

  const again = () => { void redraw(); };
  redraws.add(again);
  /** @type {Mark[]} without those of outages */
  let given = [];
  const unwatch = outages.watch(() => { if (now) draw(now.t, now.step, now.lines, given); });

  /** @param {number[]} t @param {number} step @param {Line[]} lines @param {Mark[]} own */
  function draw(t, step, lines, own) {
    given = own;
    const bands = t.length ? outageMarks(t[0], t[t.length - 1] + step) : [];
    const marks = [...own, ...bands];
    without.hidden = !bands.length;
    fill(without, bands.slice(0, 3).map((m) => h('span', { class: 'c-away' }, h('i', null), h('span', { class: 'ink-grey' }, `${m.words} `))), bands.length > 3 ? `and ${count(bands.length - 3)} more` : null);
    const changed = !plot || !now || now.lines.length !== lines.length || now.step !== step || JSON.stringify(now.marks) !== JSON.stringify(marks);
    now = { t, step: Math.max(1, step), lines, marks };
    const peak = Math.max(0, ...t.map((_, i) => lines.reduce((sum, l) => sum + (l.values[i] ?? 0), 0))) / now.step;
    if (!box.classList.contains('gone')) box.setAttribute('aria-label', `${o.label}: at most ${rate(peak)} a second, in steps of ${span(now.step)}. The figures are below.`);
    if (changed) again();
    else {
      const stack = stacked(lines, now.step).map(ended);
      plot.setData([[...t, t[t.length - 1] + now.step], ...lines.map((_, i) => stack[lines.length - 1 - i])]);
    }
    tell();
  }
  return {
    el,
    draw: (t, step, lines, marks = []) => draw(t, step, lines, marks),
    leave() {
      left = true;
      unwatch();
      redraws.delete(again);
      watch.disconnect();
      plot?.destroy();
    },
  };
}
