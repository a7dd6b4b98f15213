// @ts-check
// Bars of HTML: histograms, trends, shares. Each says its figures in words.
import { count, h, percent, plural } from './text.js';

const steps = ['0–10 %', '10–20 %', '20–30 %', '30–40 %', '40–50 %', '50–60 %', '60–70 %', '70–80 %', '80–90 %', '90–100 %', 'over 100 %'];

/** @param {number} i */
const colourOf = (i) => (i === 10 ? 'refused' : i === 9 ? 'near' : 'admitted');

/** @param {number} v @param {number} most */
const height = (v, most) => (most > 0 && v > 0 ? Math.max(5, Math.sqrt(v / most) * 100) : 0);

/**
 * fillSmall is the histogram "peak per client" in a row of a table. Heights go by the square
 * root, so that the few over the limit can be seen beside the many that are not.
 * @param {number[]} counts 11 numbers
 */
export function fillSmall(counts) {
  const most = Math.max(0, ...counts);
  if (!most) return h('span', { class: 'sub' }, '–');
  const words = counts.map((c, i) => (c ? `${steps[i]}: ${count(c)}` : '')).filter(Boolean).join(', ');
  return h('span', { class: 'fill', role: 'img', 'aria-label': `Clients by how much of the limit each asked for at most: ${words}` }, counts.map((c, i) => h('i', { class: `c-${colourOf(i)}`, vars: { '--v': height(c, most) } })));
}

/**
 * fillLarge is the same with its figures.
 * @param {number[]} counts 11 numbers
 */
export function fillLarge(counts) {
  const most = Math.max(0, ...counts);
  if (!most) return h('p', { class: 'none' }, 'No client was seen yet.');
  return h('ul', { class: 'fill large' }, counts.map((c, i) => h('li', null,
    h('span', null, c >= 10000 ? `${Math.round(c / 1000)} k` : count(c)),
    h('span', { class: 'col', 'aria-hidden': 'true' }, h('i', { class: `c-${colourOf(i)}`, vars: { '--v': height(c, most) } })),
    h('span', { class: 'sr' }, `${plural(c, 'client')} at ${steps[i]}`),
    h('span', { 'aria-hidden': 'true' }, i === 10 ? '>100' : `${i * 10}`))));
}

/**
 * trend is a row of small bars.
 * @param {number[] | null | undefined} values
 * @param {string} what
 */
export function trend(values, what) {
  const list = values ?? [];
  const most = Math.max(0, ...list);
  if (!most) return h('span', { class: 'sub' }, '–');
  return h('span', { class: 'trend', role: 'img', 'aria-label': `${what}, oldest first: ${list.map(count).join(', ')}` }, list.map((v) => h('i', { vars: { '--v': (v / most) * 100 } })));
}

/**
 * share is a bar of two parts.
 * @param {number} part 1 is all
 * @param {string} words
 * @param {string} [kind]
 * @param {string} [rest] class of the rest; none by default
 */
export function share(part, words, kind = 'refused', rest = '') {
  const p = Math.min(1, Math.max(0, part || 0)) * 100;
  return h('div', { class: 'bar', role: 'img', 'aria-label': `${words} ${percent(part || 0)}` },
    rest && p < 100 ? h('i', { class: `c-${rest}`, vars: { '--v': 100 - p } }) : null,
    h('i', { class: `c-${kind}`, vars: { '--v': p } }));
}

/**
 * ranking lists values, with bars beneath those that have a part.
 * @param {{name: Node, words: import('./text.js').Child, part?: number, kind?: string,
 *   rest?: string, label?: string}[]} rows
 * @param {string} none
 */
export function ranking(rows, none) {
  if (!rows.length) return h('p', { class: 'none' }, none);
  return h('ol', { class: 'bars' }, rows.map((r) => h('li', null,
    h('div', { class: 'row' }, r.name, h('span', { class: 'sub' }, r.words)),
    r.part === undefined ? null : share(r.part, r.label ?? '', r.kind, r.rest))));
}
