// @ts-check
import { share } from '../parts/bars.js';
import { ban, end, partsOf } from '../parts/act.js';
import { grant } from '../parts/grant.js';
import { line, sameKey } from '../parts/decision.js';
import { card, commands, count, fill, h, percent, plural, sent, shareOf, state, visible } from '../parts/text.js';
import { keepFocus, table } from '../parts/table.js';
import { left, span, when } from '../parts/time.js';
import { ruleLink } from './overview.js';

/** fullness is how much of the limit is used, or of the ceiling of this region if that is more. @param {Api.KeyState} s */
const fullness = ({ used, capacity, regions }) => Math.max(capacity ? used / capacity : 0, regions?.own?.limit ? regions.own.used / regions.own.limit : 0);

/** regional says how a key stands in this region and in all. @param {Api.KeyState} s */
function regional(s) {
  const { own, all, region } = s.regions ?? {};
  return [own ? h('div', { class: 'line-of' }, `${region}: ${count(own.used)} of ${count(own.limit)} (ceiling)`) : null,
    all ? h('div', { class: 'line-of' }, `all regions: ${count(all.used)} of ${count(all.limit)} as heard`) : null];
}

/** @param {import('../app.js').Context} ctx @param {HTMLElement} root @returns {Promise<import('../app.js').View>} */
export async function show(ctx, root) {
  const [domain, key] = ctx.params.length > 1 ? ctx.params : ['', ctx.params[0]];
  const known = /** @type {Api.RulesInForce} */ (await ctx.api('/api/v1/rules', { signal: ctx.signal }));
  const names = key.split(/, (?=[A-Za-z_][\w.|-]*=)/).map((p) => p.slice(0, p.indexOf('=')));
  // The rules whose keys are made of these attributes, in this order.
  const mine = known.rules.filter((r) => (!domain || r.domain === domain) && r.per?.length === names.length && r.per.every((p, i) => p.split('|').includes(names[i]) || p === names[i]));
  /** @type {Api.KeyReport | null} */
  let report = null;
  /** @type {Api.KeyState[]} */
  let states = [];
  /** @type {Api.Decision[]} */
  let decisions = [];

  async function ask() {
    const encoded = encodeURIComponent(key);
    const [a, d, s] = await Promise.all([
      /** @type {Promise<Api.KeyReport & {nodes: Api.Nodes}>} */ (ctx.api(`/api/v1/insight/keys/${encodeURIComponent(domain)}/${encoded}`, { signal: ctx.signal })),
      /** @type {Promise<{decisions: Api.Decision[]}>} */ (ctx.api(`/api/v1/decisions?key=${encoded}&n=20&nodes=all${domain ? `&domain=${encodeURIComponent(domain)}` : ''}`, { signal: ctx.signal })),
      /** @type {Promise<{keys: Api.KeyState[]}>} */ (mine.length ? ctx.api(`/api/v1/keys?${new URLSearchParams([...(domain ? [['domain', domain]] : []), ...partsOf(key, mine[0].per).map((p) => ['key', p])])}`, { signal: ctx.signal }) : { keys: [] }),
    ]);
    report = a;
    ctx.nodes(a.nodes);
    decisions = d.decisions.filter((x) => sameKey(x, key));
    states = s.keys;
  }

  /** @param {string} limit the name of a window @param {string} of */
  const ruleOf = (limit, of) => known.rules.find((r) => r.domain === of && (r.name === limit || r.limits.some((w) => w.name === limit)));

  function sentence() {
    if (domain === commands) return report?.limits?.length ? 'Its limit comes with each command: no rule, ban or grant is on it.' : 'It is not among the keys of commands that come most often.';
    const banned = states.find((s) => s.ban);
    if (banned?.ban) return [h('strong', { class: 'ink-refused' }, 'Banned'), ' until ', when(banned.ban.until), `, ${left(banned.ban.until)} more`, banned.ban.reason ? `: ${visible(banned.ban.reason)}` : '', '.'];
    const full = states.filter((s) => s.refused && !s.shadow);
    if (full.length) {
      const longest = Math.max(...full.map((s) => s.retry_after ?? 0));
      return ['Would be refused now by ', full.map((s, i) => [i ? ', ' : '', h('strong', null, visible(s.limit))]), longest ? `. It passes again in ${span(longest)}.` : '.'];
    }
    if (states.length) return ['It would pass now', states.some((s) => s.grant) ? ', with a grant' : '', '.'];
    return report?.limits?.length ? 'It would pass now.' : 'Nothing is counted of it now.';
  }

  function draw() {
    const e = report?.episodes;
    const limits = report?.limits ?? [];
    const rows = states.length ? states.map((s) => ({ s, l: limits.find((l) => l.limit === s.limit || l.rule === s.limit), limit: s.limit, of: s.domain })) : limits.map((l) => ({ s: /** @type {Api.KeyState | undefined} */ (undefined), l, limit: l.limit, of: domain }));
    const extra = states.length ? limits.filter((l) => !states.some((s) => s.limit === l.limit)).map((l) => ({ s: /** @type {Api.KeyState | undefined} */ (undefined), l, limit: l.limit, of: domain })) : [];
    const then = () => { void again(); };
    const can = ctx.can('act');
    /** @type {import('../parts/table.js').Column<typeof rows[0]>[]} */
    const columns = [
      { title: 'Limit', cell: (x) => { const r = ruleOf(x.limit, x.of); const name = visible((domain ? '' : ctx.of(x.of)) + x.limit); return r ? h('a', { href: ruleLink(ctx, r.domain, r.name) }, name) : name; } },
      { title: 'Used', cell: (x) => (x.s && !x.s.unlimited ? [h('div', { class: 'line-of' }, `${count(x.s.used)} of ${count(x.s.capacity)}`), share(fullness(x.s), 'used', x.s.refused ? 'refused' : 'admitted'), x.s.leased ? h('div', { class: 'line-of' }, `leased: ${count(x.s.leased.units)} (${plural(x.s.leased.generations, 'generation')}), until `, when(x.s.leased.until)) : null, regional(x.s)] : x.s?.unlimited ? 'no limit' : 'nothing counted') },
      { title: 'Now', cell: (x) => (x.s?.ban ? h('span', { class: 'ink-refused' }, 'banned until ', when(x.s.ban.until)) : x.s?.refused ? h('span', { class: 'ink-refused' }, `refused${x.s.shadow ? ' in shadow' : ''}${x.s.retry_after ? `, again in ${span(x.s.retry_after)}` : ''}`) : 'passes') },
      { title: 'Grant', cell: (x) => (x.s?.grant ? [`${visible(x.s.grant.allow)} until `, when(x.s.grant.until)] : x.s?.shadow ? 'nothing to grant in shadow' : '–') },
      { title: 'Asked, last 12 to 24 h', number: true, cell: (x) => (x.l ? count(x.l.asked) : '–') },
      { title: 'Refused', number: true, cell: (x) => (x.l?.would_refuse ? `would ${count(x.l.would_refuse)}` : x.l ? count(x.l.refused) : '–') },
      { title: 'Near', number: true, cell: (x) => (x.l ? count(x.l.near) : '–') }];
    if (domain === commands) {
      columns.splice(1, 3, { title: 'Most asked', number: true, cell: (x) => (x.l ? [percent(x.l.fill), h('div', { class: 'sub' }, x.l.fill > 1 ? 'of the limit, refusals included' : 'of the limit')] : '–') });
      columns.pop(); // what is near is not told of them
    } else if (can) {
      columns.push({ title: 'Actions', quiet: true, cell: (x) => {
        const r = ruleOf(x.limit, x.of);
        if (!r) return null;
        const t = { domain: r.domain, limit: r.name, key: partsOf(key, r.per) };
        const b = (/** @type {string} */ words, /** @type {() => void} */ f) => h('button', { class: 'btn small', type: 'button', 'aria-label': `${words}, ${x.limit}`, onclick: f }, words);
        return h('span', { class: 'actions' }, x.s?.ban ? b('Lift', () => end(ctx, 'bans', { domain: x.s?.ban?.domain ?? '', limit: x.s?.ban?.limit ?? '', key: x.s?.ban?.key ?? [] }, then)) : b('Ban', () => ban(ctx, t, then)), x.s?.shadow ? null : b('Grant', () => grant(ctx, { key: t.key, rules: [r] }, then)), x.s?.grant ? b('End grant', () => end(ctx, 'grants', t, then)) : null, x.s ? b('Reset', () => end(ctx, 'keys', t, then)) : null);
      } });
    }
    const all = [...rows, ...extra];
    // The limit that refuses it is the one to grant more of; else the first that could.
    const could = all.filter((x) => !x.s?.shadow && !x.s?.unlimited).map((x) => ({ x, r: ruleOf(x.limit, x.of) })).filter(({ r }) => r && !r.shadow);
    const main = (could.find(({ x }) => x.s?.refused) ?? could[0])?.r ?? (all.length ? undefined : mine.find((r) => !r.shadow));
    fill(root,
      h('p', { class: 'crumb' }, h('a', { href: ctx.link('/keys') }, 'Keys'), domain ? ` / ${visible(domain)}` : ''),
      h('div', { class: 'head' }, h('h1', null, sent(key, '')), report?.known ? h('span', { class: 'pill ink-good' }, 'Known') : null,
        can && main ? h('span', { class: 'actions' }, h('button', { class: 'btn', type: 'button', onclick: () => grant(ctx, { key: partsOf(key, main.per), rules: [main] }, then) }, `Grant at ${visible(main.name)}`)) : null),
      h('p', { class: 'lead' }, sentence()),
      report?.sampled && e ? h('p', { class: 'sub' }, `After a refusal it came back when told ${plural(e.obeyed, 'time')}, too early ${plural(e.early, 'time')}, and gave up ${plural(e.gave_up, 'time')}${report.obey >= 0 ? `: ${percent(report.obey)} obeyed` : ''}. Refused ${shareOf(limits.reduce((s, l) => s + l.refused, 0), limits.reduce((s, l) => s + l.asked, 0))} of what it asked.`) : null,
      h('div', { class: 'grid' },
        h('section', { class: 'card' }, h('header', null, h('h2', null, 'Limits that count it')), all.length ? table({ caption: 'Limits', rows: all, none: '', columns }) : state('Nothing is counted', mine.length || domain === commands ? 'It was not seen lately.' : 'No rule in force counts by this key.')),
        card('Decisions', null, null, decisions.length ? h('ul', { class: 'log' }, decisions.map((d) => h('li', null, line(d, ctx)))) : h('p', { class: 'none' }, 'No decision on it is kept.'))));
  }
  const again = async () => { await ask(); keepFocus(root, draw); };
  await ask();
  draw();
  return { title: key, every: 3000, poll: again };
}
