// @ts-check
import { share } from '../parts/bars.js';
import { ban, end, partsOf } from '../parts/act.js';
import { openFind, search } from '../parts/find.js';
import { grant } from '../parts/grant.js';
import { card, commands, fill, h, percent, sent, visible } from '../parts/text.js';
import { choosing, keepFocus, table } from '../parts/table.js';
import { left, when } from '../parts/time.js';
import { atLeast, keyLink, ruleLink, times } from './overview.js';

const orders = { refused: 'refused most', asked: 'asked most', near: 'nearest to their limit' };

/** @param {import('../app.js').Context} ctx @param {HTMLElement} root @returns {Promise<import('../app.js').View>} */
export async function show(ctx, root) {
  const by = /** @type {keyof typeof orders} */ (Object.hasOwn(orders, ctx.query.get('by') ?? '') ? ctx.query.get('by') : 'refused');
  const back = ctx.query.get('back') === '12h' ? '12h' : '1m';
  const chosen = ctx.query.get('rule') ?? ''; // behind its domain if those of all are shown
  const rule = ctx.domain && chosen.startsWith(`${ctx.domain}/`) ? chosen.slice(ctx.domain.length + 1) : chosen;
  const q = new URLSearchParams({ by, over: back, n: '50' });
  if (ctx.domain) q.set('domain', ctx.domain);
  if (rule) q.set('limit', rule);
  const sheet = new URLSearchParams([...q, ['format', 'csv']]);
  sheet.set('n', '1000');
  const ask = () => /** @type {Promise<{keys: Api.Key[], nodes: Api.Nodes}>} */ (ctx.api(`/api/v1/insight/keys?${q}`, { signal: ctx.signal }));
  const [answer, known] = await Promise.all([ask(), /** @type {Promise<Api.RulesInForce>} */ (ctx.api('/api/v1/rules', { signal: ctx.signal }))]);
  let keys = answer.keys;
  ctx.nodes(answer.nodes);
  const list = h('div', null);
  const marked = choosing(ctx, () => { void again(); });
  const note = h('span', null);
  /** @param {string} k @param {string} v */
  const choose = (k, v) => {
    /** @type {Record<string, string>} */
    const now = { by, back, rule, [k]: v };
    if (now.by === 'refused') delete now.by;
    if (now.back === '1m') delete now.back;
    if (!now.rule) delete now.rule;
    ctx.go(ctx.link('/keys', now));
  };
  /** @param {string} label @param {string} name @param {[string, string][]} options @param {string} value */
  const select = (label, name, options, value) => h('label', null, label, h('select', { onchange: (/** @type {Event} */ e) => choose(name, /** @type {HTMLSelectElement} */ (e.target).value) }, options.map(([v, words]) => h('option', { value: v, selected: v === value }, words))));
  const ofCommands = rule === commands || keys.some((k) => k.domain === commands);
  const names = [...new Set([...known.rules.filter((r) => !ctx.domain || r.domain === ctx.domain).map((r) => ctx.of(r.domain) + r.name), ...(ofCommands ? [commands] : []), ...(rule ? [rule] : [])])].sort();
  const input = /** @type {HTMLInputElement} */ (h('input', { name: 'key', placeholder: 'user=ada', autocomplete: 'off', spellcheck: 'false' }));
  const shadows = new Set(known.rules.filter((r) => r.shadow).map((r) => `${r.domain}/${r.name}`));
  fill(root, h('div', { class: 'head' }, h('h1', null, 'Keys')),
    h('form', { class: 'filters', onsubmit: async (/** @type {Event} */ e) => {
      e.preventDefault();
      const t = input.value.trim();
      if (!t) return;
      const { found } = await search(ctx, t).catch(() => ({ found: [] })); // the box says what is wrong
      if (found.length === 1 && found[0].counter) ctx.go(keyLink(ctx, found[0].domain, found[0].key));
      else openFind(ctx, t);
    } },
    select('Order', 'by', Object.entries(orders), by),
    select('Time', 'back', [['1m', 'last minute'], ['12h', 'last 12 to 24 h']], back),
    select('Rule', 'rule', [['', 'all'], ...names.map((n) => /** @type {[string, string]} */ ([n, n]))], rule),
    ctx.can('find') ? h('label', { class: 'wide' }, 'Key or user', input) : null,
    ctx.can('find') ? h('button', { class: 'btn', type: 'submit' }, 'Open') : null, marked.button),
    card(`Keys ${orders[by]}`, note, null, list),
    h('p', null, h('a', { href: `/api/v1/insight/keys?${sheet}`, download: 'keys.csv' }, 'As a table for spreadsheets (CSV)')));

  /** @param {Api.Key} k */
  function actions(k) {
    if (k.domain === commands) return null; // nothing can be ordered on it
    const per = known.rules.find((r) => r.domain === k.domain && r.name === k.rule)?.per;
    const t = { domain: k.domain, limit: k.rule, key: partsOf(k.key, per) };
    const then = () => { void again(); };
    const b = (/** @type {string} */ words, /** @type {() => void} */ f) => h('button', { class: 'btn small', type: 'button', 'aria-label': `${words} ${visible(k.key)}`, onclick: f }, words);
    return h('span', { class: 'actions' },
      k.banned_until ? b('Lift', () => end(ctx, 'bans', k.banned_by ? { domain: k.domain, limit: k.banned_by.limit, key: k.banned_by.key } : t, then)) : b('Ban', () => ban(ctx, t, then)),
      k.granted_until ? b('End grant', () => end(ctx, 'grants', t, then)) : b('Grant', () => grant(ctx, { key: t.key, rules: [{ domain: k.domain, name: k.rule }] }, then)),
      b('Reset', () => end(ctx, 'keys', t, then)));
  }
  function draw() {
    // What is so of all of them is said once, above.
    const all = keys.length > 1 && keys.every((k) => k.known);
    fill(note, [back === '1m' ? 'live' : '', all ? 'all are known' : ''].filter(Boolean).join(' · '));
    /** @type {import('../parts/table.js').Column<Api.Key>[]} */
    const columns = [
      { title: 'Key', cell: (k) => [marked.box(k, ctx.can('find') ? h('a', { class: 'mono', href: keyLink(ctx, k.domain, k.key) }, sent(k.key)) : sent(k.key), k.known && !all ? h('span', { class: 'sub' }, ' known') : null),
        k.banned_until ? h('div', { class: 'order ink-refused' }, 'banned until ', when(k.banned_until), `, ${left(k.banned_until)} more`) : null, k.granted_until ? h('div', { class: 'order ink-good' }, 'granted until ', when(k.granted_until)) : null] },
      { title: 'Rule', cell: (k) => (k.domain === commands ? [visible(k.rule), h('div', { class: 'sub' }, `limit comes with ${visible(k.limit)}`)] : h('a', { href: ruleLink(ctx, k.domain, k.rule) }, visible(ctx.of(k.domain) + k.rule))) },
      { title: { refused: 'Refused', asked: 'Asked', near: 'Near' }[by], number: true, cell: (k) => [times(k), atLeast(k) ? h('div', { class: 'sub' }, atLeast(k)) : null] },
      { title: 'Refused share', cell: (k) => [h('div', { class: 'sub' }, percent(k.refused_share)), share(k.refused_share, 'refused', shadows.has(`${k.domain}/${k.rule}`) ? 'shadow' : 'refused', 'admitted')] },
      { title: 'Most asked', number: true, cell: (k) => [percent(k.fill), h('div', { class: 'sub' }, k.fill > 1 ? 'of the limit, refusals included' : 'of the limit')] },
      { title: 'Retry-After obeyed', number: true, cell: (k) => (k.obey < 0 ? '–' : percent(k.obey)) }];
    if (ctx.can('act')) columns.push({ title: 'Actions', quiet: true, cell: actions });
    fill(list, table({ caption: `Keys ${orders[by]}`, rows: keys, none: back === '1m' ? `No key was ${by === 'near' ? 'near a limit' : by} in the last minute.` : 'None yet.', columns }));
  }
  async function again() {
    const a = await ask();
    keys = a.keys;
    ctx.nodes(a.nodes);
    keepFocus(list, draw);
  }
  draw();
  return { title: 'Keys', every: back === '1m' ? 2000 : 15000, poll: again };
}
