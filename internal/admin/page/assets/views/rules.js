// @ts-check
import { fillSmall, trend } from '../parts/bars.js';
import { card, count, fill, h, percent, pill, plural, rate, shareOf, verdictOf, visible } from '../parts/text.js';
import { keepFocus, table } from '../parts/table.js';
import { onlySince } from '../parts/time.js';

/** @typedef {import('../app.js').Context} Context */

const weight = ['broken', 'strict', 'loose_crowd', 'loose_few', 'ignored', 'maybe_strict', 'adds_nothing', 'never_met', 'never_binding', 'works', 'reserve', 'too_early'];

/** @param {Api.Rule} r */
export const verdictName = (r) => r.verdicts?.[0]?.verdict;

/** badge says that a rule is not enforced on all. @param {Api.Rule} r */
export const badge = (r) => r.mode === 'shadow' ? h('span', { class: 'pill ink-shadow' }, 'In shadow') : r.trial ? h('span', { class: 'pill ink-shadow' }, `enforce: ${r.trial.enforce_percent}%`) : null;

/** @param {string} s */
const value = (s) => visible(s) || 'none';

/**
 * changeWords says what changed in a rule: allow 600/min → 700/min.
 * @param {Api.RuleChange} c
 */
function changeWords(c) {
  const fields = (c.fields ?? []).map((f) => `${visible(f.field)} ${c.change === 'added' ? value(f.after) : c.change === 'removed' ? value(f.before) : `${value(f.before)} → ${value(f.after)}`}`);
  return [c.change === 'changed' ? '' : visible(c.change), ...fields].filter(Boolean).join(', ');
}

/** @param {Api.RuleChange} c */
const named = (c) => visible([c.domain, c.rule].filter(Boolean).join('/'));

/** where names the nodes of a change. @param {string[] | undefined} nodes */
export const where = (nodes) => (nodes?.length ? `on ${nodes.slice(0, 3).map(visible).join(', ')}${nodes.length > 3 ? ` and ${plural(nodes.length - 3, 'more node')}` : ''}` : '');

/**
 * changesLine says it in one line, for the mark of a chart: the first ones of many.
 * @param {Api.RuleChanges} c
 */
export function changesLine(c) {
  const list = c.changes ?? [];
  const more = list.length - 3 + (c.more_changes ?? 0);
  return [...list.slice(0, 3).map((x) => `${named(x)}: ${changeWords(x)}`), more > 0 ? `${count(more)} more` : ''].filter(Boolean).join('; ');
}

/**
 * changesList lists what changed.
 * @param {Api.RuleChanges} c
 * @param {(domain: string, rule: string) => string} link
 */
export const changesList = (c, link) => h('ul', { class: 'changes' },
  (c.changes ?? []).map((x) => h('li', null, x.rule && x.change !== 'removed' ? h('a', { href: link(x.domain, x.rule) }, named(x)) : named(x), ': ', changeWords(x))),
  c.more_changes ? h('li', null, `${plural(c.more_changes, 'more change')}.`) : null);

/** many is what is said of n rules. @param {string} words @param {number} n */
const many = (words, n) => (n === 1 ? words : words.replace(/^is /, 'are ').replace(/^(let|add|work|never bind)s\b/, '$1'));

/**
 * rulesTable is a table of rules with what is known of them.
 * @param {Context} ctx
 * @param {Api.Rule[]} rules
 * @param {string} [sort]
 * @param {(sort: string) => void} [sorted]
 */
