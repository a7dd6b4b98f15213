// @ts-check
// Tables: wider ones than the screen scroll in a region that the keyboard reaches, and whose first
// column stays. On a phone each row is a block, in which every cell has its title beside it; the
// roles say that it is a table all the same.
import { commands, fill, h, visible } from './text.js';

/**
 * @template T
 * @typedef {object} Column
 * @property {string} title
 * @property {boolean} [quiet] the title is for screen readers alone
 * @property {(row: T) => import('./text.js').Child} cell
 * @property {boolean} [number] figures stand at the right
 * @property {(row: T) => number | string} [by] makes the column one to sort by
 */

/**
 * table draws rows. The first column is the row's heading.
 * @template T
 * @param {object} o
 * @param {string} o.caption what the table is of
 * @param {Column<T>[]} o.columns
 * @param {T[]} o.rows
 * @param {string} o.none what stands in place of no rows
 * @param {string} [o.sort] the title to sort by, largest first; after "-" smallest first
 * @param {(sort: string) => void} [o.sorted] is told of another order
 * @returns {HTMLElement}
 */
export function table(o) {
  if (!o.rows.length) return h('p', { class: 'none' }, o.none);
  let sort = o.sort ?? '';
  const body = h('tbody', { role: 'rowgroup' });
  const heads = o.columns.map((c) => h('th', { scope: 'col', role: 'columnheader', class: c.number ? 'n' : null }, c.by ? h('button', { type: 'button', onclick: () => turn(c.title) }, c.title) : c.quiet ? h('span', { class: 'sr' }, c.title) : c.title));
  const el = h('div', { class: 'scroll', role: 'region', 'aria-label': o.caption, tabindex: '0' },
    h('table', { class: 'rows', role: 'table' }, h('caption', { class: 'sr' }, o.caption), h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, heads)), body));

  /** @param {string} title */
  function turn(title) {
    sort = sort === title ? `-${title}` : title;
    o.sorted?.(sort);
    draw();
  }

  function draw() {
    const up = sort.startsWith('-');
    const column = o.columns.find((c) => c.by && c.title === sort.replace(/^-/, ''));
    const rows = [...o.rows];
    const by = column?.by;
    if (by) {
      rows.sort((a, b) => {
        const x = by(a);
        const y = by(b);
        const less = typeof x === 'string' ? x.localeCompare(String(y)) : Number(y) - Number(x);
        return up ? -less : less;
      });
    }
    o.columns.forEach((c, i) => {
      if (c === column) heads[i].setAttribute('aria-sort', typeof by?.(o.rows[0]) === 'string' ? (up ? 'descending' : 'ascending') : up ? 'ascending' : 'descending');
      else heads[i].removeAttribute('aria-sort');
    });
    fill(body, rows.map((row) => h('tr', { role: 'row' }, o.columns.map((c, i) => h(i ? 'td' : 'th', { class: c.number ? 'n' : null, scope: i ? null : 'row', role: i ? 'cell' : 'rowheader', 'data-title': i && !c.quiet ? c.title : null }, c.cell(row))))));
  }
  draw();
  return el;
}

/**
 * choosing lets several keys of a list be chosen, and banned at once: box puts the choice of one of
 * them before its name, and button bans them.
 * @param {import('../app.js').Context} ctx
 * @param {() => void} then
 */
export function choosing(ctx, then) {
  /** @type {Map<string, import('./act.js').Target>} */
  const chosen = new Map();
  const tally = () => { button.hidden = !chosen.size; fill(button, `Ban ${chosen.size} chosen`); };
  const button = h('button', { class: 'btn bad', type: 'button', hidden: true, onclick: async () => (await import('./act.js')).ban(ctx, [...chosen.values()], () => { chosen.clear(); tally(); then(); }) });
  /** @param {Api.Key} k @param {...import('./text.js').Child} name */
  const box = (k, ...name) => {
    const id = JSON.stringify([k.domain, k.rule, k.key]);
    if (!ctx.can('act') || k.domain === commands || k.banned_until) return h('span', null, name);
    return h('span', { class: 'choice' }, h('input', { type: 'checkbox', checked: chosen.has(id), 'aria-label': `Choose ${visible(k.key)} at ${visible(k.rule)}`, onchange: (/** @type {Event} */ e) => {
      // The server cuts the key where the names of its parts say.
      if (/** @type {HTMLInputElement} */ (e.target).checked) chosen.set(id, { domain: k.domain, limit: k.rule, key: k.key ? [k.key] : [] });
      else chosen.delete(id);
      tally();
    } }), h('span', null, name));
  };
  return { button, box };
}

/**
 * walk moves the focus by n rows: over the links that head rows, and the lines of decisions.
 * @param {Element} root
 * @param {number} n
 */
export function walk(root, n) {
  const rows = /** @type {HTMLElement[]} */ ([...root.querySelectorAll('tbody th a, .bars a, .log a.line, .looks a')]);
  const active = document.activeElement;
  const at = rows.indexOf(/** @type {HTMLElement} */ (active));
  const next = rows[at < 0 ? (n > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + n))];
  next?.focus();
  next?.scrollIntoView({ block: 'nearest' });
}

/**
 * keepFocus draws anew and gives the focus back to the element that had it, found by its id, or by
 * where its link leads.
 * @param {Element} root
 * @param {() => void} draw
 */
export function keepFocus(root, draw) {
  const active = /** @type {HTMLElement | null} */ (root.contains(document.activeElement) ? document.activeElement : null);
  const href = active?.getAttribute('href');
  const label = active?.getAttribute('aria-label') ?? active?.textContent;
  const tag = active?.tagName;
  const scrolled = [...root.querySelectorAll('.scroll')].map((s) => [s.scrollLeft, s.scrollTop]);
  const open = [...root.querySelectorAll('details')].map((d) => d.open);
  draw();
  root.querySelectorAll('.scroll').forEach((s, i) => { if (scrolled[i]) [s.scrollLeft, s.scrollTop] = scrolled[i]; });
  root.querySelectorAll('details').forEach((d, i) => { if (open[i]) d.open = true; });
  if (!active || active.isConnected) return;
  const same = [...root.querySelectorAll(tag ?? 'a')].find((e) => (href ? e.getAttribute('href') === href : (e.getAttribute('aria-label') ?? e.textContent) === label));
  /** @type {HTMLElement | undefined} */ (same)?.focus({ preventScroll: true });
}
