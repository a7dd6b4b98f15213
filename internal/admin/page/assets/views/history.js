// @ts-check
import { ask } from '../parts/act.js';
import { card, count, fill, h, plural, sent, state, visible } from '../parts/text.js';
import { table } from '../parts/table.js';
import { outages } from '../parts/stream.js';
import { moment, when } from '../parts/time.js';
import { outageList, ruleLink } from './overview.js';
import { changesList, where } from './rules.js';

/** value writes a field of a record: times as people read them. @param {unknown} x */
const value = (x) => (typeof x === 'object' ? JSON.stringify(x) : /^\d{4}-\d\d-\d\dT[\d:.]+Z$/.test(String(x)) ? moment(Date.parse(String(x))) : String(x));

/** words writes what was before or after; that it was set says the title of the record. @param {unknown} v */
const words = (v) => (v === undefined || v === null ? '' : typeof v !== 'object' ? value(v) : Object.entries(v).filter(([k, x]) => k !== 'set' || x !== true).map(([k, x]) => `${k} ${value(x)}`).join(', '));

/** changed are the lines in which a record says what other rules changed. @param {Api.AuditLine} a @returns {string[]} */
const changed = (a) => /** @type {{changes?: string[]} | undefined} */ (a.after)?.changes ?? [];

/** side is what was before or after; what the changes say needs no digest. @param {Api.AuditLine} a @param {unknown} v */
function side(a, v) {
  if (!changed(a).length) return words(v);
  const version = /** @type {{version?: string} | undefined} */ (v)?.version;
  return version ? `version ${version}` : '';
}

/**
 * between shows what differs between two versions that are chosen; 0 is nothing.
 * @param {import('../app.js').Context} ctx
 * @param {Api.VersionList} versions
 */
function between(ctx, versions) {
  const [from, to] = ['from', 'to'].map((name) => Number(ctx.query.get(name)) || 0);
  if (!to) return null;
  const said = h('div', { role: 'status' }, 'Comparing…');
  const numbers = [...new Set([...versions.versions.map((v) => v.number), from, to])].filter(Boolean).sort((a, b) => b - a);
  /** @param {string} label @param {number} value @param {(n: number) => void} chosen */
  const choice = (label, value, chosen) => h('label', null, label, h('select', { onchange: (/** @type {Event} */ e) => chosen(Number(/** @type {HTMLSelectElement} */ (e.target).value)) },
    [...numbers, ...(label === 'From' ? [0] : [])].map((n) => h('option', { value: String(n), selected: n === value }, n ? `version ${count(n)}` : 'nothing'))));
  /** @param {number} a @param {number} b */
  const go = (a, b) => ctx.go(ctx.link('/history', { from: String(a), to: String(b) }));
  void (async () => {
    try {
      const d = /** @type {Api.VersionDiff} */ (await ctx.api(`/api/v1/rules/diff?from=${from}&to=${to}`, { signal: ctx.signal }));
      fill(said, d.broken ? h('p', { class: 'error' }, visible(d.broken)) : d.changes?.length ? changesList(d, (x, r) => ruleLink(ctx, x, r)) : h('p', { class: 'none' }, 'No rule does anything else.'),
        d.diff ? h('pre', { class: 'source diff', tabindex: '0', 'aria-label': 'Diff of the files' }, d.diff.split('\n').map((l) => [h('span', { class: /^\+/.test(l) ? 'add' : /^-/.test(l) ? 'del' : null }, visible(l)), '\n'])) : null,
        d.cut ? h('p', { class: 'sub' }, `The rest is left out here: weir rules diff ${from} ${to} shows all of it.`) : null);
    } catch (err) {
      if (!ctx.signal.aborted) fill(said, h('p', { class: 'error' }, err instanceof Error ? err.message : String(err)));
    }
  })();
  return card(`From ${from ? `version ${count(from)}` : 'nothing'} to version ${count(to)}`, null, null, h('div', { class: 'filters' }, choice('From', from, (n) => go(n, to)), choice('To', to, (n) => go(from, n))), said);
}

