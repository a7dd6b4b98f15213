// @ts-check
// The page: which view is shown, who looks at it, and the one stream that keeps it up to date.
import { count, fill, h, instead, visible } from './parts/text.js';
import { heard, inUTC, outageTime, overWords, overs, showUTC, skew, zone } from './parts/time.js';
import { Live, alike, outages } from './parts/stream.js';
import { keepFocus, walk } from './parts/table.js';

/**
 * What a view gets.
 * @typedef {object} Context
 * @property {string[]} params the segments of the path behind the view's name
 * @property {URLSearchParams} query
 * @property {string} domain "" is all
 * @property {string} over how far back, such as 6h
 * @property {(what: string) => boolean} can whether the role may do something
 * @property {<T>(path: string, o?: {method?: string, body?: unknown, signal?: AbortSignal}) =>
 *   Promise<T>} api
 * @property {(path: string, more?: Record<string, string>) => string} link
 * a path of the page, with the domain and the time that are chosen
 * @property {(domain: string) => string} of "shop/", where rules of several domains are shown
 * @property {(path: string) => void} go
 * @property {() => void} again draws the view anew
 * @property {{insight?: Api.Overview, rules?: Api.Rules}} first what came with the page, once
 * @property {AbortSignal} signal ends with the view
 * @property {(nodes: Api.Nodes | undefined, figures?: boolean) => void} nodes shows who answered
 */

/**
 * What a view gives back.
 * @typedef {import('./parts/stream.js').Source & {title: string, leave?: () => void}} View
 */

/** An answer of the API that is none. */
export class Failure extends Error {
  /** @param {number} status @param {string} message @param {any} [body] */
  constructor(status, message, body) {
    super(message);
    this.status = status;
    this.body = body;
  }
}

const main = /** @type {HTMLElement} */ (document.getElementById('main'));
const banner = /** @type {HTMLElement} */ (document.getElementById('banner'));
const tools = /** @type {HTMLElement} */ (document.getElementById('tools'));
const bar = /** @type {HTMLElement} */ (document.getElementById('views'));

/** @type {{session?: Api.Session | null, domains?: string[], insight?: Api.Overview, rules?: Api.Rules, outages?: Api.Outage[]}} */
let first = JSON.parse(document.getElementById('first')?.textContent || '{}');
let session = first.session ?? null;

// What each role may do, beside looking at figures. The server checks it; the page does not show
// what would be refused.
const roles = ['viewer', 'support', 'operator', 'editor', 'admin'];
/** @type {Record<string, number>} */
const needs = { find: 1, keys: 2, act: 2, source: 2, edit: 3, audit: 4 };
/** @param {string} what */
const can = (what) => roles.indexOf(session?.role ?? '') >= (needs[what] ?? 0);

/**
 * api asks the admin API.
 * @template T
 * @param {string} path
 * @param {{method?: string, body?: unknown, signal?: AbortSignal}} [o]
 * @returns {Promise<T>}
 */
async function api(path, o = {}) {
  /** @type {Response} */
  let r;
  const asked = Date.now();
  try {
    r = await fetch(path, {
      method: o.method ?? 'GET',
      headers: o.body === undefined ? { Accept: 'application/json' } : { 'Content-Type': 'application/json' },
      body: o.body === undefined ? undefined : JSON.stringify(o.body),
      signal: o.signal,
    });
  } catch (err) {
    if (err instanceof DOMException && err.name === 'AbortError') throw err;
    throw new Failure(0, 'The server does not answer.');
  }
  const off = skew();
  heard(r.headers.get('date'), asked);
  if (skew() !== off) drawBanner();
  if (r.status === 204) return /** @type {T} */ (undefined);
  const text = await r.text();
  let body;
  try { body = JSON.parse(text); } catch { body = undefined; }
  if (r.status === 401 && path !== '/login' && session) {
    session = null;
    void route();
  }
  if (!r.ok) throw new Failure(r.status, body?.detail || body?.error || body?.title || text.slice(0, 300) || r.statusText, body);
  return body;
}

/** @type {Record<string, () => Promise<{show: (ctx: Context, root: HTMLElement) => Promise<View>}>>} */
const views = {
  overview: () => import('./views/overview.js'),
  rules: () => import('./views/rules.js'),
  rule: () => import('./views/rule.js'),
  keys: () => import('./views/keys.js'),
  key: () => import('./views/key.js'),
  decisions: () => import('./views/decisions.js'),
  try: () => import('./views/try.js'),
  bans: () => import('./views/bans.js'),
  nodes: () => import('./views/nodes.js'),
  regions: () => import('./views/regions.js'),
  history: () => import('./views/history.js'),
  login: () => import('./views/login.js'),
};

