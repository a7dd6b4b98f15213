// @ts-check
// Elements, and figures as text. All text goes into text nodes: nothing that a client sent is ever
// read as HTML.

/** @typedef {Node | string | number | null | undefined | false} Leaf */
/** @typedef {Leaf | Leaf[] | any[]} Child text, elements, and lists of them */

const svgTags = new Set(['svg', 'path', 'g', 'line', 'rect', 'text', 'pattern', 'defs']);

/**
 * h makes an element. A property whose name begins with "on" is a listener, one that is null,
 * undefined or false is left out, and true is an empty attribute.
 * @param {string} tag
 * @param {Record<string, any> | null} [props]
 * @param {...Child} children
 * @returns {HTMLElement}
 */
export function h(tag, props, ...children) {
  const el = /** @type {HTMLElement} */ (svgTags.has(tag) ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag));
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) el.addEventListener(name.slice(2), value);
    else if (name === 'value') /** @type {any} */ (el).value = value;
    else if (name === 'vars') for (const [k, v] of Object.entries(value)) el.style.setProperty(k, String(v));
    else el.setAttribute(name, value === true ? '' : String(value));
  }
  append(el, children);
  return el;
}

/**
 * @param {Node} el
 * @param {Child[]} children
 */
export function append(el, children) {
  for (const c of children) {
    if (c === null || c === undefined || c === false) continue;
    if (Array.isArray(c)) append(el, c);
    else el.appendChild(c instanceof Node ? c : document.createTextNode(String(c)));
  }
}

/**
 * fill replaces what is in an element.
 * @param {Element} el
 * @param {...Child} children
 */
export function fill(el, ...children) {
  el.replaceChildren();
  append(el, children);
}

// Control characters, what changes the direction of text, what has no width, lone surrogates.
const unseen = /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udfff]/g;

/**
 * visible shows each character that one would not see as its number: ⟨U+202E⟩. The pictures that
 * Unicode has for some of them are missing in many fonts.
 * @param {string} s
 */
export function visible(s) {
  return String(s ?? '').replace(unseen, (c) => {
    const code = c.codePointAt(0) ?? 0;
    return `⟨U+${code.toString(16).toUpperCase().padStart(4, '0')}⟩`;
  });
}

/**
 * sent shows text that a client sent, apart from the direction of what stands around it.
 * @param {string} s
 * @param {string} [kind] classes
 */
export const sent = (s, kind = 'mono') => h('bdi', { class: kind }, visible(s));

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });

/** @param {number} x */
export const count = (x) => whole.format(x || 0);

/**
 * significant writes x with at most n significant digits, and without an exponent.
 * @param {number} x
 * @param {number} n
 */
export function significant(x, n) {
  if (!x) return '0';
  const decimals = Math.min(12, Math.max(0, n - 1 - Math.floor(Math.log10(Math.abs(x)))));
  const s = x.toFixed(decimals);
  return s.includes('.') ? s.replace(/\.?0+$/, '') : s;
}

/**
 * short writes a large number in few characters: 2.41 M.
 * @param {number} x
 */
export function short(x) {
  for (const [size, unit] of /** @type {[number, string][]} */ ([[1e9, 'G'], [1e6, 'M'], [1e4, 'k']])) {
    if (x >= size) return `${significant(x / (unit === 'k' ? 1e3 : size), 3)} ${unit}`;
  }
  return count(x);
}

/**
 * percent writes a share: with one decimal, and below 0.1 % with two digits that mean something.
 * @param {number} share 1 is all
 */
export function percent(share) {
  const p = share * 100;
  if (!(p > 0)) return '0 %';
  if (p >= 99.95 && share < 1) return '99.9 %';
  if (p >= 1000) return `${count(Math.round(p))} %`;
  if (p >= 0.1) return `${p.toFixed(1).replace(/\.0$/, '')} %`;
  return `${significant(p, 2)} %`;
}

/**
 * @param {number} part
 * @param {number} all
 */
export const shareOf = (part, all) => percent(all > 0 ? part / all : 0);

/** @param {number} x */
export const rate = (x) => (x >= 100 ? count(Math.round(x)) : significant(x || 0, 2));

/**
 * seconds writes a short time of work.
 * @param {number} s
 */
export function seconds(s) {
  if (!(s > 0)) return '–';
  if (s < 1e-3) return `${significant(s * 1e6, 3)} µs`;
  if (s < 1) return `${significant(s * 1e3, 3)} ms`;
  return `${significant(s, 3)} s`;
}

/** @param {number} n @param {string} one @param {string} [many] */
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** @param {number} n */
export const bytes = (n) => (n >= 1 << 20 ? `${significant(n / (1 << 20), 3)} MiB` : n >= 1024 ? `${significant(n / 1024, 3)} KiB` : `${n} B`);

/** The domain, and the rule, of commands that bring their limit along: no set of rules holds them. */
export const commands = '_command';

/** What each verdict is called (as in internal/util/human), and how it is drawn. @type {Record<string, [string, string, string]>} */
const verdicts = {
  broken: ['Broken', 'refused', '×'],
  strict: ['Too strict', 'refused', '!'],
  maybe_strict: ['Maybe strict', 'near', '?'],
  loose_crowd: ['Lets a rush in', 'near', '↯'],
  loose_few: ['Lets a few in', 'near', '↯'],
  ignored: ['Is ignored', 'near', '↻'],
  adds_nothing: ['Adds nothing', 'grey', '='],
  never_met: ['Never met', 'grey', '–'],
  never_binding: ['Never binds', 'grey', '–'],
  reserve: ['In reserve', 'good', '✓'],
  works: ['Works', 'good', '✓'],
  too_early: ['Too early', 'grey', '…'],
};

/** @param {string} name */
export const verdictOf = (name) => verdicts[name] ?? [visible(name), 'grey', '·'];

/**
 * pill draws a verdict.
 * @param {string | undefined} name
 */
export function pill(name) {
  if (!name) return h('span', { class: 'pill ink-grey' }, 'No verdict yet');
  const [words, colour] = verdictOf(name);
  return h('span', { class: `pill ink-${colour}` }, words);
}

/**
 * legend says what the colours of a chart are.
 * @param {[string, string][]} entries class and words
 */
export const legend = (entries) => h('p', { class: 'legend' }, entries.map(([kind, words]) => h('span', { class: `c-${kind}` }, h('i', { class: kind === 'rule' || kind === 'sat' ? kind : null }), h('span', { class: 'ink-grey' }, words))));

/**
 * card is a part of a view under its heading.
 * @param {string} title
 * @param {Child} note
 * @param {string | null} kind classes
 * @param {...Child} children
 */
export const card = (title, note, kind, ...children) => h('section', { class: `card ${kind ?? ''}` }, h('header', null, h('h2', null, title), note ? h('div', { class: 'sub' }, note) : null), children);

/**
 * state is what a view shows in place of figures.
 * @param {string} title
 * @param {Child} text
 * @param {...Child} more
 */
export const state = (title, text, ...more) => h('div', { class: 'state', role: 'status' }, h('h2', null, title), h('p', null, text), more);

/**
 * instead is what is shown in place of a whole view.
 * @param {string} title
 * @param {Child} text
 * @param {...Child} more
 */
export const instead = (title, text, ...more) => h('div', { class: 'card' }, h('div', { class: 'state', role: 'status' }, h('h1', null, title), h('p', null, text), more));