/** @param {import('../app.js').Context} ctx @param {HTMLElement} root @returns {Promise<import('../app.js').View>} */
export async function show(ctx, root) {
  const [rules, insight] = await Promise.all([
    /** @type {Promise<Api.RulesInForce>} */ (ctx.api('/api/v1/rules', { signal: ctx.signal })),
    /** @type {Promise<Api.Overview>} */ (ctx.api(`/api/v1/insight?over=7d${ctx.domain ? `&domain=${encodeURIComponent(ctx.domain)}` : ''}`, { signal: ctx.signal }))]);
  /** @type {Api.AuditLine[] | null} */
  let audit = null;
  let why = '';
  let lost = 0;
  if (ctx.can('audit')) {
    try {
      const a = /** @type {{records: Api.AuditLine[], lost: number}} */ (await ctx.api('/api/v1/audit?n=200', { signal: ctx.signal }));
      audit = a.records;
      lost = a.lost;
    } catch (err) {
      why = err instanceof Error ? err.message : String(err);
    }
  } else why = 'The audit log is for the role admin.';
  const s = rules.source;
  /** @type {Api.VersionList | null} */
  const versions = s?.version && ctx.can('source') ? await ctx.api('/api/v1/rules/versions', { signal: ctx.signal }) : null;
  /** @param {number} to */
  const back = (to) => ask({
    title: `Back to version ${to}`, text: `The rules of version ${to} come into force on all servers, as a new version.`, button: 'Roll back', bad: true,
    fields: [{ name: 'note', label: 'Note, for the history' }],
    async done(v) {
      await ctx.api('/api/v1/rules/rollback', { method: 'POST', body: { to, note: v.note } });
      ctx.again();
    },
  });
  const away = h('div', null);
  const drawAway = () => fill(away, outages.list.length ? outageList(outages.list) : h('p', { class: 'none' }, 'No node went without its store.'));
  drawAway();
  /** by names who made the version that came into force. @param {Api.Happening} e */
  const by = (e) => { const v = versions?.versions.find((x) => String(x.number) === e.version); return v ? ` by ${visible(v.author)}` : ''; };
  const changes = (insight.events ?? []).filter((e) => e.kind !== 'saturated').reverse();
  fill(root, h('div', { class: 'head' }, h('h1', null, 'History')),
    s?.errors.length ? h('div', { class: 'card' }, h('p', { class: 'error' }, 'The rules that lie in the source are not in force:'), s.errors.map((e) => h('p', { class: 'mono' }, visible(e)))) : null,
    h('div', { class: 'grid' },
      card('Rules in force', null, 's6', h('dl', { class: 'kv' },
        h('dt', null, 'Rules'), h('dd', null, `${count(rules.rules.length)}, generation ${count(rules.generation)}`),
        s ? [h('dt', null, 'Source'), h('dd', { class: 'mono' }, visible(s.path)), h('dt', null, 'Loaded'), h('dd', null, when(s.loaded)), h('dt', null, 'Loads'), h('dd', null, `${count(s.loads)}, ${count(s.failures)} of them failed`), h('dt', null, 'Files'), h('dd', null, s.files.map((f) => h('div', { class: 'mono' }, visible(f))))] : null)),
      card('Changes of the rules', 'last 7 days', 's6', changes.length ? h('ol', { class: 'bars' }, changes.slice(0, 40).map((e) => h('li', null, when(e.t * 1000), ' ', { rules: 'the rules changed', rules_broken: 'broken rules in the source', start: 'weir started' }[/** @type {'rules'} */ (e.kind)] ?? e.kind, e.version ? ` to version ${visible(e.version.slice(0, 12))}` : '', by(e), h('span', { class: 'sub' }, ` ${where(e.nodes)}`),
        e.changes?.length || e.more_changes ? changesList(e, (d, r) => ruleLink(ctx, d, r)) : null))) : h('p', { class: 'none' }, 'None is known.')),
      card('Outages', 'since the nodes started', null, away),
      versions ? between(ctx, versions) : null,
      versions ? card('Versions', `of the space ${visible(versions.space)}`, null, table({
        caption: 'Versions', rows: versions.versions, none: 'There is none.', columns: [
          { title: 'Version', cell: (v) => [h('strong', null, count(v.number)), v.number === versions.head ? h('span', { class: 'sub' }, ' the current one') : null] },
          { title: 'Time', cell: (v) => when(v.made) },
          { title: 'Who', cell: (v) => visible(v.author) },
          { title: 'How', cell: (v) => visible(v.origin) },
          { title: 'Note', cell: (v) => visible(v.note ?? '') || '–' },
          { title: 'Changes', cell: (v) => h('a', { href: ctx.link('/history', { from: String(v.parent ?? 0), to: String(v.number) }) }, v.parent ? `From ${count(v.parent)}` : 'All of it', h('span', { class: 'sr' }, ` to ${count(v.number)}`)) },
          { title: 'Way back', cell: (v) => (ctx.can('edit') && v.number !== versions.head ? h('button', { class: 'btn small', type: 'button', onclick: () => back(v.number) }, `Back to ${count(v.number)}`) : null) }],
      })) : null,
      card('Audit', audit ? `${plural(audit.length, 'record')}${lost ? `, ${count(lost)} lost` : ''}` : null, null, audit ? table({
        caption: 'Audit log', rows: audit, none: 'Nothing was changed yet.', columns: [
          { title: 'Time', cell: (a) => when(a.time) },
          { title: 'Who', cell: (a) => [visible(a.who || words(a.address) || '–'), a.role ? h('div', { class: 'sub' }, visible(a.role)) : null] },
          { title: 'What', cell: (a) => [visible(a.what), changed(a).map((line) => h('div', { class: 'sub' }, visible(line))), a.limit || a.key ? h('div', { class: 'sub' }, visible([a.domain, a.limit].filter(Boolean).join('/')), a.key ? ' ' : null, a.key ? sent(a.key) : null) : null] },
          { title: 'Before', cell: (a) => (side(a, a.before) ? sent(side(a, a.before)) : '–') },
          { title: 'After', cell: (a) => (side(a, a.after) ? sent(side(a, a.after)) : '–') },
          { title: 'Note', cell: (a) => visible(words(a.note)) || '–' },
          { title: 'Node', cell: (a) => visible(words(a.node)) || '–' }],
      }) : state('No audit log', why))));
  return { title: 'History', leave: outages.watch(drawAway) };
}
