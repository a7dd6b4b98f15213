// @ts-check
// What other rules changed, in words.
import { count, h, plural, visible } from './text.js';

/** @param {string} s */
const value = (s) => visible(s) || 'none';

/**
 * changeWords says what changed in a rule: allow 600/min → 700/min.
 * @param {Api.RuleChange} c
 */
function changeWords(c) {
  const fields = (c.fields ?? []).map((f) => `${visible(f.field)} ${c.change === 'added' ? value(f.after) : c.change === 'removed' ? value(f.before) : `${value(f.before)} → ${value(f.after)}`}`);
  return [c.change === 'changed' ? '' : visible(c.change), ...fields].filter(Boolean).join(', ');
}

/** @param {Api.RuleChange} c */
const named = (c) => visible([c.domain, c.rule].filter(Boolean).join('/'));

/** where names the nodes of a change. @param {string[] | undefined} nodes */
export const where = (nodes) => (nodes?.length ? `on ${nodes.slice(0, 3).map(visible).join(', ')}${nodes.length > 3 ? ` and ${plural(nodes.length - 3, 'more node')}` : ''}` : '');

/**
 * changesLine says it in one line, for the mark of a chart: the first ones of many.
 * @param {Api.RuleChanges} c
 */
export function changesLine(c) {
  const list = c.changes ?? [];
  const more = list.length - 3 + (c.more_changes ?? 0);
  return [...list.slice(0, 3).map((x) => `${named(x)}: ${changeWords(x)}`), more > 0 ? `${count(more)} more` : ''].filter(Boolean).join('; ');
}

/**
 * changesList lists what changed.
 * @param {Api.RuleChanges} c
 * @param {(domain: string, rule: string) => string} link
 */
export const changesList = (c, link) => h('ul', { class: 'changes' },
  (c.changes ?? []).map((x) => h('li', null, x.rule && x.change !== 'removed' ? h('a', { href: link(x.domain, x.rule) }, named(x)) : named(x), ': ', changeWords(x))),
  c.more_changes ? h('li', null, `${plural(c.more_changes, 'more change')}.`) : null);
