// @ts-check
import { ranking } from '../parts/bars.js';
import { chart } from '../parts/chart.js';
import { heardAll, line, same } from '../parts/decision.js';
import { card, commands, count, fill, h, legend, percent, plural, rate, seconds, sent, shareOf, verdictOf, visible } from '../parts/text.js';
import { choosing, keepFocus } from '../parts/table.js';
import { alike, outages } from '../parts/stream.js';
import { now, onlySince, outageTime, overSeconds, overWords, span } from '../parts/time.js';
import { changesLine, rulesTable, where } from './rules.js';

/** @typedef {import('../app.js').Context} Context */

/** @param {Context} ctx @param {string} domain @param {string} rule */
export const ruleLink = (ctx, domain, rule) => ctx.link(`/rules/${encodeURIComponent(domain)}/${encodeURIComponent(rule)}`);

/** @param {Context} ctx @param {string} domain @param {string} key */
export const keyLink = (ctx, domain, key) => ctx.link(`/keys/${encodeURIComponent(domain)}/${encodeURIComponent(key)}`);

/** times is how often a key came, as exactly as that is known. @param {Api.Key} k */
export const times = (k) => (k.estimated ? 'about ' : '') + count(k.count);

/** atLeast is how often it came for certain. @param {Api.Key} k */
export const atLeast = (k) => (k.over && !k.estimated ? `at least ${count(k.count - k.over)}` : '');

/** eventWords says what is marked on the line of time. @param {Api.Happening} e */
function eventWords(e) {
  switch (e.kind) {
    case 'rules': return [`rules changed${e.version ? ` to version ${e.version.slice(0, 12)}` : ''}`, where(e.nodes), changesLine(e)].filter(Boolean).join(', ');
    case 'rules_broken': return 'the rules in the source are broken';
    case 'saturated': return `saturated${e.signal ? `: ${e.signal}` : ''}`;
    case 'start': return 'weir started';
  }
  return e.kind;
}

/**
 * seriesOf makes of a series what a chart draws: what is near a limit is part of what is admitted.
 * @param {Api.Series} s
 */
export function seriesOf(s) {
  const near = s.near ?? s.t.map(() => 0);
  /** @type {import('../parts/chart.js').Line[]} */
  const lines = [
    { title: 'refused', colour: 'refused', values: s.refused },
    { title: 'near a limit', colour: 'near', values: near },
    { title: 'admitted', colour: 'admitted', values: s.admitted.map((a, i) => Math.max(0, a - near[i] - (s.shadow?.[i] ?? 0))) },
  ];
  if (s.shadow?.some((v) => v > 0)) lines.splice(1, 0, { title: 'would be refused', colour: 'shadow', values: s.shadow });
  return lines;
}

/**
 * known cuts from a series the time from which there is nothing yet, and leaves at least a dozen
 * steps.
 * @param {Api.Series} s
 * @returns {Api.Series & {since: number | null}} since is when the first count was, in
 * Unix seconds, where there is much nothing before it
 */
export function known(s) {
  const first = s.t.findIndex((_, i) => s.admitted[i] || s.refused[i]);
  if (first < s.t.length / 10) return { ...s, since: null };
  const from = Math.max(0, Math.min(first - 1, s.t.length - 12));
  /** @param {number[]} a */
  const cut = (a) => a.slice(from);
  return { t: cut(s.t), admitted: cut(s.admitted), near: cut(s.near ?? s.t.map(() => 0)), refused: cut(s.refused), shadow: s.shadow?.length ? cut(s.shadow) : undefined, since: s.t[first] };
}

/** @type {[string, string][]} */
export const seriesLegend = [['admitted', 'admitted'], ['near', 'near a limit'], ['refused', 'refused']];

/**
 * joined puts the last steps of a series, as they are now, in the place of those it had, and drops
 * as many at its beginning as are new.
 * @param {Api.Series} s
 * @param {Api.Series} last
 * @returns {Api.Series}
 */
function joined(s, last) {
  const keep = s.t.findIndex((t) => t >= last.t[0]);
  const upTo = keep < 0 ? s.t.length : keep;
  const from = Math.max(0, upTo + last.t.length - s.t.length);
  /** @param {number[] | undefined} a @param {number[] | undefined} b */
  const join = (a, b) => [...(a ?? s.t.map(() => 0)).slice(from, upTo), ...(b ?? last.t.map(() => 0))];
  return { t: join(s.t, last.t), admitted: join(s.admitted, last.admitted), near: join(s.near, last.near), refused: join(s.refused, last.refused), shadow: join(s.shadow, last.shadow) };
}

