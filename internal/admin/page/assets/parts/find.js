// @ts-check
// Find: a rule, a key, a user, a decision by its id. And the list of keys.
import { outcomes } from './decision.js';
import { commands, count, fill, h, sent, visible } from './text.js';
import { ago } from './time.js';

/** @typedef {{words: string, kind: import('./text.js').Child, path: string}} Found */
/** @typedef {Api.RulesInForce['rules'][0]} Rule */

const none = /** @type {Api.FoundList} */ ({ nodes: { asked: 0, answered: 0 }, since: '', found: [], decisions: [] });

/**
 * matches are the places that a text may mean: a decision, keys that were seen, rules, and where no
 * such key was seen the key itself.
 * @param {import('../app.js').Context} ctx
 * @param {string} text
 * @param {Rule[]} rules
 * @param {Api.FoundList} seen what was seen
 * @param {boolean} all whether that is all there is to the text
 */
function matches(ctx, text, rules, seen, all) {
  const t = text.trim();
  const lower = t.toLowerCase();
  const { found, decisions } = seen;
  const named = rules.filter((r) => `${r.domain}/${r.name}`.toLowerCase().includes(lower))
    .sort((a, b) => Number(b.name.toLowerCase().startsWith(lower)) - Number(a.name.toLowerCase().startsWith(lower))).slice(0, 8).map((r) => rule(ctx, r));
  if (!t) return [...found.filter((f) => f.refused && f.counter).slice(0, 4).map((f) => hit(ctx, f)), ...named];
  /** @type {Found[]} */
  const list = [];
  if (/^[0-9a-hjkmnp-tv-z]{13}$/i.test(t)) list.push({ words: t, kind: 'decision', path: ctx.link(`/decisions/${lower}`) });
  list.push(...found.map((f) => hit(ctx, f)),
    ...decisions.map((d) => ({ words: d.decision, kind: [`decision, ${outcomes[d.outcome]?.[0] ?? d.outcome} ${ago(d.time)} ago `, d.key ? sent(d.key) : null], path: ctx.link(`/decisions/${d.decision}`) })));
  // A rule that is called so stands first, and others stand behind keys that were refused lately.
  list.splice(named[0]?.words.toLowerCase() === lower || !found[0]?.refused ? 0 : Math.min(list.length, 8), 0, ...named);
  if (ctx.can('find') && all && !found.length) list.push(...unseen(ctx, t, rules));
  return list;
}

/** unseen are the keys that a text may mean, in the domains where a rule counts by such. @param {import('../app.js').Context} ctx @param {string} t @param {Rule[]} rules @returns {Found[]} */
function unseen(ctx, t, rules) {
  const address = /^[0-9.]+$|^[0-9a-f:]+:[0-9a-f:]*(\/\d+)?$/i.test(t);
  const key = t.includes('=') ? t : `${address ? 'ip' : 'user'}=${t}`;
  const name = key.slice(0, key.indexOf('='));
  const domains = [...new Set(rules.filter((r) => r.per?.some((p) => p.split('|').includes(name))).map((r) => r.domain))];
  if (name === 'key') domains.unshift(commands);
  return domains.slice(0, 8).map((d) => ({ words: key, kind: `${where(d)}, not seen lately`, path: keyPath(ctx, d, key) }));
}

/** @param {string} domain */
const where = (domain) => (domain === commands ? 'key of commands' : `in ${domain}`);

/** @param {import('../app.js').Context} ctx @param {string} domain @param {string} key */
const keyPath = (ctx, domain, key) => ctx.link(`/keys/${encodeURIComponent(domain)}/${encodeURIComponent(key)}`);

/** hit is a key or an attribute that was seen, with what it did lately. @param {import('../app.js').Context} ctx @param {Api.FoundKey} f @returns {Found} */
const hit = (ctx, f) => ({
  words: f.key,
  kind: [h('span', { class: f.refused ? 'ink-refused' : null }, lately(f)), ` ${where(visible(f.domain))}`],
  path: f.counter ? keyPath(ctx, f.domain, f.key) : ctx.link('/decisions', { key: f.key, of: f.domain }),
});

/** lately says what a key did in the last minute, or when it was refused. @param {Api.FoundKey} f */
export function lately(f) {
  if (f.refused) {
    const by = (f.by ?? []).map((b) => visible(b.value)).join(', ');
    return `refused ${f.at_least ? 'at least ' : ''}${count(f.refused)} in the last minute${by ? ` by ${by}` : ''}${f.banned ? f.banned === f.refused ? ', banned' : `, ${count(f.banned)} by a ban` : ''}`;
  }
  if (f.refused_at) return `refused ${ago(f.refused_at)} ago`;
  return f.allowed ? `about ${count(f.allowed)} allowed in the last minute` : `seen ${ago(f.seen_at)} ago`;
}

