// @ts-check
import { partsOf } from '../parts/act.js';
import { heardAll, line, mainLimit, outcomes, same, shareShown, story } from '../parts/decision.js';
import { grant, shortened } from '../parts/grant.js';
import { card, commands, count, fill, h, sent, visible } from '../parts/text.js';
import { keepFocus, table } from '../parts/table.js';
import { ago, clock, span, zone } from '../parts/time.js';
import { keyLink, ruleLink } from './overview.js';

/** @typedef {import('../app.js').Context} Context */

/**
 * granting offers a grant of the key of a limit, or says why it does not.
 * @param {Context} ctx @param {Api.Decision} d @param {Api.Limit} l
 */
function granting(ctx, d, l) {
  if (l.mode === 'shadow') return 'in shadow: nothing to grant';
  if (shortened(l.key)) return 'the key is not shown whole';
  return h('button', { class: 'btn small', type: 'button', 'aria-label': `Grant, ${visible(l.rule)}`, onclick: async () => {
    const known = /** @type {Api.RulesInForce} */ (await ctx.api('/api/v1/rules', { signal: ctx.signal }));
    const r = known.rules.find((x) => x.domain === d.domain && x.name === l.rule);
    grant(ctx, { key: partsOf(l.key, r?.per), rules: [r ?? { domain: d.domain, name: l.rule }] }, () => {});
  } }, 'Grant');
}

/** @param {Context} ctx @param {Api.Decision} d */
function details(ctx, d) {
  const attributes = Object.entries(d.attributes ?? {});
  const [words, colour] = outcomes[d.outcome] ?? [d.outcome, 'grey'];
  const main = mainLimit(d);
  const can = ctx.can('act') && d.domain !== commands;
  return [story(d), can && main ? h('p', { class: 'actions' }, granting(ctx, d, main)) : null,
    h('div', { class: 'grid' },
      card('Limits that it met', d.limits_left_out ? `${count(d.limits_left_out)} more` : null, 's8', table({
        caption: 'Limits', rows: d.limits ?? [], none: 'None.', columns: [
          { title: 'Rule', cell: (l) => [h('a', { href: ruleLink(ctx, d.domain, l.rule) }, visible(ctx.of(d.domain) + l.rule)), l.file ? h('div', { class: 'sub' }, `${visible(l.file)}:${l.line}`) : null] },
          { title: 'Key', cell: (l) => (l.key ? (ctx.can('find') ? h('a', { href: keyLink(ctx, d.domain, l.key) }, sent(l.key)) : sent(l.key)) : 'all together') },
          { title: 'Allows', cell: (l) => visible(l.allows) },
          { title: 'Result', cell: (l) => (l.refuses ? h('span', { class: 'ink-refused' }, 'refused') : !l.allowed ? h('span', { class: 'ink-shadow' }, `would refuse (${l.mode})`) : l.soft_exceeded ? h('span', { class: 'ink-near' }, 'soft margin') : l.near_limit ? h('span', { class: 'ink-near' }, 'near') : 'passed') },
          { title: 'Asked for', number: true, cell: (l) => count(l.asked) },
          { title: 'Left', number: true, cell: (l) => count(l.remaining) },
          { title: 'Passes again in', number: true, cell: (l) => (l.allowed ? '–' : l.retry_after === null ? 'never' : span(l.retry_after)) },
          ...(can && (d.limits?.length ?? 0) > 1 ? [{ title: 'Actions', quiet: true, cell: (/** @type {Api.Limit} */ l) => (l === main ? null : granting(ctx, d, l)) }] : [])],
      })),
      card('The request', null, 's4', h('dl', { class: 'kv' },
        h('dt', null, 'Result'), h('dd', { class: `ink-${colour}` }, words, d.banned ? ', banned' : ''),
        h('dt', null, 'Time'), h('dd', null, clock(d.time), h('span', { class: 'sub' }, ` ${zone()}, ${ago(d.time)} ago`)),
        h('dt', null, 'Domain'), h('dd', null, visible(d.domain)),
        d.door ? [h('dt', null, 'Door'), h('dd', null, visible(d.door))] : null,
        d.node ? [h('dt', null, 'Node'), h('dd', null, visible(d.node))] : null,
        h('dt', null, 'Cost'), h('dd', null, count(d.hits)),
        d.delay ? [h('dt', null, 'Waited'), h('dd', null, span(d.delay))] : null,
        h('dt', null, 'Rules'), h('dd', null, `generation ${count(d.generation)}`),
        h('dt', null, 'Decision'), h('dd', { class: 'mono' }, d.decision),
        attributes.map(([k, v]) => [h('dt', null, visible(k)), h('dd', null, sent(v))]))))];
}

