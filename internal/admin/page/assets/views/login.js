// @ts-check
import { fill, h } from '../parts/text.js';

/** @param {import('../app.js').Context} ctx @param {HTMLElement} root @returns {Promise<import('../app.js').View>} */
export async function show(ctx, root) {
  const input = /** @type {HTMLInputElement} */ (h('input', { type: 'password', name: 'token', autocomplete: 'current-password', required: true, 'aria-describedby': 'login-error' }));
  const error = h('p', { class: 'error', id: 'login-error', role: 'alert' });
  const button = /** @type {HTMLButtonElement} */ (h('button', { class: 'btn main', type: 'submit' }, 'Log in'));
  fill(root, h('section', { class: 'card login' }, h('h1', null, 'Log in'), h('p', { class: 'sub' }, 'With a token of this server. The browser keeps a cookie for 12 hours, and not the token.'),
    h('form', { onsubmit: async (/** @type {Event} */ e) => {
      e.preventDefault();
      button.disabled = true;
      fill(error);
      try {
        await ctx.api('/login', { method: 'POST', body: { token: input.value.trim() } });
        location.assign(location.pathname === '/login' ? '/' : location.href);
      } catch (err) {
        const f = /** @type {import('../app.js').Failure} */ (err);
        fill(error, f.status === 401 ? 'This token is not known here.' : f.status === 429 ? 'Too many guesses. Wait a minute.' : f.message);
        button.disabled = false;
        input.select();
      }
    } }, h('label', null, 'Token', input), error, h('div', null, button))));
  requestAnimationFrame(() => input.focus());
  return { title: 'Log in' };
}