/** @param {import('../app.js').Context} ctx @param {{domain: string, name: string}} r @returns {Found} */
const rule = (ctx, r) => ({ words: r.name, kind: `rule of ${visible(r.domain)}`, path: ctx.link(`/rules/${encodeURIComponent(r.domain)}/${encodeURIComponent(r.name)}`) });

/** search asks for what was seen. @param {import('../app.js').Context} ctx @param {string} text @returns {Promise<Api.FoundList>} */
export const search = (ctx, text) => ctx.api(`/api/v1/find?${new URLSearchParams({ text, n: '12', ...(ctx.domain ? { domain: ctx.domain } : {}) })}`);

/** openFind opens the box. @param {import('../app.js').Context} ctx @param {string} [text] */
export function openFind(ctx, text = '') {
  if (document.querySelector('dialog[open]')) return;
  /** @type {Rule[]} */
  let rules = [];
  /** @type {Found[]} */
  let found = [];
  /** @type {Api.FoundList | null} */
  let seen = null;
  /** @type {string | null} */
  let asked = null; // the text of the question under way
  let answered = ''; // the text that seen is about
  let enter = false; // it was pressed before the answer was there
  let trouble = '';
  let at = 0;
  let timer = 0;
  const list = h('ul', { role: 'listbox', id: 'found', 'aria-label': 'Found' });
  const note = h('p', { class: 'sub', role: 'status' });
  const input = /** @type {HTMLInputElement} */ (h('input', {
    type: 'text', role: 'combobox', 'aria-label': 'Find a rule, key, user or decision', placeholder: 'Rule, key, user or decision', autocomplete: 'off', spellcheck: 'false', value: text,
    'aria-expanded': 'true', 'aria-controls': 'found', 'aria-autocomplete': 'list', oninput: () => { at = 0; enter = false; draw(); later(); },
  }));
  const dialog = /** @type {HTMLDialogElement} */ (h('dialog', { class: 'find', 'aria-label': 'Find' }, input, list, note));
  const wanted = () => input.value.trim();
  const current = () => seen !== null && answered === wanted();

  function draw() {
    const before = found[at]?.path;
    const lower = wanted().toLowerCase();
    // While one types, what was found before is what may be found again.
    const so = current() ? seen ?? none : { ...none, found: (seen ?? none).found.filter((f) => lower && f.key.toLowerCase().includes(lower)) };
    found = matches(ctx, input.value, rules, so, current());
    // What the reader went to stays chosen when answers come in.
    const again = at ? found.findIndex((f) => f.path === before) : 0;
    at = Math.max(0, again);
    fill(list, found.map((f, i) => h('li', { role: 'option', id: `found-${i}`, 'aria-selected': String(i === at), onclick: () => open(f) }, sent(f.words), h('span', { class: 'sub' }, f.kind))));
    list.hidden = !found.length;
    const more = current() ? seen?.left_out : 0;
    const few = current() && seen && seen.nodes.answered < seen.nodes.asked ? `Only ${seen.nodes.answered} of ${seen.nodes.asked} nodes answered.` : '';
    fill(note, trouble || [more ? `At least ${count(more)} more: go on typing.` : '', few, !found.length && current() ? 'Nothing like it was seen lately.' : ''].filter(Boolean).join(' '));
    if (found.length) input.setAttribute('aria-activedescendant', `found-${at}`); else input.removeAttribute('aria-activedescendant');
  }
  function later() {
    clearTimeout(timer);
    timer = setTimeout(() => { void ask(); }, 150);
  }
  /** ask asks about what stands in the box now; one question is under way at a time. */
  async function ask() {
    if (!ctx.can('find') || asked !== null || current() || !dialog.isConnected) return;
    asked = wanted();
    try {
      seen = await search(ctx, asked);
      trouble = '';
    } catch (err) {
      seen = none;
      trouble = err instanceof Error ? err.message : String(err);
    }
    answered = asked;
    asked = null;
    if (!dialog.isConnected) return;
    draw();
    if (!current()) void ask();
    else if (enter) open(found[at]);
  }
  /** @param {Found | undefined} f */
  function open(f) {
    enter = false;
    if (!f) return;
    dialog.close();
    ctx.go(f.path);
  }
  input.addEventListener('keydown', (e) => {
    if (e.key === 'ArrowDown') at = Math.min(found.length - 1, at + 1);
    else if (e.key === 'ArrowUp') at = Math.max(0, at - 1);
    else if (e.key === 'Enter') {
      e.preventDefault();
      // Before the answer is there, the first of the list may be another one.
      if (at || current() || !ctx.can('find')) open(found[at]); else { enter = true; void ask(); }
      return;
    } else return;
    e.preventDefault();
    draw();
    document.getElementById(`found-${at}`)?.scrollIntoView({ block: 'nearest' });
  });
  closable(dialog);
  draw();
  void ask();
  ctx.api('/api/v1/rules').then((/** @type {any} */ r) => {
    rules = r.rules;
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
