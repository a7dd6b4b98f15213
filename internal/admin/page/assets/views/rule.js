// @ts-check
import { fillLarge, ranking } from '../parts/bars.js';
import { chart } from '../parts/chart.js';
import { heardAll, line, same } from '../parts/decision.js';
import { rollout } from '../parts/rollout.js';
import { append, card, count, fill, h, legend, percent, pill, plural, rate, sent, shareOf, significant, verdictOf, visible } from '../parts/text.js';
import { choosing, keepFocus, table } from '../parts/table.js';
import { ago, now, onlySince, span, when } from '../parts/time.js';
import { keyLink, known, refusedMost, seriesLegend, seriesOf } from './overview.js';
import { badge } from './rules.js';

/** @typedef {import('../app.js').Context} Context */

/** @param {string} title @param {import('../parts/text.js').Child} value @param {import('../parts/text.js').Child} [sub] */
const fact = (title, value, sub) => h('div', null, h('dt', null, title), h('dd', null, value, sub ? h('span', { class: 'sub' }, sub) : null));

/** @param {Api.Rule} r */
function facts(r) {
  const e = r.episodes;
  const ended = e.obeyed + e.early;
  const shadow = r.mode === 'shadow';
  return h('dl', { class: 'facts' },
    fact('Requests', count(r.met), `${rate(r.per_second)} /s · ${r.keys_error ? 'about ' : ''}${plural(r.keys, 'client')}`),
    shadow ? fact('Would refuse', shareOf(r.would_refuse, r.met), count(r.would_refuse)) : fact('Refused', shareOf(r.refused, r.met), `${count(r.refused)} · ${plural(r.keys_refused, 'client')}`),
    fact('Refusals of good clients', r.good.of && r.good.confidence ? shareOf(r.good.refused, r.good.of) : '–', !r.good.confidence ? 'nothing tells who is good' : `${count(r.good.keys)} of ${plural(r.good.all, 'good client')}${r.good.plus_minus ? ` ± ${percent(r.good.plus_minus)}` : ''}`),
    fact('Refused by this rule alone', r.refused ? shareOf(r.refused_alone, r.refused) : '–', 'no other rule refused'),
    fact('Retry-After obeyed', ended ? shareOf(e.obeyed, ended) : '–', `${count(e.obeyed)} obeyed, ${count(e.early)} early, ${count(e.gave_up)} gave up${e.left_out ? `, ${count(e.left_out)} left out` : ''}`),
    fact('Most asked by one client', percent(r.max_fill), r.max_fill > 1 ? 'of the limit: what was refused counts, too' : 'of the limit'),
    fact('Near the limit', count(r.near + r.soft), 'requests that passed near it, or in its soft margin'),
    r.banned ? fact('Refused by its ban', count(r.banned)) : null,
    r.errors ? fact('Errors', count(r.errors), 'of its expressions (if, cost)') : null,
    fact('Known', percent(r.known_share), ['of the requests that name a client', r.ok_share >= 0 ? `; ${percent(r.ok_share)} of those admitted were answered well` : '; answers are not seen here']));
}

/**
 * sampledNote says of which time the figures of clients are, where that is not the time shown.
 * @param {Api.Rule} r
 */
function sampledNote(r) {
  const from = new Date(r.sampled_from).getTime();
  if (Math.abs(from - new Date(r.from).getTime()) < 60_000) return null;
  return h('p', { class: 'sub' }, `What is told of clients is of the last ${span(Math.max(1, Math.round((now() - from) / 1000)))}.`);
}

/**
 * laterNote says which nodes count the rule from a later time on.
 * @param {Api.Rule & {nodes: Api.Nodes}} r
 */
function laterNote(r) {
  const list = (r.nodes.apart?.later ?? []).filter((x) => !x.rule || (x.rule === r.name && x.domain === r.domain));
  return list.length ? h('p', { class: 'sub ink-near' }, list.map((x, i) => [i ? '; ' : '', visible(x.node), x.rule ? ' has this rule since ' : ' counts since ', when(x.since)]), ': it counted anew then.') : null;
}