export function rulesTable(ctx, rules, sort, sorted) {
  return table({
    caption: 'Rules', rows: rules, sort, sorted, none: 'No rules are in force.',
    columns: [
      { title: 'Rule', by: sort === undefined ? undefined : (r) => ctx.of(r.domain) + r.name, cell: (r) => (r.command ? [h('a', { href: ctx.link('/keys', { rule: r.name, by: 'asked' }) }, visible(r.name)), h('div', { class: 'sub' }, 'no rule: limits that come with CL.THROTTLE and THROTTLE')]
        : [h('a', { href: ctx.link(`/rules/${encodeURIComponent(r.domain)}/${encodeURIComponent(r.name)}`) }, visible(ctx.of(r.domain) + r.name)), h('div', { class: 'sub' }, visible([r.limits?.join(', '), r.per?.join(', ')].filter(Boolean).join(' · ')))]) },
      { title: 'Verdict', by: sort === undefined ? undefined : (r) => 100 - weight.indexOf(verdictName(r) ?? 'too_early'), cell: (r) => r.command ? '–' : [pill(verdictName(r)), ' ', badge(r)] },
      { title: 'Peak per client', cell: (r) => fillSmall(r.fill ?? []) },
      { title: 'Requests', number: true, by: sort === undefined ? undefined : (r) => r.met, cell: (r) => count(r.met) },
      { title: 'Refused', number: true, by: sort === undefined ? undefined : (r) => (r.refused + r.would_refuse) / (r.met || 1), cell: (r) => [r.mode === 'shadow' ? `would ${shareOf(r.would_refuse, r.met)}` : shareOf(r.refused, r.met), h('div', { class: 'sub' }, count(r.mode === 'shadow' ? r.would_refuse : r.refused), r.mode !== 'shadow' && r.trial ? ` · would ${count(r.would_refuse)}` : null)] },
      { title: 'Of good clients', number: true, by: sort === undefined ? undefined : (r) => (r.good.of ? r.good.refused / r.good.of : 0), cell: (r) => (r.good.of && r.good.confidence ? [shareOf(r.good.refused, r.good.of), h('div', { class: 'sub' }, plural(r.good.keys, 'client'))] : '–') },
      { title: 'Trend', cell: (r) => trend(r.trend, 'Refused') },
    ],
  });
}

/** @param {Context} ctx @param {HTMLElement} root @returns {Promise<import('../app.js').View>} */
export async function show(ctx, root) {
  const query = new URLSearchParams({ over: ctx.over });
  if (ctx.domain) query.set('domain', ctx.domain);
  const askRules = () => /** @type {Promise<{rules: Api.Rule[], nodes: Api.Nodes}>} */ (ctx.api(`/api/v1/insight/rules?${query}`, { signal: ctx.signal }));
  let answer = await askRules();
  let sort = 'Verdict';
  const verdict = ctx.query.get('verdict') ?? '', unmet = ctx.query.get('met') === 'no';

  function draw() {
    const all = answer.rules;
    const idle = all.filter((r) => !r.command && !r.met);
    const rules = unmet ? idle : verdict ? all.filter((r) => verdictName(r) === verdict) : all;
    /** @type {Map<string, number>} */
    const kinds = new Map();
    for (const r of all) { const v = verdictName(r); if (v) kinds.set(v, (kinds.get(v) ?? 0) + 1); }
    const real = all.filter((r) => !r.command);
    const since = all.length ? onlySince(all.map((r) => r.from).sort()[0], ctx.over) : null;
    fill(root, h('div', { class: 'head' }, h('h1', null, 'Rules'), since ? h('span', { class: 'pill ink-grey' }, since) : null),
      h('p', { class: 'lead' }, !real.length ? 'No rules are in force.' : [`${plural(real.length, 'rule')}: `, weight.filter((v) => kinds.has(v)).map((v, i) => [i ? ', ' : '', h('a', { href: ctx.link('/rules', { verdict: v }) }, `${count(kinds.get(v) ?? 0)} ${many(verdictOf(v)[0].toLowerCase(), kinds.get(v) ?? 0)}`)]), idle.length ? ['; ', h('a', { href: ctx.link('/rules', { met: 'no' }) }, `${count(idle.length)} without a request`)] : null, '.', verdict || unmet ? [' ', h('a', { href: ctx.link('/rules') }, 'Show all')] : null]),
      card(unmet ? 'Without a request' : verdict ? verdictOf(verdict)[0] : 'All rules', `${rate(real.reduce((s, r) => s + r.per_second, 0))} requests meet a rule each second · ${percent(real.length ? real.filter((r) => r.refused > 0).length / real.length : 0)} of the rules refused somebody`, null, rulesTable(ctx, rules, sort, (s) => { sort = s; })));
    ctx.nodes(answer.nodes);
  }
  draw();
  // A thousand rules are as many bytes a second as ten.
  return { title: 'Rules', every: Math.max(2000, answer.rules.length * 60), async poll() { answer = await askRules(); keepFocus(root, draw); } };
}
