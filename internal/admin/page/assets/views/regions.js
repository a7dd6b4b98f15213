// @ts-check
import { share } from '../parts/bars.js';
import { card, count, fill, h, percent, plural, state, visible } from '../parts/text.js';
import { keepFocus, table } from '../parts/table.js';
import { span } from '../parts/time.js';
import { ruleLink } from './overview.js';

/** What a region is to this one: in words, how it is drawn, and a sign. @type {Record<string, [string, string, string]>} */
const states = {
  own: ['This region', 'grey', '⌂'],
  heard: ['Heard', 'good', '✓'],
  silent: ['Silent', 'refused', '×'],
  never: ['Not heard yet', 'near', '…'],
  unknown: ['Not known', 'grey', '?'],
};

/** net is how many units are used after some were given back. @param {Api.NetUnits} n */
const net = (n) => n.units - n.back;

/** @param {string[]} names */
const and = (names) => (names.length < 2 ? names.join('') : `${names.slice(0, -1).join(', ')} and ${names.at(-1)}`);

/** per is a time that a limit is for: /min, /90 s. @param {number} s */
const per = (s) => ({ 1: '/s', 60: '/min', 3600: '/hour', 86400: '/day' }[s] ?? `/${span(s)}`);

/** ceiling says how much of a limit this region may use. @param {Api.RegionalWindow} w */
function ceiling(w) {
  if (w.unlimited) return h('div', { class: 'line-of' }, 'no limit');
  const of = w.window ? per(w.window) : ' in flight';
  return h('div', { class: 'line-of' }, h('strong', null, count(w.ceiling)), ` of ${count(w.limit)}${of}`, w.burst ? h('span', { class: 'sub' }, `, burst ${count(w.ceiling_burst ?? 0)} of ${count(w.burst)}`) : null);
}

/** promise says what all regions together may admit. @param {Api.RegionalLimit} l */
const promise = (l) => (l.sync ? 'the limit in each' : l.over_percent ? `up to ${l.over_percent} % more` : 'never more');

/** @param {Api.Region} r the staleness is rounded, so that it does not flicker */
const old = (r) => (r.staleness === null ? '' : r.staleness < 1 ? 'less than 1 s' : span(Math.round(r.staleness)));

/** problems are what an operator should know of a region. @param {Api.Region} r @returns {[string, string][]} colour and words */
function problems(r) {
  /** @type {[string, string][]} */
  const list = [];
  if (r.weights_differ) list.push(['refused', 'It has other weights.']);
  if (r.rules_differ) list.push(['near', 'It has other rule files.']);
  if (r.unknown) list.push(['near', `${plural(r.unknown, 'use was', 'uses were')} of rules that are not known here.`]);
  if (r.gaps) list.push(['near', `${plural(r.gaps, 'part', 'parts')} of its log ${r.gaps === 1 ? 'was' : 'were'} gone before being read.`]);
  if (r.errors) list.push(['near', `${plural(r.errors, 'call', 'calls')} of its Redis failed.`]);
  return list;
}

