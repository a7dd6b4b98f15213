// @ts-check
// A grant: it is asked for where the operator stands, and says what holds now, what it replaces and
// what will hold, before it is sent.
import { ask, fors } from './act.js';
import { fill, h, sent, visible } from './text.js';
import { when } from './time.js';

/**
 * times multiplies the numbers of a limit as rules write it, not the lengths of its windows: of
 * "{rate: 4/15m, burst: 20}" the 4 and the 20.
 * @param {string} allow
 * @param {number} n
 */
export const times = (allow, n) => allow.replace(/(?<![\w/.])\d+/g, (d) => String(Number(d) * n));

/** shortened tells that a key is not shown whole, so that it names nobody. @param {string} key */
export const shortened = (key) => /hidden:|…$|…,/.test(key);

/** What the dialog says of a grant that is in force. @param {Api.Grant} g */
const inForce = (g) => [h('strong', null, visible(g.allow)), ' until ', when(g.until), g.reason ? `: ${visible(g.reason)}` : ''];

/** @param {Api.GrantChange} p */
function effect(p) {
  return [
    p.replaced ? h('p', null, 'It replaces the grant of ', inForce(p.replaced), '.') : null,
    p.grant && p.grant.allow !== p.before ? h('p', null, 'Then ', h('strong', null, visible(p.grant.allow)), ' holds until ', when(p.grant.until), `, and ${visible(p.without ?? '')} afterwards.`)
      : h('p', null, 'Now ', h('strong', null, visible(p.before ?? '')), ' holds.'),
    p.ban ? h('p', { class: 'ink-near' }, 'It is banned until ', when(p.ban.until), ', whatever is granted: lift the ban first.') : null,
    p.shadow ? h('p', { class: 'ink-near' }, 'The rule is in shadow for it and refuses it nothing: there is nothing to grant.') : null];
}

/**
 * grant asks for a grant. Where no key is named, the dialog asks for it, as the rule's keys are;
 * and for the rule where there are several.
 * @param {import('../app.js').Context} ctx
 * @param {{key?: string[], rules: {domain: string, name: string, per?: string[]}[]}} t
 * @param {() => void} then
 */
export function grant(ctx, t, then) {
  const told = h('div', { class: 'told', role: 'status' });
  const several = t.rules.length > 1;
  const asks = !t.key && (several || !!t.rules[0].per?.length);
  /** @param {{domain: string, name: string}} r */
  const nameOf = (r) => `${r.domain}/${r.name}`;
  /** @param {Record<string, string>} v */
  const ruleOf = (v) => t.rules.find((r) => nameOf(r) === v.rule) ?? t.rules[0];
  /** @param {string[] | undefined} per */
  const parts = (per) => per?.map((p) => `${p.split('|')[0]}=…`).join(', ');
  let base = ''; // the limit in force
  let typed = false; // something else than that was asked for
  const more = [2, 5].map((n) => /** @type {HTMLButtonElement} */ (h('button', { class: 'btn small', type: 'button', disabled: true, 'aria-label': `${n} times the limit in force`, onclick: () => { typed = true; input('allow').value = times(base, n); void plan(); } }, `×${n}`)));
  /** @param {Record<string, string>} v */
  const body = (v) => ({ domain: ruleOf(v).domain, limit: ruleOf(v).name, key: t.key ?? (v.key ? [v.key] : []), allow: v.allow, for: v.for, reason: v.reason });
  const { form, submit, values } = ask({
    title: 'Grant', button: 'Grant', more: told,
    text: [t.key ? ['For ', sent(t.key.join(', ') || 'all together')] : asks ? 'For a key' : 'For all together', ` another limit${several ? '' : ` of ${visible(t.rules[0].name)}`} holds until the grant ends.`],
    fields: [
      ...(several ? [{ name: 'rule', label: 'Rule', options: t.rules.map(nameOf) }] : []),
      ...(asks ? [{ name: 'key', label: 'Key', hint: several ? 'as in user=ada; empty for a rule that counts all together' : `as in ${parts(t.rules[0].per)}`, required: !several }] : []),
      { name: 'allow', label: 'Limit', hint: 'as in a rule, 60/min, or as 60 per minute', required: true, after: h('div', { class: 'actions' }, more) },
      { name: 'for', label: 'For', value: '1h', options: fors }, { name: 'reason', label: 'Reason, for the audit log' }],
    async done(v) {
      const a = /** @type {Api.GrantChange} */ (await ctx.api('/api/v1/grants', { method: 'POST', body: body(v) }));
      then();
      const g = /** @type {Api.Grant} */ (a.grant);
      return [h('p', null, `Granted at ${visible(g.limit)}: `, sent((g.key ?? []).join(', ') || 'all together'), ' has ', inForce(g), '.'),
        h('p', null, 'In place of ', a.replaced ? ['the grant of ', inForce(a.replaced), `; without a grant it has ${visible(a.without ?? '')}`] : visible(a.before ?? ''), '.'),
        a.warning ? h('p', { class: 'ink-near' }, visible(a.warning)) : null];
    },
  });
  const input = (/** @type {string} */ name) => /** @type {HTMLInputElement} */ (form.elements.namedItem(name));
  let turn = 0;
  /** plan asks what the grant would do. */
  async function plan() {
    if (!input('allow')) return; // it was sent meanwhile
    const mine = ++turn;
    const v = values();
    const per = ruleOf(v).per;
    if (asks && !v.key && per?.length) { fill(told, several ? h('p', { class: 'sub' }, `Its keys are ${parts(per)}.`) : null); return; }
    if (!typed) v.allow = '';
    /** @type {Api.GrantChange} */
    let p;
    try {
      p = await ctx.api('/api/v1/grants', { method: 'POST', body: { ...body(v), plan: true } });
    } catch (err) {
      if (mine !== turn) return;
      fill(told, h('p', { class: 'error' }, visible(err instanceof Error ? err.message : String(err))));
      submit.disabled = !v.allow; // what is for no number cannot be granted
      return;
    }
    if (mine !== turn || !input('allow')) return;
    submit.disabled = !!p.shadow;
    fill(told, effect(p));
    base = p.before ?? '';
    if (!typed) input('allow').value = base;
    for (const b of more) b.disabled = !/\d/.test(base);
  }
  let wait = 0;
  form.addEventListener('input', (e) => { typed ||= e.target === input('allow'); turn++; clearTimeout(wait); wait = setTimeout(() => { void plan(); }, 200); });
  void plan();
}
