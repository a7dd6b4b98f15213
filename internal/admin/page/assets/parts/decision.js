// @ts-check
// Decisions: a line of one, and its story in sentences.
import { count, h, sent, visible } from './text.js';
import { clock, left, now, span, when } from './time.js';

/** What outcomes are called. @type {Record<string, [string, string]>} */
export const outcomes = {
  denied: ['refused', 'refused'],
  shadow_denied: ['refused in shadow', 'shadow'],
  soft: ['in the soft margin', 'near'],
  near_limit: ['near a limit', 'near'],
  allowed: ['admitted', 'good'],
};

/** mainLimit is the limit that made the outcome; a server puts it first. @param {Api.Decision} d */
export const mainLimit = (d) => d.limits?.[0];

/** @type {Record<string, string>} */
const passed = { shadow_denied: 'shadow', soft: 'soft', near_limit: 'near' };

/** status is what HTTP doors answer, or how it passed where it nearly did not. @param {Api.Decision} d @param {string} outcome */
const statusOf = (d, outcome = d.outcome) => (d.allowed ? passed[outcome] ?? 'ok' : d.banned ? 'ban' : '429');

/** same tells whether two decisions are one: a masked one has no id. @param {Api.Decision} x @param {Api.Decision} y */
export const same = (x, y) => (x.decision || y.decision ? x.decision === y.decision : x.time === y.time && JSON.stringify(x) === JSON.stringify(y));

/** heardAll tells whether all nodes have told their decisions. @param {Api.Decisions} a */
export const heardAll = (a) => !a.nodes || a.nodes.answered >= a.nodes.asked;

/** what was asked, as far as the rules looked at it. @param {Api.Decision} d */
export function what(d) {
  const a = d.attributes ?? {};
  return [a.method, a.path].filter(Boolean).join(' ');
}

/**
 * line is a decision in one line, which links to all of it.
 * @param {Api.Decision} d
 * @param {import('../app.js').Context} ctx
 * @param {string} [rule] the limit of this rule is shown, not the one that matters most
 */
export function line(d, ctx, rule) {
  const l = (rule ? d.limits?.find((x) => x.rule === rule) : null) ?? mainLimit(d);
  const outcome = rule && l && d.allowed ? (!l.allowed ? 'shadow_denied' : l.soft_exceeded ? 'soft' : l.near_limit ? 'near_limit' : 'allowed') : d.outcome;
  const [words, colour] = outcomes[outcome] ?? [outcome, 'grey'];
  const asked = what(d);
  const after = !d.allowed && d.retry_after ? `again in ${span(d.retry_after)}` : '';
  const open = ctx.can('find') && d.decision;
  return h(open ? 'a' : 'div', { class: 'line', href: open ? ctx.link(`/decisions/${encodeURIComponent(d.decision)}`) : null },
    h('span', { class: 'ink-grey' }, clock(d.time)),
    h('span', { class: `status ink-${colour}`, title: words }, statusOf(d, outcome)), h('span', { class: 'sr' }, words),
    asked ? sent(asked, 'what') : null,
    l?.key ? sent(l.key, 'key') : null,
    h('span', { class: 'why' }, [l ? rule ? '' : visible(ctx.of(d.domain) + l.rule) : 'no limit', after, l ? visible(l.allows) : ''].filter(Boolean).join(' · ')));
}

/**
 * passes says when a refusal ends, or was to end: null if never.
 * @param {Api.Decision} d
 * @param {string} ahead @param {string} past
 */
function passes(d, ahead, past) {
  if (!d.retry_after) return null;
  const end = new Date(d.time).getTime() + d.retry_after * 1000;
  return end > now() ? [`${ahead} `, when(end), `, in ${left(end)}.`] : `${past} ${span(d.retry_after)} later.`;
}

/**
 * story says in sentences what happened and when it passes again: to be read out to whom it
 * happened to.
 * @param {Api.Decision} d
 */
export function story(d) {
  const l = mainLimit(d);
  const name = (/** @type {Api.Limit | undefined} */ x) => h('strong', null, visible(x?.rule ?? ''));
  if (d.banned) {
    return h('p', { class: 'story' }, 'Refused, since ', sent(l?.key || 'the key'), ' is banned', l ? [' by ', name(l)] : '', '. ',
      passes(d, 'The ban runs until', 'The ban was to end') ?? 'It has no end that is known.');
  }
  if (!d.allowed && l) {
    return h('p', { class: 'story' }, 'Refused by ', name(l), `: ${l.allows} for `, l.key ? sent(l.key) : 'all together',
      l.remaining > 0 && l.asked > l.remaining ? ` had ${count(l.remaining)} left, and ${count(l.asked)} were asked for. ` : ' were used up. ',
      passes(d, 'It passes at', 'It would have passed') ?? 'It can never pass: it asks for more than the limit has.');
  }
  const shadow = (d.limits ?? []).find((x) => !x.allowed);
  if (shadow) {
    return h('p', { class: 'story' }, 'Admitted. ', name(shadow), ` would have refused it if it were enforced: ${shadow.allows} for `, shadow.key ? sent(shadow.key) : 'all together', ' were used up.');
  }
  if (!l) return h('p', { class: 'story' }, 'Admitted: no rule applied to it.');
  return h('p', { class: 'story' }, 'Admitted. It came nearest to ', name(l), `: ${count(Math.max(0, l.remaining))} of ${l.allows} were left for `, l.key ? sent(l.key) : 'all together', '.');
}

/** sameKey tells whether a decision is of a key. @param {Api.Decision} d @param {string} key */
export const sameKey = (d, key) => (d.limits ?? []).some((l) => l.key === key);

/** shareShown says in words what share of the decisions is shown. @param {string | undefined} s "all", or such as "1 in 8" */
export const shareShown = (s) => `${s || 'all'} shown`;