/** @param {import('../app.js').Context} ctx @param {HTMLElement} root @returns {Promise<import('../app.js').View>} */
export async function show(ctx, root) {
  const ask = () => /** @type {Promise<Api.Regions>} */ (ctx.api(`/api/v1/regions${ctx.domain ? `?domain=${encodeURIComponent(ctx.domain)}` : ''}`, { signal: ctx.signal }));
  let answer = await ask();

  /** lead says the worst first. @param {Api.Regions} a */
  function lead(a) {
    const others = a.regions.filter((r) => !r.own);
    /** @param {(r: Api.Region) => boolean} which */
    const names = (which) => others.filter(which).map((r) => r.region);
    /** @param {string[]} list @param {string} one @param {string} many */
    const have = (list, one, many) => `${and(list)} ${list.length === 1 ? one : many}`;
    const weights = names((r) => r.weights_differ);
    const silent = names((r) => r.state === 'silent');
    const never = names((r) => r.state === 'never');
    const rules = names((r) => r.rules_differ);
    /** @param {string} text */
    const loud = (text) => h('strong', { class: 'ink-refused' }, text);
    const list = [
      weights.length ? [loud(`${have(weights, 'has', 'have')} other weights than ${a.region}: `), 'all regions together may admit more than the limits say. '] : null,
      silent.length ? [loud(`Nothing was heard of ${and(silent)} lately: `), 'limits go by what was heard before, and by the ceilings. '] : null,
      never.length ? [loud(`Nothing was heard of ${and(never)} yet: `), 'limits go by the ceilings. '] : null,
      !a.leader ? [loud('No node that answered hears the other regions: '), 'limits go by what was heard before, and by the ceilings. '] : null,
      rules.length ? `${have(rules, 'has', 'have')} other rule files. ` : null,
    ].filter(Boolean);
    const over = a.limits.reduce((sum, l) => sum + l.over_units, 0);
    const refused = a.limits.reduce((sum, l) => sum + l.ceiling_refusals, 0);
    return ['This is ', h('strong', null, a.region), `, one of ${plural(a.regions.length, 'region')}. `, list.length ? list : `${others.length === 1 ? 'The other one is' : 'All others are'} heard. `,
      a.limits.length ? [`Together they admitted ${over ? plural(over, 'unit') : 'nothing'} beyond a limit`, refused ? `; ceilings here refused ${plural(refused, 'request')} although there was room.` : '.'] : null];
  }

  /** @param {Api.Region} r @param {Api.Regions} a */
  function region(r, a) {
    const [words, colour, sign] = states[r.state] ?? [r.state, 'grey', '·'];
    const facts = r.own ? [
      ['Node that hears others', a.leader ? h('span', { class: 'mono' }, visible(a.leader)) : 'no node'],
      ['Not sent to others yet', plural(a.keys, 'key')],
      ['Taken over from others', plural(a.orders, 'ban or grant', 'bans and grants')],
      a.untold ? ['Never sent', plural(a.untold, 'use')] : null,
    ] : [
      ['Last heard', r.staleness === null ? '–' : `${old(r)} ago`],
      ['Uses heard', count(r.uses)],
      ['Borrowed', [plural(r.borrowed, 'unit'), r.lost ? `, ${count(r.lost)} lost on the way` : '']],
    ];
    return h('section', { class: 'card region' },
      h('header', null, h('h2', null, h('bdi', null, visible(r.region))), h('span', { class: `pill ink-${colour}` }, h('span', { 'aria-hidden': 'true' }, `${sign} `), words)),
      h('p', { class: 'line-of' }, h('strong', { class: 'big' }, percent(r.share)), h('span', { class: 'sub' }, ` of the ceilings · weight ${count(r.weight)}`)),
      share(r.share, 'share of the ceilings', 'admitted'),
      h('dl', { class: 'kv' }, facts.filter((f) => f !== null).map(([name, value]) => [h('dt', null, name), h('dd', null, value)])),
      problems(r).map(([kind, text]) => h('p', { class: `ink-${kind}` }, h('span', { 'aria-hidden': 'true' }, '! '), text)));
  }

  /** windows makes a row of each limit: of a rule with several windows one for each.
   * @param {Api.RegionalLimit[]} limits @returns {{ l: Api.RegionalLimit, of: Api.RegionalUnits, windows: Api.RegionalWindow[], first: boolean }[]} */
  const windows = (limits) => limits.flatMap((l) => (l.limits.length < 2 ? [{ l, of: l, windows: l.limits, first: true }]
    : l.limits.map((w, i) => ({ l, of: w.counted ?? l, windows: [w], first: i === 0 }))));

  /** @param {Api.RegionalLimit[]} limits */
  const limitsTable = (limits) => table({
    caption: 'Limits over all regions', rows: windows(limits), none: '', columns: [
      { title: 'Limit', cell: ({ l }) => [h('a', { href: ruleLink(ctx, l.domain, l.rule) }, visible(ctx.of(l.domain) + l.rule)), l.shadow ? [' ', h('span', { class: 'pill ink-shadow' }, 'In shadow')] : null] },
      { title: 'All regions together', cell: ({ l }) => promise(l) },
      { title: 'Ceiling here', cell: ({ l, windows, first }) => [windows.map(ceiling), l.overrides && first ? h('div', { class: 'sub' }, plural(l.overrides, 'override')) : null] },
      { title: 'Used here', number: true, cell: ({ l, of }) => [count(net(of.used)), h('div', { class: 'sub' }, l.over_percent || l.sync ? `${count(net(of.told))} told` : of.borrowed ? `${count(of.borrowed)} borrowed` : ' ')] },
      { title: 'Used elsewhere', number: true, cell: ({ l, of }) => (l.over_percent || l.sync ? [count(net(of.heard)), h('div', { class: 'sub' }, net(of.late) > 0 ? `${count(net(of.late))} more too late` : 'as heard')] : ['–', h('div', { class: 'sub' }, 'ceilings suffice')]) },
      { title: 'Admitted beyond the limit', number: true, cell: ({ l, of }) => [h('span', { class: of.over_units ? 'ink-refused' : null }, count(of.over_units)), h('div', { class: 'sub' }, l.over_percent || l.sync ? 'by all regions' : 'it cannot be')] },
      { title: 'Refused, though there was room', number: true, cell: ({ l, of }) => [h('span', { class: of.ceiling_refusals ? 'ink-near' : null }, count(of.ceiling_refusals)), h('div', { class: 'sub' }, l.sync ? 'there is no ceiling' : 'by the ceiling')] }],
  });

  /** @param {string[]} names each domain/rule */
  function each(names) {
    if (!names.length) return null;
    const shown = names.slice(0, 12);
    const domains = new Set(names.map((name) => name.slice(0, name.indexOf('/'))));
    return h('p', { class: 'sub each' }, names.length === 1 ? 'Each region counts this rule for itself: ' : `Each region counts these ${count(names.length)} rules for itself: `,
      shown.map((name, i) => {
        const at = name.indexOf('/');
        return [i ? ', ' : '', h('a', { href: ruleLink(ctx, name.slice(0, at), name.slice(at + 1)) }, visible(domains.size > 1 ? name : name.slice(at + 1)))];
      }), names.length > shown.length ? ` and ${count(names.length - shown.length)} more` : '', '.');
  }

  function draw() {
    const a = answer;
    fill(root, h('div', { class: 'head' }, h('h1', null, 'Regions')), h('p', { class: 'lead' }, lead(a)),
      h('div', { class: 'regions' }, [...a.regions].sort((x, y) => Number(!!y.own) - Number(!!x.own)).map((r) => region(r, a))),
      h('div', { class: 'grid' }, card('Limits over all regions', `units of all nodes of ${a.region}, since each started`, null,
        a.limits.length ? limitsTable(a.limits) : state('No rule holds over all regions', ['Say what they may admit together, as in ', h('code', null, 'consistency: {regions: {over: 0%}}'), '.']))),
      each(a.each_by_itself));
    ctx.nodes(a.nodes, false);
  }
  draw();
  return { title: 'Regions', every: 2000, async poll() { answer = await ask(); keepFocus(root, draw); } };
}
