// @ts-check
// What changes something: each is asked for in a dialog that says what will happen.
import { fill, h, sent } from './text.js';

/**
 * partsOf splits the text of a key into its parts, as the API takes them: "user=ada, ip=192.0.2.1".
 * @param {string} key
 * @param {string[] | undefined} per names of the parts, where they are known
 */
export function partsOf(key, per) {
  if (!key) return [];
  if (per) return [key]; // the server cuts it where the names of the parts say
  // A value may hold ", " itself: what begins a part is a name and "=".
  return key.split(/, (?=[A-Za-z_][\w.|-]*=)/);
}

/**
 * ask opens a dialog with a form, and closes it when done is through.
 * @param {object} o
 * @param {string} o.title
 * @param {import('./text.js').Child} o.text
 * @param {{name: string, label: string, value?: string, hint?: string, required?: boolean,
 *   options?: string[], after?: HTMLElement}[]} o.fields
 * @param {string} o.button
 * @param {boolean} [o.bad] it takes something away from somebody
 * @param {HTMLElement} [o.more] what stands above the buttons
 * @param {(values: Record<string, string>) => Promise<import('./text.js').Child | void>} o.done
 * what it returns is said in place of the form
 */
export function ask(o) {
  const error = h('p', { class: 'error', role: 'alert' });
  const submit = /** @type {HTMLButtonElement} */ (h('button', { class: o.bad ? 'btn bad' : 'btn main', type: 'submit' }, o.button));
  const form = /** @type {HTMLFormElement} */ (h('form', { method: 'dialog' },
    h('h2', null, o.title), h('p', null, o.text),
    o.fields.map((f) => [h('label', null, f.label,
      f.options ? h('select', { name: f.name }, f.options.map((v) => h('option', { value: v, selected: v === f.value }, v)))
        : h('input', { name: f.name, value: f.value ?? '', required: f.required, autocomplete: 'off', spellcheck: 'false' }),
      f.hint ? h('span', null, f.hint) : null), f.after]),
    o.more, error,
    h('div', { class: 'actions' }, h('button', { class: 'btn', type: 'button', onclick: () => dialog.close() }, 'Cancel'), submit)));
  const dialog = /** @type {HTMLDialogElement} */ (h('dialog', { 'aria-label': o.title }, form));
  const values = () => /** @type {Record<string, string>} */ (Object.fromEntries([...new FormData(form)].map(([k, v]) => [k, String(v).trim()])));
  form.addEventListener('submit', async (e) => {
    e.preventDefault();
    submit.disabled = true;
    fill(error);
    try {
      const said = await o.done(values());
      if (!said) { dialog.close(); return; }
      const close = h('button', { class: 'btn main', type: 'button', onclick: () => dialog.close() }, 'Close');
      fill(form, h('h2', null, o.title), h('div', { role: 'status' }, said), h('div', { class: 'actions' }, close));
      close.focus();
    } catch (err) {
      fill(error, err instanceof Error ? err.message : String(err));
      submit.disabled = false;
    }
  });
  const before = /** @type {HTMLElement | null} */ (document.activeElement);
  dialog.addEventListener('close', () => { dialog.remove(); if (before?.isConnected) before.focus(); });
  document.body.append(dialog);
  dialog.showModal();
  return { form, submit, values };
}

export const fors = ['15m', '1h', '6h', '1d', '7d', '30d'];

/** @typedef {{domain: string, limit: string, key: string[]}} Target */

/** @param {Target} t */
const named = (t) => [sent(t.key.join(', ') || 'all together'), ` at ${t.limit}`];

const wheres = { '': "where the rule's own bans hold", rule: 'where the rule applies', domain: 'everywhere in the domain' };

/** whereField asks where a ban holds. */
export const whereField = { name: 'scope', label: 'Where', value: wheres[''], options: Object.values(wheres) };

/** scopeOf is the scope that was chosen, as the API takes it. @param {string} words */
export const scopeOf = (words) => ({ scope: Object.entries(wheres).find(([, w]) => w === words)?.[0] || undefined });

/**
 * networks are the blocks that an address is in, by the words of a choice.
 * @param {string[]} key
 * @returns {Record<string, string[]> | null}
 */
function networks(key) {
  const [, name, address] = /^([\w.|-]+)=([\da-fA-F:.]+)(?:\/64)?$/.exec(key.length === 1 ? key[0] : '') ?? [];
  if (/^\d+(\.\d+){3}$/.test(address ?? '')) return { 'this address': key, 'its /24, 256 addresses': [`${name}=${address}/24`] };
  if (address?.includes('::')) return { 'this /64': key, 'its /48, 65,536 of them': [`${name}=${address}/48`] };
  return null;
}

/**
 * ban bans keys: one, or several under one reason. What could not be banned is said key by key.
 * @param {import('../app.js').Context} ctx @param {Target | Target[]} of @param {() => void} then
 */
export function ban(ctx, of, then) {
  const all = Array.isArray(of) ? of : [of];
  const nets = all.length === 1 ? networks(all[0].key) : null;
  return ask({
    title: all.length > 1 ? `Ban ${all.length} keys` : 'Ban', text: ['All requests of ', all.map((t, i) => [i ? ', ' : '', named(t)]), ' are refused until the ban ends.', nets ? ' Of a network, so are all others in it that are not exempt.' : ''], button: 'Ban', bad: true,
    fields: [...(nets ? [{ name: 'whom', label: 'Whom', value: Object.keys(nets)[0], options: Object.keys(nets) }] : []), whereField,
      { name: 'for', label: 'For', value: '1h', options: fors }, { name: 'reason', label: 'Reason, for the audit log' }],
    async done(v) {
      /** @param {Target} t */
      const one = (t) => ctx.api('/api/v1/bans', { method: 'POST', body: { ...t, key: nets?.[v.whom] ?? t.key, for: v.for, reason: v.reason, ...scopeOf(v.scope) } });
      if (all.length === 1) { await one(all[0]); then(); return; }
      /** @type {import('./text.js').Child[]} */
      const said = [];
      let failed = 0;
      for (const t of all) { // one by one: the audit log has them in this order
        try { await one(t); said.push(h('li', null, named(t), ': banned')); } catch (err) { failed++; said.push(h('li', { class: 'ink-refused' }, named(t), `: not banned, ${err instanceof Error ? err.message : err}`)); }
      }
      then();
      return [h('p', null, `${all.length - failed} of ${all.length} banned.`), h('ul', null, said)];
    },
  });
}

/**
 * end lifts a ban, ends a grant or resets a key.
 * @param {import('../app.js').Context} ctx
 * @param {'bans' | 'grants' | 'keys'} what
 * @param {Target} t
 * @param {() => void} then
 */
export const end = (ctx, what, t, then) => ask({
  title: { bans: 'Lift the ban', grants: 'End the grant', keys: 'Reset' }[what],
  text: [{ bans: 'Requests of ', grants: 'For ', keys: 'What was counted of ' }[what], named(t), { bans: ' are decided by the rules again.', grants: ' the limit of the rule holds again.', keys: ' is forgotten; it begins with the whole limit.' }[what]],
  button: { bans: 'Lift', grants: 'End', keys: 'Reset' }[what],
  fields: [{ name: 'reason', label: 'Reason, for the audit log' }],
  async done(v) { await ctx.api(`/api/v1/${what}`, { method: 'DELETE', body: { ...t, reason: v.reason } }); then(); },
});