/** outageList says when stores were away, and what nodes did meanwhile. @param {Api.Outage[]} list */
export const outageList = (list) => h('ul', { class: 'looks' }, list.map((o) => h('li', null,
  h('span', { class: `mark ${o.to ? 'near' : 'refused'}`, 'aria-hidden': 'true' }, '!'),
  h('div', null, h('strong', null, `${visible(o.title)} ${outageTime(o)}`), `: ${visible(o.summary)}`,
    h('p', null, alike(o).map(([does, nodes]) => `${nodes.map((n) => `${visible(n.node)}${n.alone ? ` (${count(n.alone)} alone)` : ''}`).join(', ')}: ${visible(does)}`).join('; '), o.cause ? ` (${visible(o.cause)})` : '')))));

/**
 * lead marks in a sentence what was refused, and links what it mentions.
 * @param {Context} ctx @param {string} s @param {Set<string>} names @param {Api.Mention[]} mentions
 * @returns {import('../parts/text.js').Child}
 */
function lead(ctx, s, names, mentions) {
  for (const m of mentions) {
    const at = m.kind === 'key' && !ctx.can('find') ? -1 : s.search(new RegExp(`(?<![\\w=])${m.text.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&')}(?![\\w=])`));
    if (at < 0) continue;
    const href = m.kind === 'bans' ? ctx.link('/bans') : m.kind === 'key' ? keyLink(ctx, m.domain ?? '', m.name ?? '') : ruleLink(ctx, m.domain ?? '', m.name ?? '');
    return [lead(ctx, s.slice(0, at), names, mentions), h('a', { href }, visible(m.text)), lead(ctx, s.slice(at + m.text.length), names, mentions)];
  }
  return visible(s).split(/(\d[\d.,]* % (?:were|was) refused|[\w.:/-]*\w)/).map((part) => {
    if (/ refused$/.test(part)) return h('strong', { class: 'refused' }, part);
    return names.has(part) ? h('strong', null, part) : part;
  });
}

/** @param {string} title @param {string} big @param {import('../parts/text.js').Child} sub */
const tile = (title, big, sub) => h('section', { class: 'card tile' }, h('h2', null, title), h('p', { class: 'big' }, big), h('p', { class: 'sub' }, sub));

/** compared says how much more or less it is than a day before. @param {Api.Overview} o */
function compared(o) {
  if (!o.before?.requests) return null;
  const more = o.requests / o.before.requests - 1;
  if (Math.abs(more) < 0.005) return 'as many as a day ago';
  return `${percent(Math.abs(more)).replace(/\.\d+ /, ' ')} ${more > 0 ? 'more' : 'fewer'} than a day ago`;
}

/** @param {Context} ctx @param {Api.Verdict} v */
function look(ctx, v) {
  const [words, colour, sign] = verdictOf(v.verdict);
  return h('li', null, h('span', { class: `mark ${colour}`, 'aria-hidden': 'true' }, sign),
    h('div', null, h('a', { href: ruleLink(ctx, v.domain, v.rule) }, `${visible(ctx.of(v.domain) + v.rule)}: ${words.toLowerCase().replace('retry-after', 'Retry-After')}`),
      h('p', null, visible(v.sentence), v.proposal?.sentence ? ` ${visible(v.proposal.sentence)}` : '')));
}

/**
 * refusedMost ranks keys. The bars compare them with each other, by how often each was refused.
 * @param {Context} ctx
 * @param {Api.Key[]} keys
 * @param {string} none
 * @param {Set<string> | undefined} shadows rules that only would refuse, as domain/name
 * @param {boolean} alone all keys are of one rule, which the words leave out
 * @param {(k: Api.Key, ...name: import('../parts/text.js').Child[]) => HTMLElement} box lets a key be
 * chosen
 */
export function refusedMost(ctx, keys, none, shadows, alone, box) {
  const most = Math.max(1, ...keys.map((k) => k.count));
  return ranking(keys.map((k) => ({
    name: box(k, ctx.can('find') ? h('a', { href: keyLink(ctx, k.domain, k.key) }, sent(k.key)) : sent(k.key)),
    words: [alone ? '' : [visible(k.domain === commands ? `${k.limit} (${k.rule})` : ctx.of(k.domain) + k.rule), ' · '], `${times(k)} ${k.shadow || shadows?.has(`${k.domain}/${k.rule}`) ? 'would be refused' : 'refused'}, ${percent(k.refused_share)} of its requests`, atLeast(k) && ` (${atLeast(k)})`, k.banned_until ? ' · banned' : ''],
    part: k.count / most, kind: k.shadow || shadows?.has(`${k.domain}/${k.rule}`) ? 'shadow' : 'refused', label: 'Of the key refused most:',
  })), none);
}

