// @ts-check
import { ask, end, fors, partsOf, scopeOf, whereField } from '../parts/act.js';
import { grant } from '../parts/grant.js';
import { card, count, fill, h, plural, sent, visible } from '../parts/text.js';
import { keepFocus, table } from '../parts/table.js';
import { span, when } from '../parts/time.js';
import { keyLink, ruleLink } from './overview.js';

/** @param {import('../app.js').Context} ctx @param {HTMLElement} root @returns {Promise<import('../app.js').View>} */
export async function show(ctx, root) {
  const of = ctx.domain ? `?domain=${encodeURIComponent(ctx.domain)}&n=500` : '?n=500';
  const askAll = () => Promise.all([
    /** @type {Promise<{bans: Api.Ban[], total: number}>} */ (ctx.api(`/api/v1/bans${of}`, { signal: ctx.signal })),
    /** @type {Promise<{grants: Api.Grant[], total: number}>} */ (ctx.api(`/api/v1/grants${of}`, { signal: ctx.signal }))]);
  const [answers, known] = await Promise.all([askAll(), /** @type {Promise<Api.RulesInForce>} */ (ctx.api('/api/v1/rules', { signal: ctx.signal }))]);
  let [bans, grants] = answers;
  const rules = known.rules.filter((r) => !ctx.domain || r.domain === ctx.domain);
  const could = rules.filter((r) => !r.shadow); // in shadow there is nothing to grant
  const can = ctx.can('act');
  const bansBox = h('div', null);
  const grantsBox = h('div', null);
  const bansNote = h('span', null);
  const grantsNote = h('span', null);

  const make = () => ask({
    title: 'Ban', bad: true, button: 'Ban', text: 'All requests of the key that meet the rule are refused until the ban ends.',
    fields: [
      { name: 'rule', label: 'Rule', options: rules.map((r) => `${r.domain}/${r.name}`) },
      { name: 'key', label: 'Key', hint: 'as in user=ada, or a network: 192.0.2.0/24' },
      whereField,
      { name: 'for', label: 'For', value: '1h', options: fors },
      { name: 'reason', label: 'Reason, for the audit log' }],
    async done(v) {
      const r = rules.find((x) => `${x.domain}/${x.name}` === v.rule);
      await ctx.api('/api/v1/bans', { method: 'POST', body: { domain: r?.domain, limit: r?.name, key: partsOf(v.key, r?.per), for: v.for, reason: v.reason, ...scopeOf(v.scope) } });
      await again();
    },
  });

  /** @param {Api.Ban | Api.Grant} x */
  const keyOf = (x) => {
    const key = (x.key ?? []).join(', ');
    return key ? (ctx.can('find') ? h('a', { href: keyLink(ctx, x.domain, key) }, sent(key)) : sent(key)) : 'all together';
  };
  /** @param {Api.Ban | Api.Grant} x @param {'bans' | 'grants'} what @param {string} words */
  const button = (x, what, words) => h('span', { class: 'actions' }, h('button', { class: 'btn small', type: 'button', 'aria-label': `${words} ${visible((x.key ?? []).join(', '))}`, onclick: () => end(ctx, what, { domain: x.domain, limit: x.limit, key: x.key ?? [] }, () => { void again(); }) }, words));
  /** @param {Api.Ban | Api.Grant} x */
  const until = (x) => [when(x.until), h('div', { class: 'sub' }, `${span(x.left)} left`)];

  function draw() {
    fill(bansNote, bans.total > bans.bans.length ? `${count(bans.bans.length)} of ${count(bans.total)}` : plural(bans.total, 'ban'));
    fill(grantsNote, plural(grants.total, 'grant'));
    /** @type {import('../parts/table.js').Column<Api.Ban>[]} */
    const b = [
      { title: 'Key', cell: keyOf },
      { title: 'Rule', cell: (x) => [h('div', null, h('a', { href: ruleLink(ctx, x.domain, x.limit) }, visible(ctx.of(x.domain) + x.limit))), x.wide ? h('div', { class: 'sub' }, 'in the whole domain') : null] },
      { title: 'Refused', number: true, cell: (x) => (x.refused === undefined ? '–' : [x.refused_at_least ? 'at least ' : '', count(x.refused), h('div', { class: 'sub' }, 'since ', when(x.since))]) },
      { title: 'Until', cell: until },
      { title: 'Since', cell: (x) => when(x.since) },
      { title: 'Set by', cell: (x) => (x.set ? 'an operator' : 'its refusals') },
      { title: 'Reason', cell: (x) => visible(x.reason) || '–' }];
    /** @type {import('../parts/table.js').Column<Api.Grant>[]} */
    const g = [
      { title: 'Key', cell: keyOf },
      { title: 'Rule', cell: (x) => h('a', { href: ruleLink(ctx, x.domain, x.limit) }, visible(ctx.of(x.domain) + x.limit)) },
      { title: 'Limit', cell: (x) => [visible(x.allow), x.problem ? h('div', { class: 'ink-near' }, visible(x.problem)) : null] },
      { title: 'Until', cell: until },
      { title: 'Reason', cell: (x) => visible(x.reason) || '–' }];
    if (can) {
      b.push({ title: 'Actions', quiet: true, cell: (x) => button(x, 'bans', 'Lift') });
      g.push({ title: 'Actions', quiet: true, cell: (x) => button(x, 'grants', 'End') });
    }
    keepFocus(bansBox, () => fill(bansBox, table({ caption: 'Bans in force', rows: bans.bans, none: 'Nobody is banned.', columns: b })));
    keepFocus(grantsBox, () => fill(grantsBox, table({ caption: 'Grants in force', rows: grants.grants, none: 'No grant is in force.', columns: g })));
  }
  const again = async () => { [bans, grants] = await askAll(); draw(); };
  fill(root, h('div', { class: 'head' }, h('h1', null, 'Bans and grants'), can && rules.length ? h('span', { class: 'actions' }, h('button', { class: 'btn', type: 'button', onclick: make }, 'Ban a key'), could.length ? h('button', { class: 'btn', type: 'button', onclick: () => grant(ctx, { rules: could }, () => { void again(); }) }, 'Grant a limit') : null) : null),
    h('div', { class: 'grid' }, card('Bans in force', bansNote, null, bansBox), card('Grants in force', grantsNote, null, grantsBox)));
  draw();
  return { title: 'Bans', every: 3000, poll: again };
}
