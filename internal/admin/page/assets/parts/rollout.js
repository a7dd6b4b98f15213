// @ts-check
// Bringing in a limit: what a rule in shadow, or on a share of its keys, would refuse, and the next
// steps.
import { ask } from './act.js';
import { count, fill, h, plural, shareOf, visible } from './text.js';
import { ago } from './time.js';

/** figures are those of all nodes that answered. @param {Api.Candidate} t */
function figures(t) {
  const of = t.would_refuse + t.would_admit + t.both_refuse + t.both_admit;
  const on = t.enforced_admitted + t.enforced_refused;
  const other = t.enforce_percent ? `the other ${100 - t.enforce_percent} % of the keys` : 'all keys';
  return [
    h('p', null, h('strong', null, `Would refuse ${shareOf(t.would_refuse, of)}`), ` of ${plural(of, 'request')} on ${other}: ${count(t.would_refuse)}, of about ${plural(t.keys_would_refuse, 'client')}. ${count(t.both_refuse)} more are refused by another rule, too.`),
    t.enforce_percent ? h('p', null, h('strong', null, `Refused ${shareOf(t.enforced_refused, on)}`), ` of ${plural(on, 'request')} on the ${t.enforce_percent} % where it is enforced: ${count(t.enforced_refused)}, of about ${plural(t.enforced_keys_refused, 'client')}.`) : null,
    h('p', { class: 'sub' }, `Counted for ${ago(t.since)}, on all nodes that answered.`)];
}

/**
 * steps are the buttons from shadow to 10 %, 50 % and all: in a database they change the rules, of
 * a folder they show the line to change.
 * @param {import('../app.js').Context} ctx
 * @param {Api.Rule} r
 */
function steps(ctx, r) {
  const said = h('div', { role: 'status' });
  /** @param {number} to */
  async function step(to) {
    fill(said, 'Looking…');
    try {
      const c = /** @type {Api.Rollout} */ (await ctx.api(`/api/v1/rules/rollout?domain=${encodeURIComponent(r.domain)}&limit=${encodeURIComponent(r.name)}&percent=${to}`));
      fill(said);
      if (c.version && ctx.can('edit')) change(to, c);
      else line(c);
    } catch (err) {
      fill(said, h('p', { class: 'error' }, err instanceof Error ? err.message : String(err)));
    }
  }
  /** @param {number} to @param {Api.Rollout} c */
  const change = (to, c) => ask({
    title: to === 100 ? 'Enforce it on all' : `Enforce it on ${to} % of its keys`, button: 'Put in force', bad: true,
    text: [`Of ${visible(r.name)} this line changes, on all servers, in place of version ${visible(c.version ?? '')}: `, h('code', null, visible(c.after.trim())), '. The tests of the rules must pass.'],
    fields: [{ name: 'note', label: 'Note, for the history' }],
    async done(v) {
      const a = /** @type {Api.Pushed} */ (await ctx.api('/api/v1/rules/rollout', { method: 'POST', body: { domain: r.domain, limit: r.name, percent: to, note: v.note } }));
      fill(said, h('p', null, `Version ${count(a.version)} is to be on all servers. `, h('a', { href: '/history' }, 'The way back is in the history.')));
    },
  });
  /** @param {Api.Rollout} c */
  function line(c) {
    const told = h('span', { class: 'sub' });
    fill(said, h('p', null, `${c.version ? 'Your role changes no rules. In' : 'These rules lie in a folder. In'} `, h('strong', { class: 'mono' }, `${visible(c.file)}:${c.line}`), ' write'),
      h('pre', { class: 'source diff', tabindex: '0', 'aria-label': 'The line to change' }, h('span', { class: 'del' }, `-${visible(c.before)}`), '\n', h('span', { class: 'add' }, `+${visible(c.after)}`)),
      h('p', { class: 'actions' }, h('button', { class: 'btn small', type: 'button', onclick: () => { void navigator.clipboard?.writeText(c.after).then(() => fill(told, ' It is in the clipboard.'), () => fill(told, ' The browser does not give out the clipboard here.')); } }, 'Copy the line'), told));
  }
  const now = r.trial?.enforce_percent ?? 0;
  return [h('p', { class: 'actions' }, [10, 50, 100].filter((to) => to > now && (to === 100 || r.per?.length)).map((to) => h('button', { class: 'btn small', type: 'button', onclick: () => { void step(to); } }, to === 100 ? 'Enforce on all' : `Enforce on ${to} %`))), said];
}

/**
 * rollout is a card for a rule that is not enforced on all; its draw draws the figures anew.
 * @param {import('../app.js').Context} ctx
 * @param {Api.Rule} r
 */
export function rollout(ctx, r) {
  if (!r.trial) return { el: null, draw: () => {} };
  const told = h('div', null);
  /** @param {Api.Rule} x */
  const draw = (x) => { if (x.trial) fill(told, figures(x.trial)); };
  draw(r);
  return { el: h('section', { class: 'card' }, h('header', null, h('h2', null, 'Roll-out')), told, ctx.can('source') ? steps(ctx, r) : null), draw };
}