/** @param {Api.Verdict} v */
function verdictPart(v) {
  const patch = v.proposal?.patch;
  return h('div', { class: 'verdict' },
    h('p', { class: 'lead' }, visible(v.sentence)),
    v.proposal ? h('p', null, h('strong', null, 'Proposal: '), visible(v.proposal.sentence)) : null,
    patch ? h('details', { class: 'figures' }, h('summary', null, 'Patch'), h('pre', { class: 'source diff', tabindex: '0' }, patch.split('\n').map((l) => [h('span', { class: /^\+[^+]/.test(l) ? 'add' : /^-[^-]/.test(l) ? 'del' : null }, visible(l)), '\n']))) : null);
}

/**
 * slider shows how many clients a limit of another size would refuse.
 * @param {Context} ctx
 * @param {Api.Rule} r
 */
function slider(ctx, r) {
  const curve = [...(r.curve ?? [])].sort((a, b) => a.limit - b.limit);
  const first = r.windows?.[0];
  const of = r.windows?.find((w) => w.name === r.curve_of) ?? first;
  const now = of?.limit ?? 0;
  if (curve.length < 2) {
    const inFlight = r.windows?.length && r.windows.every((w) => !w.window);
    return h('p', { class: 'none' }, inFlight ? 'Nothing tells what another limit on requests in flight would do.' : 'Too few clients were seen to say what another limit would do.');
  }
  const start = Math.max(0, curve.findIndex((p) => p.limit >= now));
  const chosen = curve.findIndex((p) => p.limit === Number(ctx.query.get('limit')));
  const said = h('p', { 'aria-live': 'polite' });
  const go = h('p', { class: 'actions' });
  const most = Math.max(1, ...curve.map((p) => p.keys));
  const path = h('path', { d: `M0 60 ${curve.map((p, i) => `L${significant((i / (curve.length - 1)) * 300, 4)} ${significant(60 - (p.keys / most) * 56, 4)}`).join(' ')} L300 60 Z`, fill: 'currentColor' });
  const mark = h('line', { y1: 0, y2: 60, stroke: 'currentColor', 'stroke-width': 2, 'vector-effect': 'non-scaling-stroke' });
  const input = /** @type {HTMLInputElement} */ (h('input', { type: 'range', min: 0, max: curve.length - 1, step: 1, value: String(chosen >= 0 ? chosen : start), 'aria-label': 'Limit to look at', oninput: move }));
  function move() {
    const p = curve[Number(input.value)];
    const x = (Number(input.value) / (curve.length - 1)) * 300;
    mark.setAttribute('x1', String(x));
    mark.setAttribute('x2', String(x));
    const unit = of?.window ? ` in ${span(of.window)}` : '';
    input.setAttribute('aria-valuetext', `${count(p.limit)}${unit}`);
    fill(said, h('strong', null, `${count(p.limit)}${unit}`), p.limit === now ? ' (in force)' : '', ` would refuse ${p.plus_minus ? 'about ' : ''}${plural(Math.round(p.keys), 'client')}${p.plus_minus ? ` ± ${count(Math.round(p.plus_minus))}` : ''}`, p.good_keys === undefined ? '; nothing tells how many good ones.' : [', ', h('strong', null, plural(Math.round(p.good_keys), 'good one')), '.']);
    fill(go, ctx.can('source') && p.limit !== now && of === first ? h('a', { class: 'btn small', href: ctx.link('/try', { rule: `${r.domain}/${r.name}`, limit: String(p.limit) }) }, `Try ${count(p.limit)}`) : null);
  }
  move();
  return h('div', null, h('svg', { viewBox: '0 0 300 60', preserveAspectRatio: 'none', class: 'c-admitted curve', 'aria-hidden': 'true' }, path, h('g', { class: 'c-soft' }, mark)), input, said, go,
    h('details', { class: 'figures' }, h('summary', null, 'Figures'), table({
      caption: 'Clients that a limit would refuse', rows: curve, none: '', columns: [
        { title: 'Limit', cell: (p) => count(p.limit) }, { title: 'Clients', number: true, cell: (p) => `${count(p.keys)}${p.plus_minus ? ` ± ${count(p.plus_minus)}` : ''}` }, { title: 'Good ones', number: true, cell: (p) => (p.good_keys === undefined ? '–' : count(p.good_keys)) }],
    })));
}

