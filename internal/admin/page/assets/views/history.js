// @ts-check
import { ask } from '../parts/act.js';
import { changesList, where } from '../parts/changes.js';
import { card, count, fill, h, plural, sent, state, visible } from '../parts/text.js';
import { table } from '../parts/table.js';
import { when } from '../parts/time.js';
import { ruleLink } from './overview.js';

/** value writes a field of a record: times as people read them. @param {unknown} x */
const value = (x) => (typeof x === 'object' ? JSON.stringify(x) : String(x).replace(/^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?Z$/, '$1 $2 UTC'));

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
      await show(ctx, root);
    },
  });
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
      versions ? card('Versions', `of the space ${visible(versions.space)}`, null, table({
        caption: 'Versions', rows: versions.versions, none: 'There is none.', columns: [
          { title: 'Version', cell: (v) => [h('strong', null, count(v.number)), v.number === versions.head ? h('span', { class: 'sub' }, ' to be in force') : null] },
          { title: 'Time', cell: (v) => when(v.made) },
          { title: 'Who', cell: (v) => visible(v.author) },
          { title: 'How', cell: (v) => visible(v.origin) },
          { title: 'Note', cell: (v) => visible(v.note ?? '') || '–' },
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
  return { title: 'History' };
}