/** one shows a single decision. @param {Context} ctx @param {HTMLElement} root @param {string} id @returns {Promise<import('../app.js').View>} */
async function one(ctx, root, id) {
  const d = /** @type {Api.Decision} */ (await ctx.api(`/api/v1/decisions/${encodeURIComponent(id)}`, { signal: ctx.signal }));
  fill(root, h('p', { class: 'crumb' }, h('a', { href: ctx.link('/decisions') }, 'Decisions')),
    h('div', { class: 'head' }, h('h1', null, 'Decision ', h('span', { class: 'mono' }, d.decision))), details(ctx, d));
  return { title: `Decision ${d.decision}` };
}

/** @param {Context} ctx @param {HTMLElement} root @returns {Promise<import('../app.js').View>} */
export async function show(ctx, root) {
  if (ctx.params[0]) return one(ctx, root, ctx.params[0]);
  const outcome = ctx.query.get('outcome') ?? '';
  const rule = ctx.query.get('rule') ?? '';
  const door = ctx.query.get('door') ?? '';
  const key = ctx.query.get('key') ?? '';
  const node = ctx.query.get('node') ?? '';
  const domain = ctx.query.get('of') ?? ctx.domain;
  const asked = new URLSearchParams();
  for (const [k, v] of [['outcome', outcome], ['limit', rule], ['door', door], ['key', key], ['domain', domain], ['node', node]]) if (v) asked.set(k, v);
  let trouble = ''; // why a node is not heard
  let whole = true; // whether all nodes have answered
  /** @returns {Promise<Api.Decision[]>} */
  const ask = async () => {
    try {
      const a = /** @type {Api.Decisions} */ (await ctx.api(`/api/v1/decisions?${asked}${asked.size ? '&' : ''}n=100&nodes=all`, { signal: ctx.signal }));
      trouble = '';
      whole = heardAll(a);
      return a.decisions;
    } catch (err) {
      const { status, message } = /** @type {any} */ (err);
      if (!node || (status !== 404 && status !== 503)) throw err;
      trouble = message; // and another one can be chosen
      whole = false;
      return [];
    }
  };
  const [first, known, all] = await Promise.all([ask(),
    /** @type {Promise<Api.RulesInForce>} */ (ctx.api('/api/v1/rules', { signal: ctx.signal })),
    /** @type {Promise<{list: Api.Node[], nodes: Api.Nodes}>} */ (ctx.api('/api/v1/nodes', { signal: ctx.signal }))]);
  let list = first;
  ctx.nodes(all.nodes, false);
  const several = all.nodes.asked > 1;
  let paused = false;
  let waiting = 0;
  let shown = '';
  const log = h('div', null);
  const note = h('span', { role: 'status' });
  const pause = h('button', { class: 'btn', type: 'button', 'aria-pressed': 'false', onclick: () => {
    paused = !paused;
    pause.setAttribute('aria-pressed', String(paused));
    fill(pause, paused ? 'Go on' : 'Pause');
    if (!paused) { waiting = 0; draw(); } else say();
  } }, 'Pause');
  /** @param {string} name @param {string} value */
  const choose = (name, value) => {
    /** @type {Record<string, string>} */
    const now = { outcome, rule, door, key, node, of: domain === ctx.domain ? '' : domain, [name]: value };
    ctx.go(ctx.link('/decisions', Object.fromEntries(Object.entries(now).filter(([, v]) => v))));
  };
  /** @param {string} label @param {string} name @param {[string, string][]} options @param {string} value */
  const select = (label, name, options, value) => h('label', null, label, h('select', { onchange: (/** @type {Event} */ e) => choose(name, /** @type {HTMLSelectElement} */ (e.target).value) }, h('option', { value: '' }, 'all'), options.map(([v, words]) => h('option', { value: v, selected: v === value }, words))));
  const names = [...new Set([...known.rules.filter((r) => !domain || r.domain === domain).map((r) => r.name), ...(rule ? [rule] : [])])].sort();
  const doors = [...new Set([...list.map((d) => d.door ?? '').filter(Boolean), ...(door ? [door] : [])])].sort();
  const input = /** @type {HTMLInputElement} */ (h('input', { value: key, placeholder: 'user=ada', autocomplete: 'off', spellcheck: 'false' }));
  fill(root, h('div', { class: 'head' }, h('h1', null, 'Decisions'), h('span', { class: 'actions' }, pause)),
    h('form', { class: 'filters', onsubmit: (/** @type {Event} */ e) => { e.preventDefault(); choose('key', input.value.trim()); } },
      select('Outcome', 'outcome', Object.entries(outcomes).map(([k, [words]]) => [k, words]), outcome),
      select('Rule', 'rule', names.map((n) => [n, n]), rule),
      doors.length ? select('Door', 'door', doors.map((n) => [n, n]), door) : null,
      several || node ? select('Node', 'node', [...new Set([...all.list.map((n) => n.node), ...(node ? [node] : [])])].sort().map((n) => [n, visible(n)]), node) : null,
      ctx.can('find') ? h('label', { class: 'wide' }, 'Key', input) : null,
      ctx.can('find') ? h('button', { class: 'btn', type: 'submit' }, 'Filter') : null),
    card('Newest first', note, null, log));

  function say() {
    fill(note, trouble ? visible(trouble) : paused ? `paused${waiting ? `, ${count(waiting)} newer` : ''}` : `live · ${shareShown(shown)}`);
  }
  /** add takes decisions among those that there are. @param {Api.Decision[]} news @returns {number} how many are new */
  function add(news) {
    const before = list;
    const fresh = news.filter((d) => d.time && (!door || d.door === door) && !before.some((x) => same(x, d)));
    list = [...fresh, ...list].sort((a, b) => Date.parse(b.time) - Date.parse(a.time)).slice(0, 200);
    return fresh.length;
  }
  function draw() {
    say();
    if (paused) return;
    keepFocus(log, () => fill(log, list.length ? h('ul', { class: 'log' }, list.slice(0, 100).map((d) => h('li', null, line(d, ctx)))) : h('p', { class: 'none' }, asked.size ? 'No decision of this kind is kept.' : 'No decision is kept yet.')));
  }
  draw();
  return {
    title: 'Decisions',
    stream: { views: 'decisions', ...(outcome ? { outcome } : {}), ...(rule ? { limit: rule } : {}), ...(key ? { key } : {}), ...(domain ? { domain } : {}), ...(node ? { node } : several ? { nodes: 'all' } : {}) },
    on(_topic, data) {
      shown = data.shown ?? shown;
      trouble = '';
      const fresh = add([...(data.decisions ?? [data])].reverse());
      if (paused) waiting += fresh;
      draw();
    },
    problem(detail) { trouble = detail; say(); },
    async opened() { const fresh = add(await ask()); if (paused) waiting += fresh; draw(); return whole; },
    async poll() { const now = await ask(); if (!paused && !trouble) list = now; draw(); },
  };
}