/** @param {Context} ctx @param {HTMLElement} root @returns {Promise<import('../app.js').View>} */
export async function show(ctx, root) {
  const query = new URLSearchParams({ over: ctx.over });
  if (ctx.domain) query.set('domain', ctx.domain);
  const of = ctx.domain ? `&domain=${encodeURIComponent(ctx.domain)}` : '';
  const askOverview = () => /** @type {Promise<Api.Overview>} */ (ctx.api(`/api/v1/insight?${query}`, { signal: ctx.signal }));
  // Those that refuse most; of a thousand, all would be more than a megabyte.
  const askRules = () => /** @type {Promise<Api.Rules>} */ (ctx.api(`/api/v1/insight/rules?${query}&n=12`, { signal: ctx.signal }));
  const askKeys = () => /** @type {Promise<{keys: Api.Key[]}>} */ (ctx.api(`/api/v1/insight/keys?by=refused&over=1m&n=6${of}`, { signal: ctx.signal }));
  const askDecisions = () => /** @type {Promise<Api.Decisions>} */ (ctx.api(`/api/v1/decisions?outcome=denied&n=10&nodes=all${of}`, { signal: ctx.signal }));
  let [o, list] = await Promise.all([ctx.first.insight ?? askOverview(), ctx.first.rules ?? askRules()]);
  /** @type {Api.Key[]} */
  let keys = [];
  /** @type {Api.Decision[] | null} */
  let decisions = null; // not asked for yet
  let shown = '';

  const head = h('div', null);
  const graph = chart({ label: 'Requests', height: innerWidth > 640 ? 310 : 240 });
  const looks = h('section', { class: 'card s4' });
  const rules = h('section', { class: 'card' });
  const away = h('section', { class: 'card', hidden: true });
  const top = h('div', null);
  const chosen = choosing(ctx, () => { void askKeys().then((k) => { keys = k.keys; drawKeys(); }); });
  const recent = h('div', null);
  const shareNote = h('span', null);
  const legendBox = h('div', null);
  fill(root, head, h('div', { class: 'grid' }, away,
    h('section', { class: 'card s8' }, h('header', null, h('h2', null, 'Requests'), legendBox), graph.el),
    looks, rules,
    card('Refused most', ['last minute ', chosen.button], 's6', top),
    card('Decisions', shareNote, 's6', recent)));

  function drawHead() {
    const names = new Set(list.rules.flatMap((r) => [r.name, `${r.domain}/${r.name}`]));
    const { since: begun } = known(o.series);
    const since = begun ? `since ${span(Math.max(1, now() / 1000 - begun))} only` : onlySince(o.from, ctx.over);
    const g = o.good_refused;
    fill(head, h('div', { class: 'head' }, h('h1', null, 'Overview'), since ? h('span', { class: 'pill ink-grey' }, since) : null),
      h('p', { class: 'lead' }, o.sentences?.length ? o.sentences.map((s) => [lead(ctx, s, names, o.mentions ?? []), ' ']) : o.requests ? `Of ${plural(o.requests, 'request')} in the last ${overWords(ctx.over)} ${shareOf(o.refused, o.requests)} were refused.` : 'No request has been decided yet.'),
      h('div', { class: 'tiles' },
        tile('Requests', `${rate(o.per_second)} /s`, [count(o.requests), compared(o) ? ` · ${compared(o)}` : '']),
        tile('Refused', shareOf(o.refused, o.requests), [plural(o.refused, 'request'), o.banned ? [' · ', h('a', { href: ctx.link('/bans') }, `${count(o.banned)} by bans`), `, ${count(o.refused - o.banned)} by limits`] : null]),
        tile('Refusals of good clients', g.confidence ? shareOf(g.requests, g.of) : '–', !g.confidence ? 'nothing tells who is good' : `${count(g.requests)}${g.plus_minus ? ` ± ${count(g.plus_minus)}` : ''} of ${plural(g.of, 'refusal')} · ${plural(g.clients, 'client')}${g.confidence === 'low' && g.requests ? ' · low confidence' : ''}`),
        tile('Near a limit', count(o.near), `of ${plural(o.clients, 'client')}`),
        tile('Time to decide, p99', seconds(o.p99), `${plural(o.store_errors, 'store error')}`)));
  }
  function drawAway() {
    const list = outages.list.filter((x) => !x.to || Date.parse(x.to) > now() - overSeconds(ctx.over) * 1000);
    away.hidden = !list.length;
    fill(away, h('header', null, h('h2', null, 'Outages'), list.length > 3 && ctx.can('find') ? h('div', { class: 'sub' }, h('a', { href: ctx.link('/history') }, `All ${count(list.length)}`)) : null), outageList(list.slice(0, 3)));
  }
  function drawChart() {
    const series = known(o.series);
    const lines = seriesOf(series);
    const marks = (o.events ?? []).map((e) => ({ t: e.t, until: e.until, words: eventWords(e) }));
    /** @type {[string, string][]} */
    const words = [...seriesLegend];
    if (lines.length > 3) words.push(['shadow', 'would be refused']);
    if (marks.some((m) => !m.until)) words.push(['rule', 'rules changed, start']);
    if (marks.some((m) => m.until)) words.push(['sat', 'saturated']);
    fill(legendBox, legend(words));
    graph.draw(series.t, o.step, lines, marks);
  }
  function drawRest() {
    const n = o.needs_a_look ?? [];
    const real = list.rules.filter((r) => !r.command);
    keepFocus(looks, () => fill(looks, h('header', null, h('h2', null, 'Needs a look'), h('div', { class: 'sub' }, n.length ? `${count(n.length)} of ${plural(list.total, 'rule')}` : '')),
      n.length ? h('ul', { class: 'looks' }, n.slice(0, 4).map((v) => look(ctx, v))) : h('p', { class: 'none' }, !real.length ? 'No rules are in force.' : real.every((r) => !r.verdicts?.length || r.verdicts[0].verdict === 'too_early') ? 'Nothing yet: it is too early to judge the rules.' : 'Nothing: no rule is too strict, too loose or without use, as far as is known.'),
      n.length > 4 ? h('p', { class: 'more' }, h('a', { href: ctx.link('/rules') }, `All ${count(n.length)}`)) : null));
    const badge = document.querySelector('[data-view=rules]');
    if (badge) { badge.querySelector('.count')?.remove(); if (n.length) badge.append(h('span', { class: 'count' }, count(n.length), h('span', { class: 'sr' }, ' need a look'))); }
    const most = [...list.rules].sort((a, b) => b.refused + b.would_refuse - a.refused - a.would_refuse || b.met - a.met);
    keepFocus(rules, () => fill(rules, h('header', null, h('h2', null, 'Rules'), h('div', { class: 'sub' }, 'Peak per client: how many clients asked for up to 10 %, 20 % … and over 100 % of the limit')), rulesTable(ctx, most),
      list.total > real.length ? h('p', { class: 'sub more' }, h('a', { href: ctx.link('/rules') }, `All ${count(list.total)} rules`)) : null));
  }
  const drawKeys = () => keepFocus(top, () => fill(top, refusedMost(ctx, keys, 'Nobody was refused in the last minute.', new Set(list.rules.filter((r) => r.mode === 'shadow').map((r) => `${r.domain}/${r.name}`)), false, chosen.box)));
  function drawDecisions() {
    if (!decisions) return;
    const all = decisions;
    keepFocus(recent, () => fill(recent, all.length ? h('ul', { class: 'log' }, all.slice(0, 10).map((d) => h('li', null, line(d, ctx)))) : h('p', { class: 'none' }, 'No refusal is kept.')));
    fill(shareNote, `refused${shown ? ` · ${shown} shown` : ''}`);
  }
  function draw() { drawHead(); drawAway(); drawChart(); drawRest(); ctx.nodes(o.nodes); }
  draw();
  drawKeys();
  /** @param {Api.Decision[]} news */
  const take = (news) => {
    decisions = [...news, ...(decisions ?? [])].filter((d, i, all) => all.findIndex((x) => same(x, d)) === i).sort((a, b) => Date.parse(b.time) - Date.parse(a.time)).slice(0, 10);
    drawDecisions();
  };
  const last = () => askDecisions().then((d) => { take(d.decisions); return heardAll(d); });
  const more = () => Promise.all([askKeys().then((k) => { keys = k.keys; drawKeys(); }), last()]);

  const again = async () => {
    [o, list] = await Promise.all([askOverview(), askRules()]);
    draw();
  };
  // The rules and the whole series are asked for now and then; the stream brings the rest.
  const unwatch = outages.watch(drawAway);
  const slow = setInterval(() => { if (!document.hidden) void again().catch(() => {}); }, 30000);
  return {
    title: 'Overview',
    stream: { views: 'overview,keys,decisions', outcome: 'denied', over: ctx.over, ...(ctx.domain ? { domain: ctx.domain } : {}), ...(o.nodes.asked > 1 ? { nodes: 'all' } : {}) },
    on(topic, data) {
      if (topic === 'overview') {
        const series = !data.series?.t?.length ? o.series : data.partial ? joined(o.series, data.series) : data.series;
        o = { ...o, ...data, series };
        drawHead();
        if (data.series?.t?.length) drawChart();
        ctx.nodes(o.nodes);
      } else if (topic === 'keys') {
        keys = (data.keys ?? []).slice(0, 6);
        drawKeys();
      } else if (topic === 'decisions') {
        shown = data.shown && data.shown !== 'all' ? data.shown : '';
        take((data.decisions ?? [data]).filter((/** @type {Api.Decision} */ d) => d.time && !d.allowed).reverse());
      }
    },
    opened: last, // the stream begins with the keys, but not with the decisions that are past
    async poll() { await Promise.all([again(), more()]); },
    leave() { clearInterval(slow); unwatch(); graph.leave(); },
  };
}

