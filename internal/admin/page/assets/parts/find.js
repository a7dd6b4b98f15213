// @ts-check
// Find: a rule, a key, a user, a decision by its id. And the list of keys.
import { commands, fill, h, visible } from './text.js';

/** @typedef {{words: string, kind: string, path: string}} Found */

/**
 * matches are the places that a text may mean.
 * @param {import('../app.js').Context} ctx
 * @param {string} text
 * @param {{domain: string, name: string}[]} rules
 * @returns {Found[]}
 */
export function matches(ctx, text, rules) {
  const t = text.trim();
  if (!t) return rules.slice(0, 8).map((r) => rule(ctx, r));
  /** @type {Found[]} */
  const found = [];
  if (/^[0-9a-hjkmnp-tv-z]{13}$/i.test(t)) found.push({ words: t, kind: 'decision', path: ctx.link(`/decisions/${t.toLowerCase()}`) });
  found.push(...rules.filter((r) => `${r.domain}/${r.name}`.toLowerCase().includes(t.toLowerCase())).sort((a, b) => Number(b.name.startsWith(t)) - Number(a.name.startsWith(t))).slice(0, 8).map((r) => rule(ctx, r)));
  if (ctx.can('find')) {
    const domains = ctx.domain ? [ctx.domain] : [...new Set(rules.map((r) => r.domain))];
    const address = /^[0-9.]+$|^[0-9a-f:]+:[0-9a-f:]*(\/\d+)?$/i.test(t);
    const keys = t.includes('=') ? [t] : address ? [`ip=${t}`] : [`user=${t}`];
    if (t.startsWith('key=')) found.push({ words: t, kind: 'key of commands', path: ctx.link(`/keys/${commands}/${encodeURIComponent(t)}`) });
    for (const key of keys) for (const d of domains.slice(0, 4)) found.push({ words: key, kind: domains.length > 1 ? `key in ${d}` : 'key', path: ctx.link(`/keys/${encodeURIComponent(d)}/${encodeURIComponent(key)}`) });
  }
  return found;
}

/** @param {import('../app.js').Context} ctx @param {{domain: string, name: string}} r @returns {Found} */
const rule = (ctx, r) => ({ words: r.name, kind: `rule of ${r.domain}`, path: ctx.link(`/rules/${encodeURIComponent(r.domain)}/${encodeURIComponent(r.name)}`) });

/** @param {import('../app.js').Context} ctx */
export function openFind(ctx) {
  if (document.querySelector('dialog[open]')) return;
  /** @type {{domain: string, name: string}[]} */
  let rules = [];
  /** @type {Found[]} */
  let found = [];
  let at = 0;
  const list = h('ul', { role: 'listbox', id: 'found', 'aria-label': 'Found' });
  const input = /** @type {HTMLInputElement} */ (h('input', {
    type: 'text', role: 'combobox', 'aria-label': 'Find a rule, key, user or decision', placeholder: 'Rule, key, user or decision', autocomplete: 'off', spellcheck: 'false',
    'aria-expanded': 'true', 'aria-controls': 'found', 'aria-autocomplete': 'list', oninput: () => { at = 0; draw(); },
  }));
  const dialog = /** @type {HTMLDialogElement} */ (h('dialog', { class: 'find', 'aria-label': 'Find' }, input, list));

  function draw() {
    found = matches(ctx, input.value, rules);
    at = Math.min(at, Math.max(0, found.length - 1));
    fill(list, found.map((f, i) => h('li', { role: 'option', id: `found-${i}`, 'aria-selected': String(i === at), onclick: () => open(f) }, h('span', { class: 'mono' }, visible(f.words)), h('span', { class: 'sub' }, visible(f.kind)))));
    list.hidden = !found.length;
    if (found.length) input.setAttribute('aria-activedescendant', `found-${at}`); else input.removeAttribute('aria-activedescendant');
  }
  /** @param {Found | undefined} f */
  function open(f) {
    if (!f) return;
    dialog.close();
    ctx.go(f.path);
  }
  input.addEventListener('keydown', (e) => {
    if (e.key === 'ArrowDown') at = Math.min(found.length - 1, at + 1);
    else if (e.key === 'ArrowUp') at = Math.max(0, at - 1);
    else if (e.key === 'Enter') { e.preventDefault(); open(found[at]); return; } else return;
    e.preventDefault();
    draw();
    document.getElementById(`found-${at}`)?.scrollIntoView({ block: 'nearest' });
  });
  closable(dialog);
  draw();
  ctx.api('/api/v1/rules').then((/** @type {any} */ r) => {
    rules = r.rules.map((/** @type {any} */ x) => ({ domain: x.domain, name: x.name }));
    if (ctx.domain) rules = rules.filter((x) => x.domain === ctx.domain);
    draw();
  }, () => {});
}

/** @param {HTMLDialogElement} dialog */
function closable(dialog) {
  const before = /** @type {HTMLElement | null} */ (document.activeElement);
  dialog.addEventListener('close', () => { dialog.remove(); if (before?.isConnected) before.focus(); });
  dialog.addEventListener('click', (e) => { if (e.target === dialog) dialog.close(); });
  document.body.append(dialog);
  dialog.showModal();
}

const keys = [['/', 'find a rule, key, user or decision'], ['j k', 'next and previous row'], ['Enter', 'open'], ['Esc', 'back'], ['g o', 'overview'], ['g r', 'rules'], ['g k', 'keys'], ['g d', 'decisions'], ['g t', 'try a change'], ['g b', 'bans'], ['g n', 'nodes'], ['g e', 'regions'], ['g h', 'history'], ['?', 'this list']];

export function openHelp() {
  if (document.querySelector('dialog[open]')) return;
  const dialog = /** @type {HTMLDialogElement} */ (h('dialog', { 'aria-label': 'Keys' }, h('h2', null, 'Keys'),
    h('dl', { class: 'help' }, keys.filter(([k]) => k !== 'g e' || document.querySelector('[data-view=regions]')).map(([k, words]) => [h('dt', null, k.split(' ').map((x) => [h('kbd', null, x), ' '])), h('dd', null, words)])),
    h('p', { class: 'sub' }, `weir ${document.body.dataset.version ?? ''} · `, h('a', { href: '/help' }, 'all endpoints')),
    h('div', { class: 'actions' }, h('button', { class: 'btn', type: 'button', onclick: () => dialog.close() }, 'Close'))));
  closable(dialog);
}