/** @param {Context} ctx @param {HTMLElement} root @returns {Promise<import('../app.js').View>} */
export async function show(ctx, root) {
  const [domain, name] = ctx.params;
  const path = `${encodeURIComponent(domain)}/${encodeURIComponent(name)}`;
  const of = `domain=${encodeURIComponent(domain)}&limit=${encodeURIComponent(name)}`;
  const askRule = () => /** @type {Promise<Api.Rule & {nodes: Api.Nodes}>} */ (ctx.api(`/api/v1/insight/rules/${path}?over=${ctx.over}`, { signal: ctx.signal }));
  /** @param {string} outcome @param {number} n */
  const askDecisions = (outcome, n) => /** @type {Promise<Api.Decisions>} */ (ctx.api(`/api/v1/decisions?${of}&outcome=${outcome}&n=${n}&nodes=all`, { signal: ctx.signal }));
  let r = await askRule();
  // Decisions that this rule refused, or would have, and those that came near it: those on which
  // only other rules had a say are not shown here.
  /** @type {Api.Decision[]} */
  let refused = [];
  /** @type {Api.Decision[]} */
  let close = [];
  /** @param {Api.Decision} d */
  const mine = (d) => d.domain === domain ? (d.limits ?? []).filter((l) => l.rule === name) : [];
  /** @param {Api.Decision[]} list newest first */
  const take = (list) => {
    /** @param {Api.Decision[]} to @param {(d: Api.Decision) => boolean} ok @param {number} most */
    const into = (to, ok, most) => [...list.filter(ok), ...to].filter((d, i, all) => all.findIndex((x) => same(x, d)) === i).sort((a, b) => (a.time < b.time ? 1 : -1)).slice(0, most);
    refused = into(refused, (d) => mine(d).some((l) => !l.allowed), 8);
    close = into(close, (d) => mine(d).length > 0 && mine(d).every((l) => l.allowed) && mine(d).some((l) => l.near_limit || l.soft_exceeded), 4);
  };
  /** @type {Api.Key[] | null} */
  let keys = null;

  const graph = chart({ label: `Requests that met ${name}`, height: 200 });
  const head = h('div', null);
  const fillBox = h('div', null);
  const what = h('div', null);
  const windows = h('section', { class: 'card', hidden: true });
  const top = h('div', null);
  const chosen = choosing(ctx, () => { void askRule().then(renew); });
  const near = h('div', null);
  const by = h('section', { class: 'card', hidden: true });
  const recent = h('div', null);
  const shadow = r.mode === 'shadow';
  const shadows = new Set(shadow ? [`${domain}/${name}`] : []);
  const trial = rollout(ctx, r);
  fill(root, head, h('div', { class: 'grid' }, trial.el,
    h('section', { class: 'card s8' }, h('header', null, h('h2', null, 'Over time'), legend(shadow ? [...seriesLegend.slice(0, 2), ['shadow', 'would be refused']] : seriesLegend)), graph.el),
    card('Another limit', 'how many clients it would refuse', 's4', what),
    h('div', { class: 's6 stack' },
      card('Peak per client', 'clients by how many percent of the limit each asked for at most', null, fillBox),
      card('Refused most', ['last minute ', chosen.button], null, top)),
    h('div', { class: 's6 stack' },
      windows, by,
      card('Near the limit now', null, null, near),
      card('Decisions', null, null, recent))));
  fill(what, slider(ctx, r));
  void source();

  function draw() {
    const v = r.verdicts?.[0];
    const since = onlySince(r.from, ctx.over);
    fill(head,
      h('p', { class: 'crumb' }, h('a', { href: ctx.link('/rules') }, 'Rules'), ` / ${visible(r.domain)}`),
      h('div', { class: 'head' }, h('h1', null, visible(r.name)), pill(v?.verdict), badge(r),
        h('span', { class: 'sub' }, visible([r.limits?.join(', '), r.per?.length ? `per ${r.per.join(', ')}` : 'for all together'].filter(Boolean).join(' '))),
        h('span', { class: 'actions' }, ctx.can('source') ? h('a', { class: 'btn', href: ctx.link('/try', { rule: `${r.domain}/${r.name}` }) }, 'Try a change') : null,
          ctx.can('act') ? h('button', { class: 'btn', type: 'button', onclick: () => { void act(); } }, 'Ban a key') : null,
          ctx.can('act') && r.windows?.length && !shadow ? h('button', { class: 'btn', type: 'button', onclick: async () => { (await import('../parts/grant.js')).grant(ctx, { rules: [r] }, () => {}); } }, r.per?.length ? 'Grant a key' : 'Grant') : null)),
      h('p', { class: 'sub' }, `${r.file ? `${visible(r.file)}:${r.line} · ` : ''}in force for ${ago(r.since)}${v ? ` · ${v.confidence} confidence in the verdict` : ''}${since ? ` · figures ${since}` : ''}`),
      v ? verdictPart(v) : h('p', { class: 'lead' }, 'Nothing can be said of it yet.'),
      (r.verdicts ?? []).slice(1).map((x) => h('p', { class: 'sub' }, `Also: ${verdictOf(x.verdict)[0].toLowerCase()}. `, visible(x.sentence))),
      h('section', { class: 'card' }, facts(r), sampledNote(r), laterNote(r)));
    if (r.series?.t?.length) {
      const step = r.series.t.length > 1 ? r.series.t[1] - r.series.t[0] : 60;
      const series = known(r.series);
      graph.draw(series.t, step, seriesOf(series));
    }
    fill(fillBox, fillLarge(r.fill ?? []), r.keys_error ? h('p', { class: 'sub' }, `Of a sample: ± ${percent(r.keys_error * 1.96)}.`) : null);
    // What a single window says stands above.
    windows.hidden = (r.windows?.length ?? 0) < 2;
    fill(windows, h('header', null, h('h2', null, 'Limits')), table({
      caption: 'Limits', rows: r.windows ?? [], none: 'It has no limit.', columns: [
        { title: 'Limit', cell: (w) => [visible(w.allows), h('div', { class: 'sub' }, visible(w.name))] },
        { title: 'Refused', number: true, cell: (w) => count(w.refused) },
        { title: 'Most asked by one client', number: true, cell: (w) => percent(w.max_fill) }],
    }));
    trial.draw(r);
    drawTop();
    const single = (r.windows?.length ?? 0) < 2;
    fill(near, ranking([...r.near_now ?? []].sort((a, b) => b.fill - a.fill).slice(0, 6).map((k) => ({
      name: ctx.can('find') ? h('a', { href: keyLink(ctx, k.domain, k.key) }, sent(k.key)) : sent(k.key),
      words: `${percent(k.fill)} ${k.fill > 1 ? 'asked for' : 'used'}${single ? '' : ` of ${visible(k.limit)}`}`,
    })), 'Nobody is near the limit.'));
    // Where all came by one door, or from one country, there is nothing to compare.
    const groups = Object.entries(r.by ?? {}).filter(([, list]) => (list?.length ?? 0) > 1);
    by.hidden = !groups.length;
    fill(by, groups.map(([title, list]) => [h('header', null, h('h2', null, `Refused by ${title}`)), ranking(list.slice(0, 6).map((c) => {
      const part = c.count / list.reduce((s, x) => s + x.count, 0);
      return { name: sent(c.value || '–'), words: `${count(c.count)}, ${percent(part)}`, part, label: `${c.value}:` };
    }), '')]));
    ctx.nodes(r.nodes);
  }
  const drawTop = () => fill(top, refusedMost(ctx, (keys ?? r.top ?? []).slice(0, 8), 'Nobody was refused in the last minute.', shadows, true, chosen.box));
  function drawDecisions() {
    /** @param {string} title @param {Api.Decision[]} list */
    const part = (title, list) => list.length ? [h('h3', null, title), h('ul', { class: 'log' }, list.map((d) => h('li', null, line(d, ctx, name))))] : null;
    keepFocus(recent, () => fill(recent, part(shadow ? 'Would be refused' : 'Refused', refused), part('Near', close), refused.length + close.length ? null : h('p', { class: 'none' }, 'No refusal by this rule is kept, and nothing that came near it.'),
      h('p', { class: 'sub more' }, h('a', { href: ctx.link('/decisions', { rule: name, of: domain }) }, 'All decisions of this rule'))));
  }
  /** source shows the rule as it is written. */
  async function source() {
    if (!ctx.can('source') || !r.file) return;
    const s = await /** @type {Promise<Api.Source>} */ (ctx.api('/api/v1/rules/source', { signal: ctx.signal })).catch(() => null);
    const file = s && Object.keys(s.files).find((f) => f === r.file || r.file.endsWith(`/${f}`) || f.endsWith(`/${r.file}`));
    if (!s || !file) return;
    const lines = s.files[file].split('\n');
    const from = Math.max(0, r.line - 1);
    if (from >= lines.length) return;
    append(root, [h('div', { class: 'grid' }, card('Source', `${visible(file)}:${r.line}`, null, h('pre', { class: 'source', tabindex: '0', 'aria-label': 'Source' }, lines.slice(Math.max(0, from - 3), from + 24).map((l, i) => h('span', { class: i === Math.min(3, from) ? 'hit' : null }, `${visible(l) || ' '}\n`)))))]);
  }
  async function act() {
    const { ask, partsOf, scopeOf, whereField } = await import('../parts/act.js');
    ask({ title: 'Ban a key', text: 'All requests of this key are refused until the ban ends.', button: 'Ban', bad: true,
      fields: [{ name: 'key', label: 'Key', hint: r.per?.length ? `as in ${r.per.map((p) => `${p}=…`).join(', ')}` : '', required: true }, whereField, { name: 'for', label: 'For', value: '1h', options: ['15m', '1h', '6h', '1d', '7d'] }, { name: 'reason', label: 'Reason, for the audit log' }],
      async done(v) { await ctx.api('/api/v1/bans', { method: 'POST', body: { domain, limit: name, key: partsOf(v.key, r.per), for: v.for, reason: v.reason, ...scopeOf(v.scope) } }); ctx.go(ctx.link('/bans')); } });
  }
  draw();
  drawDecisions();
  const more = async () => {
    const lists = await Promise.all([askDecisions(shadow ? 'shadow_denied' : 'denied', 50), askDecisions('near_limit', 20), askDecisions('soft', 20)]);
    take(lists.flatMap((a) => a.decisions));
    drawDecisions();
    return lists.every(heardAll);
  };
  await more().catch(() => {});
  /** renew shows new figures; of a rule that went on from shadow, or to another share, the whole view. @param {Api.Rule & {nodes: Api.Nodes}} x */
  const renew = (x) => { const on = x.mode !== r.mode || x.trial?.enforce_percent !== r.trial?.enforce_percent; r = x; if (on) ctx.again(); else keepFocus(root, draw); };
  const slow = setInterval(() => { if (!document.hidden) void askRule().then(renew).catch(() => {}); }, 10000);
  return {
    title: name,
    stream: { views: 'keys,decisions', limit: name, domain, ...((r.nodes?.asked ?? 1) > 1 ? { nodes: 'all' } : {}) },
    on(topic, data) {
      if (topic === 'keys') { keys = (data.keys ?? []).filter((/** @type {Api.Key} */ k) => k.rule === name); keepFocus(top, drawTop); }
      if (topic === 'decisions') {
        take((data.decisions ?? [data]).filter((/** @type {Api.Decision} */ d) => d.time));
        drawDecisions();
      }
    },
    opened: more,
    async poll() { const [x] = await Promise.all([askRule(), more()]); renew(x); },
    leave() { clearInterval(slow); graph.leave(); },
  };
}