/** @type {View | null} */
let view = null;
let leaving = new AbortController();
let turn = 0;

/** @param {string} path @returns {[string, string[]]} */
function viewOf(path) {
  const [name, ...params] = path.replace(/^\//, '').split('/').map((s) => { try { return decodeURIComponent(s); } catch { return s; } });
  if (!session) return ['login', []];
  if (!name || name === 'login') return ['overview', []];
  if (params.length && params[0] && name === 'rules') return ['rule', params];
  if (params.length && params[0] && name === 'keys') return ['key', params];
  return views[name] ? [name, params.filter(Boolean)] : ['', params];
}

/** @returns {Context} */
function context(/** @type {string[]} */ params) {
  const query = new URLSearchParams(location.search);
  const domain = query.get('domain') ?? '';
  const over = query.get('over') ?? '6h';
  return {
    params, query, domain, over, can, api,
    link(path, more = {}) {
      const q = new URLSearchParams();
      if (domain) q.set('domain', domain);
      if (over !== '6h') q.set('over', over);
      for (const [k, v] of Object.entries(more)) q.set(k, v);
      const s = q.toString();
      return s ? `${path}?${s}` : path;
    },
    of: (d) => (!domain && domains.length > 1 ? `${d}/` : ''),
    go, again: () => { void route(true); },
    first: { insight: first.insight, rules: first.rules },
    signal: leaving.signal,
    nodes: showNodes,
  };
}

/** how many views lie behind this one in the tab. */
const depth = () => Number(history.state?.depth ?? 0);

/** @param {string} path */
export function go(path) {
  history.pushState({ depth: depth() + 1 }, '', path);
  void route();
}

/** route shows the view that the address names. @param {boolean} [same] the view is drawn anew */
async function route(same = false) {
  const mine = ++turn;
  problem = '';
  drawBanner();
  leaving.abort();
  view?.leave?.();
  view = null;
  leaving = new AbortController();
  live.show(null);
  const [name, params] = viewOf(location.pathname);
  const ctx = context(params);
  shell(name, ctx);
  const root = h('div', null);
  // Figures that came with the HTML stay until the script has its own.
  const wait = setTimeout(() => { if (mine === turn && !same) fill(main, h('div', { class: 'loading', role: 'status' }, h('span', { class: 'spin', 'aria-hidden': 'true' }), 'Loading')); }, main.querySelector('.tile') && turn === 1 ? 4000 : 200);
  try {
    if (!name) throw new Failure(404, 'There is no such view.');
    const { show } = await views[name]();
    const shown = await show(ctx, root);
    if (mine !== turn) { shown.leave?.(); return; }
    view = shown;
    document.title = `${shown.title} · weir`;
  } catch (err) {
    if (mine !== turn || ctx.signal.aborted) return;
    document.title = 'weir';
    fill(root, failed(err, () => { void route(); }));
  } finally {
    clearTimeout(wait);
  }
  first = {};
  const place = (/** @type {HTMLElement} */ el) => fill(el, root);
  if (same) keepFocus(main, () => place(main));
  else {
    place(main);
    if (mine > 1) { main.focus({ preventScroll: true }); scrollTo(0, 0); }
  }
  live.show(view);
}

/** failed is what is shown in place of what could not be had. @param {unknown} err @param {() => void} retry */
export function failed(err, retry) {
  const f = err instanceof Failure ? err : new Failure(-1, String(err instanceof Error ? err.message : err));
  if (f.status === 403) return instead('Not for your role', f.message || 'This needs a role with more rights.');
  if (f.status === 404) return instead('Nothing here', f.message, h('p', null, h('a', { class: 'btn', href: '/' }, 'Overview')));
  return instead('This could not be loaded', f.message, h('button', { class: 'btn', type: 'button', onclick: retry }, 'Try again'));
}

/** @type {string[]} */
let domains = [];

/** shell draws the bar. @param {string} name @param {Context} ctx */
function shell(name, ctx) {
  bar.hidden = !session;
  for (const a of /** @type {NodeListOf<HTMLAnchorElement>} */ (bar.querySelectorAll('a'))) {
    const is = a.dataset.view === ({ rule: 'rules', key: 'keys' }[name] ?? name);
    if (is) a.setAttribute('aria-current', 'page'); else a.removeAttribute('aria-current');
    a.href = ctx.link(new URL(a.href).pathname);
    a.hidden = (a.dataset.view === 'history' && !can('find')) || (a.dataset.view === 'try' && !can('source'));
    if (is) a.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  }
  if (!session) { fill(tools, themeButton()); return; }
  if (tools.querySelector('#find') === null) {
    fill(tools,
      h('select', { id: 'domain', 'aria-label': 'Domain', hidden: true, onchange: () => choose('domain', /** @type {HTMLSelectElement} */ (document.getElementById('domain')).value) }),
      h('select', { id: 'over', 'aria-label': 'Time', onchange: () => choose('over', /** @type {HTMLSelectElement} */ (document.getElementById('over')).value) }, overs.map((o) => h('option', { value: o }, overWords(o)))),
      h('button', { class: 'btn small', id: 'find', type: 'button', 'aria-keyshortcuts': '/', onclick: find }, h('kbd', { 'aria-hidden': 'true' }, '/'), 'Find'),
      zoneButton(),
      themeButton(),
      session.tokens ? h('button', { class: 'btn small quiet', type: 'button', onclick: logout }, `Log out${session.name ? ` ${session.name}` : ''}`) : null,
      h('span', { class: 'live off', id: 'live' }, h('span', null, '…')));
    showNodes(first.insight?.nodes);
    if (first.domains) domains = first.domains;
    else void api('/api/v1/rules').then((/** @type {any} */ r) => { domains = r.domains ?? []; choices(); }, () => {});
  }
  choices();
}

function choices() {
  const q = new URLSearchParams(location.search);
  const d = /** @type {HTMLSelectElement | null} */ (document.getElementById('domain'));
  const o = /** @type {HTMLSelectElement | null} */ (document.getElementById('over'));
  if (!d || !o) return;
  const chosen = q.get('domain') ?? '';
  const list = [...new Set([...domains, ...(chosen ? [chosen] : [])])];
  d.hidden = list.length < 2;
  fill(d, h('option', { value: '' }, 'all domains'), list.map((name) => h('option', { value: name }, name)));
  d.value = chosen;
  const over = q.get('over') ?? '6h';
  if (!overs.includes(over)) o.append(h('option', { value: over }, overWords(over)));
  o.value = over;
}

/** @param {string} name @param {string} value */
function choose(name, value) {
  const u = new URL(location.href);
  if (value && !(name === 'over' && value === '6h')) u.searchParams.set(name, value); else u.searchParams.delete(name);
  history.pushState({ depth: depth() + 1 }, '', u);
  void route(true);
}

function themeButton() {
  const dark = () => (document.documentElement.dataset.theme ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
  const name = () => { b.setAttribute('aria-label', dark() ? 'Light colours' : 'Dark colours'); b.title = dark() ? 'Light colours' : 'Dark colours'; };
  const b = h('button', { class: 'btn small quiet theme', type: 'button', onclick: () => {
    const theme = dark() ? 'light' : 'dark';
    document.documentElement.dataset.theme = theme;
    document.cookie = `weir_theme=${theme}; Path=/; Max-Age=31536000; SameSite=Strict`;
    name();
    void import('./parts/chart.js').then((c) => c.themeChanged());
  } }, '◐');
  name();
  return b;
}

/** zoneButton says in which zone times are, and changes it. */
function zoneButton() {
  const name = () => { fill(b, zone()); b.title = `Times are in ${inUTC() ? 'UTC' : `the zone of this browser, ${zone()}`}: show them in ${inUTC() ? 'the zone of this browser' : 'UTC'}`; b.setAttribute('aria-label', b.title); };
  const b = h('button', { class: 'btn small quiet', id: 'zone', type: 'button', onclick: () => { showUTC(!inUTC()); name(); void route(true); } });
  name();
  return b;
}

async function logout() {
  try {
    await api('/login', { method: 'DELETE', body: {} });
  } catch (err) {
    problem = `You are still logged in: ${err instanceof Error ? err.message : err}`;
    drawBanner();
    return;
  }
  location.assign('/');
}

async function find() {
  const { openFind } = await import('./parts/find.js');
  openFind(context([]));
}

/** Only answers with figures say what is apart.
 * @param {Api.Nodes | undefined} n */
function showNodes(n, figures = true) {
  const el = document.getElementById('live');
  if (!el || !n?.asked) return;
  if (figures) apart = n.apart ?? {};
  const a = apart;
  el.className = `live${n.answered < n.asked || a.broken?.length || a.differ?.length ? ' part' : ''}`;
  el.title = (a.differ ?? []).map((d) => `${d.node}: ${d.rule} ${d.there || 'none'}, here ${d.here || 'none'}`).join('\n');
  fill(el, h('span', null, `${count(n.answered)} of ${count(n.asked)}`), h('span', { class: 'long' }, n.asked === 1 ? ' node' : ' nodes'));
  remark = n.remark ?? '';
  const errors = new Map((a.broken ?? []).map((b) => [b.error, /** @type {string[]} */ ([])]));
  for (const b of a.broken ?? []) errors.get(b.error)?.push(b.node);
  broken = [...errors].map(([error, nodes]) => `${n.asked > 1 ? `on ${nodes.join(', ')}: ` : ''}${error}`).join('; ');
  drawBanner();
}

let away = false;
/** @type {NonNullable<Api.Nodes['apart']>} */
let apart = {}; // as the last answer with figures says
let broken = ''; // why the rules in the source are not in force, and where
let remark = ''; // why not all nodes are in the figures
let problem = ''; // what the reader asked for here, and was not done

/** lacking says what is away now, and what each node does meanwhile. */
function lacking() {
  return outages.list.filter((o) => !o.to && o.kind === 'away').map((o) => {
    const does = alike(o).map(([what, nodes]) => `Meanwhile ${nodes.map((n) => n.node).join(', ')} ${what}.`);
    return [`${o.title} ${outageTime(o)}.`, ...does].join(' ');
  }).join(' ');
}

/** drawBanner shows what stands above every view: the worst of what there is to say. */
function drawBanner() {
  const text = problem || (away ? 'The server does not answer. What is shown is from before; the page goes on as soon as it is back.'
    : [lacking(), broken && `The rules as they lie in the source are not in force; those before them are. The error ${broken}.`, remark && `The figures are not of all nodes: ${remark}.`, skew()].filter(Boolean).join(' '));
  banner.hidden = !text;
  banner.className = problem || away || broken || lacking() ? 'banner bad' : 'banner';
  if (banner.textContent !== text) fill(banner, visible(text)); // else it is read out again
}

const live = new Live((is) => {
  away = is;
  drawBanner();
});

// Outages are asked for while the page is looked at; those of the first moment come with it.
outages.watch(drawBanner);
outages.take(first.outages ?? []);
setInterval(() => {
  if (session && !document.hidden) void api('/api/v1/outages').then((/** @type {any} */ a) => outages.take(a?.outages ?? []), () => {}); // it is asked again
}, 3000);

addEventListener('popstate', () => { void route(); });

document.addEventListener('click', (e) => {
  const a = e.target instanceof Element ? e.target.closest('a') : null;
  if (!a || e.defaultPrevented || e.button || e.metaKey || e.ctrlKey || e.shiftKey || a.target || a.origin !== location.origin || a.hash) return;
  const name = viewOf(a.pathname)[0];
  if (!name || a.pathname.startsWith('/api/') || a.pathname === '/help' || a.pathname === '/metrics' || !session) return;
  e.preventDefault();
  go(a.pathname + a.search);
});

let chord = 0;
document.addEventListener('keydown', (e) => {
  const at = /** @type {HTMLElement} */ (e.target);
  if (e.ctrlKey || e.metaKey || e.altKey || !session || document.querySelector('dialog[open]') || at.closest(':is(input, textarea, select):not(dialog:not([open]) *)')) return; // a dialog that was just closed may still have the focus
  const g = Date.now() - chord < 1500;
  chord = 0;
  /** @type {Record<string, string>} */
  const places = { o: '/', r: '/rules', k: '/keys', d: '/decisions', t: '/try', b: '/bans', n: '/nodes', h: '/history', ...(bar.querySelector('[data-view=regions]') ? { e: '/regions' } : {}) };
  const link = context([]).link;
  if (g && places[e.key]) go(link(places[e.key]));
  else if (e.key === 'g') chord = Date.now();
  else if (e.key === '/') void find();
  else if (e.key === '?') void import('./parts/find.js').then((m) => m.openHelp());
  else if (e.key === 'j') walk(main, 1);
  else if (e.key === 'k') walk(main, -1);
  else if (e.key === 'Escape' && depth()) history.back();
  else return;
  e.preventDefault();
});

void route();
