// @ts-check
import { ask } from '../parts/act.js';
import { ranking } from '../parts/bars.js';
import { chart } from '../parts/chart.js';
import { card, count, fill, h, legend, percent, plural, sent, state, visible } from '../parts/text.js';
import { table } from '../parts/table.js';
import { span } from '../parts/time.js';
import { ruleLink } from './overview.js';

/**
 * patch is a unified diff of two texts, with three lines around what changes.
 * @param {string} name
 * @param {string} before
 * @param {string} after
 */
export function patch(name, before, after) {
  const a = before.split('\n');
  const b = after.split('\n');
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  if (head === a.length && head === b.length) return '';
  const from = Math.max(0, head - 3);
  const after1 = a.slice(a.length - tail, a.length - tail + 3);
  const cut = a.slice(head, a.length - tail);
  const put = b.slice(head, b.length - tail);
  const around = head - from + after1.length;
  return [`--- a/${name}`, `+++ b/${name}`, `@@ -${from + 1},${around + cut.length} +${from + 1},${around + put.length} @@`,
    ...a.slice(from, head).map((l) => ` ${l}`), ...cut.map((l) => `-${l}`), ...put.map((l) => `+${l}`), ...after1.map((l) => ` ${l}`), ''].join('\n');
}

/**
 * withLimit puts another number into the first limit of the rule that begins at a line.
 * @param {string} text
 * @param {number} line from 1
 * @param {string} limit
 */
export function withLimit(text, line, limit) {
  const lines = text.split('\n');
  for (let i = Math.max(0, line - 1); i < Math.min(lines.length, line + 30); i++) {
    if (i > line && /^\s*-\s*(name|rule)\s*:/.test(lines[i])) break;
    const found = /^(\s*(?:- )?(?:limits?|allow|rate)?\s*:?.*?)(\d[\d_]*)(\s*(?:\/|per\b).*)$/.exec(lines[i].replace(/#.*/, ''));
    const unit = /^(\s*requests_per_unit\s*:\s*)(\d+)(.*)$/.exec(lines[i]);
    const m = unit ?? found;
    if (m) {
      lines[i] = m[1] + limit + lines[i].slice(m[1].length + m[2].length);
      return lines.join('\n');
    }
  }
  return text;
}

/** @param {import('../app.js').Context} ctx @param {HTMLElement} root @returns {Promise<import('../app.js').View>} */
export async function show(ctx, root) {
  if (!ctx.can('source')) {
    fill(root, h('h1', null, 'Try a change'), h('div', { class: 'card' }, state('Not for your role', 'Trying rules needs the role operator.')));
    return { title: 'Try a change' };
  }
  const [source, known] = await Promise.all([
    /** @type {Promise<Api.Source>} */ (ctx.api('/api/v1/rules/source', { signal: ctx.signal })),
    /** @type {Promise<{rules: {domain: string, name: string, file: string, line: number}[]}>} */ (ctx.api('/api/v1/rules', { signal: ctx.signal }))]);
  const names = Object.keys(source.files).sort();
  if (!names.length) {
    fill(root, h('h1', null, 'Try a change'), h('div', { class: 'card' }, state('No rules to change', 'No rules are in force.')));
    return { title: 'Try a change' };
  }
  /** @type {Record<string, string>} */
  const files = { ...source.files };
  const wanted = ctx.query.get('rule') ?? '';
  const rule = known.rules.find((r) => `${r.domain}/${r.name}` === wanted);
  let file = names.find((f) => rule && (f === rule.file || rule.file.endsWith(`/${f}`) || f.endsWith(`/${rule.file}`))) ?? names[0];
  const limit = ctx.query.get('limit') ?? '';
  if (rule && /^\d+$/.test(limit)) files[file] = withLimit(files[file], rule.line, limit);

  const area = /** @type {HTMLTextAreaElement} */ (h('textarea', { 'aria-label': 'Rules', spellcheck: 'false', rows: '18', autocapitalize: 'off', oninput: () => { files[file] = area.value; marks(); } }));
  const tabs = h('div', { class: 'tabs' });
  const over = /** @type {HTMLSelectElement} */ (h('select', { 'aria-label': 'Over' }, [['', 'all that was recorded'], ['15m', 'the last 15 min'], ['1h', 'the last hour'], ['2h', 'the last 2 h']].map(([v, w]) => h('option', { value: v }, w))));
  const run = /** @type {HTMLButtonElement} */ (h('button', { class: 'btn main', type: 'button', onclick: () => { void preview(); } }, 'Try'));
  const copy = /** @type {HTMLButtonElement} */ (h('button', { class: 'btn', type: 'button', onclick: () => { void copyPatch(); } }, 'Copy patch'));
  const reset = h('button', { class: 'btn', type: 'button', onclick: () => { files[file] = source.files[file]; open(file); } }, 'Undo');
  // Rules in a folder belong to whoever keeps the folder; only those in a database are changed from here.
  const puts = source.version && ctx.can('edit') ? [
    /** @type {HTMLButtonElement} */ (h('button', { class: 'btn', type: 'button', onclick: () => put(true) }, 'Put in shadow…')),
    /** @type {HTMLButtonElement} */ (h('button', { class: 'btn', type: 'button', onclick: () => put(false) }, 'Put in force…'))] : [];
  const said = h('p', { role: 'status', class: 'sub' });
  const changes = h('div', null);
  const result = h('div', null);
  const graph = chart({ label: 'Refused', height: 180 });
  let ending = new AbortController();

  fill(root, h('div', { class: 'head' }, h('h1', null, 'Try a change')),
    h('p', { class: 'lead' }, 'Change the rules below, and see what they would have done to the requests of the last hours. ', puts.length ? 'Nothing is put in force until you say so.' : 'Nothing is put in force.'),
    h('section', { class: 'card' }, tabs, area, h('div', { class: 'filters' }, h('label', null, 'Over', over), run, copy, reset, puts), said, changes), result);

  /** @param {string} name */
  function open(name) {
    file = name;
    area.value = files[name];
    fill(tabs, names.map((n) => h('button', { class: 'btn small quiet', type: 'button', 'aria-pressed': String(n === file), onclick: () => open(n) }, visible(n), files[n] !== source.files[n] ? ' (changed)' : '')));
    marks();
  }
  const patches = () => names.map((n) => patch(n, source.files[n], files[n])).join('');
  function marks() {
    const p = patches();
    copy.disabled = !p;
    for (const b of puts) b.disabled = !p;
    reset.hidden = files[file] === source.files[file];
    fill(changes, p ? h('pre', { class: 'source diff', tabindex: '0', 'aria-label': 'What is changed' }, p.split('\n').map((l) => [h('span', { class: /^\+/.test(l) ? 'add' : /^-/.test(l) ? 'del' : null }, visible(l)), '\n'])) : null);
  }
  async function copyPatch() {
    try {
      await navigator.clipboard.writeText(patches());
      fill(said, 'The patch is in the clipboard.');
    } catch {
      fill(said, 'The browser does not give out the clipboard here; the patch stands below.');
    }
  }
  /** @param {boolean} shadow */
  function put(shadow) {
    ask({
      title: shadow ? 'Put in shadow' : 'Put in force', button: shadow ? 'Put in shadow' : 'Put in force', bad: !shadow,
      text: shadow ? 'New limits, and changed ones as “name-next” beside those in force, are put in shadow on all servers: they refuse nobody, and count what they would have. Nothing else may change. The tests of the rules must pass.'
        : `These rules come into force on all servers, in place of version ${source.version}. The tests of the rules must pass.`,
      fields: [{ name: 'note', label: 'Note, for the history' }],
      async done(v) {
        const a = /** @type {Api.Pushed} */ (await ctx.api('/api/v1/rules/versions', { method: 'POST', body: { base: Number(source.version), files, note: v.note, shadow } }));
        for (const b of puts) b.hidden = true;
        const list = (/** @type {string[] | undefined} */ names) => (names?.length ? names.map(visible).join(', ') : 'nothing');
        fill(said, `Version ${count(a.version)} is to be on all servers. In force with it: ${list(a.in_force)}. ${shadow ? `In shadow: ${list(a.shadowed)}. ` : ''}`,
          h('a', { href: '/nodes' }, 'Which server has it?'), ' ', h('a', { href: '/history' }, 'The way back is in the history.'));
      },
    });
  }
  /** @param {number} line @param {number} column */
  function jump(line, column) {
    const at = files[file].split('\n').slice(0, Math.max(0, line - 1)).reduce((n, l) => n + l.length + 1, 0) + Math.max(0, column - 1);
    area.focus();
    area.setSelectionRange(at, at + 1);
    area.scrollTop = line < 16 ? 0 : (line - 6) * 19;
  }
  async function preview() {
    ending.abort();
    ending = new AbortController();
    const mine = ending;
    run.disabled = true;
    fill(said, 'Trying…');
    fill(result);
    try {
      const started = /** @type {{preview: string}} */ (await ctx.api('/api/v1/preview', { method: 'POST', body: { files, ...(over.value ? { over: over.value } : {}) }, signal: mine.signal }));
      draw(await follow(started.preview, mine.signal));
    } catch (err) {
      if (mine.signal.aborted) return;
      fill(said, h('span', { class: 'error' }, err instanceof Error ? err.message : String(err)));
    } finally {
      run.disabled = false;
    }
  }
  /** follow hears how far the preview is, until it has a result. @param {string} path @param {AbortSignal} signal @returns {Promise<Api.Preview>} */
  function follow(path, signal) {
    return new Promise((resolve, reject) => {
      const es = new EventSource(path);
      const done = () => es.close();
      signal.addEventListener('abort', () => { done(); reject(new Error('ended')); });
      es.addEventListener('progress', (e) => {
        const p = JSON.parse(e.data);
        fill(said, p.of ? `${{ load: 'Reading', tests: 'Testing', now: 'The rules in force', then: 'The changed rules' }[/** @type {'load'} */ (p.phase)] ?? ''}: ${count(p.done)} of ${plural(p.of, 'request')}` : 'Trying…');
      });
      es.addEventListener('result', (e) => { done(); resolve(JSON.parse(e.data)); });
      es.addEventListener('problem', (e) => { done(); reject(new Error(JSON.parse(e.data).detail)); });
      es.onerror = () => { if (es.readyState === EventSource.CLOSED) reject(new Error('The preview cannot be followed.')); };
    });
  }

  /** @param {Api.Preview} p */
  function draw(p) {
    fill(said);
    if (p.problems?.length) {
      fill(result, h('div', { class: 'grid' }, card('These files are no rules', plural(p.problems.length, 'problem'), null, h('ul', { class: 'problems' }, p.problems.map((x) => h('li', null,
        h('button', { type: 'button', onclick: () => { if (names.includes(x.file)) open(x.file); jump(x.line, x.column); } }, `${visible(x.file)}:${x.line}${x.column ? `:${x.column}` : ''}`), ' ', visible(x.message)))))));
      return;
    }
    /** @param {string} title @param {Api.Side} s */
    const side = (title, s) => h('div', null, h('p', { class: 'sub' }, title), h('p', { class: 'big' }, percent(s.share), s.plus_minus ? h('span', { class: 'sub' }, ` ± ${percent(s.plus_minus)}`) : null), h('p', { class: 'sub' }, `${plural(s.refused, 'request')} of ${plural(s.clients_refused, 'client')}`));
    const c = p.clients;
    fill(result, h('div', { class: 'grid' },
      card('What it would have done', [`${plural(p.requests, 'request')} in ${span((new Date(p.to).getTime() - new Date(p.from).getTime()) / 1000)}`, p.sampled > 1 ? `, 1 in ${count(p.sampled)} clients` : '', p.nodes.asked > 1 ? `, ${p.nodes.answered} of ${p.nodes.asked} nodes` : ''], 's6',
        h('div', { class: 'versus' }, side('Refused now', p.now), h('span', { 'aria-hidden': 'true' }, '→'), side('Refused with the change', p.then)),
        h('p', null, `${plural(p.only_then, 'more request')} and ${count(p.only_now)} fewer would be refused. `, h('strong', null, plural(c.more, 'more client')), `, ${count(c.good_more)} of them good; ${count(c.fewer)} fewer.`),
        p.tests.passed + p.tests.failed ? h('p', { class: p.tests.failed ? 'error' : 'ink-good' }, `${plural(p.tests.passed, 'test')} of rules passed${p.tests.failed ? `, ${count(p.tests.failed)} failed` : ''}.`) : null,
        (p.tests.failures ?? []).map((f) => h('p', { class: 'error mono' }, visible(f))),
        (p.warnings ?? []).map((w) => h('p', { class: 'ink-near' }, visible(w)))),
      card('Clients with more or fewer refusals', null, 's6', ranking((c.examples ?? []).slice(0, 8).map((e) => ({ name: sent(e.key), words: `${count(e.now)} → ${count(e.then)} refused${e.good ? ' · good' : ''}`, part: Math.max(e.now, e.then) / Math.max(1, ...(c.examples ?? []).map((x) => Math.max(x.now, x.then))), kind: e.then > e.now ? 'refused' : 'admitted', label: 'of the most' })), 'None: the same clients are refused.')),
      card('By rule', null, null, table({
        caption: 'By rule', rows: p.rules ?? [], none: 'No rule was met.', columns: [
          { title: 'Rule', cell: (r) => [r.change === 'added' ? visible(ctx.of(r.domain) + r.rule) : h('a', { href: ruleLink(ctx, r.domain, r.rule) }, visible(ctx.of(r.domain) + r.rule)), r.change !== 'same' ? ' ' : null, r.change !== 'same' ? h('span', { class: 'pill ink-near' }, r.change) : null, r.estimate ? h('div', { class: 'sub' }, 'an estimate') : null] },
          { title: 'Refused now', number: true, cell: (r) => count(r.now) }, { title: 'Refused then', number: true, cell: (r) => count(r.then) },
          { title: 'Requests now', number: true, cell: (r) => count(r.met_now) }, { title: 'Requests then', number: true, cell: (r) => count(r.met_then) }],
      })),
      p.series?.t?.length ? h('section', { class: 'card' }, h('header', null, h('h2', null, 'Refused over time'), legend([['refused', 'then'], ['admitted', 'now']])), graph.el) : null));
    if (p.series?.t?.length) {
      // The areas stand on each other: what both refuse, and what only one of them does.
      const s = p.series;
      graph.draw(s.t, s.step, [
        { title: 'refused by both, about', colour: 'line', values: s.t.map((_, i) => Math.min(s.now[i], s.then[i])) },
        { title: 'more then', colour: 'refused', values: s.t.map((_, i) => Math.max(0, s.then[i] - s.now[i])) },
        { title: 'more now', colour: 'admitted', values: s.t.map((_, i) => Math.max(0, s.now[i] - s.then[i])) }]);
      const box = graph.el.parentElement?.querySelector('header');
      if (box) fill(box, h('h2', null, 'Refused over time'), legend([['line', 'refused by both, about'], ['refused', 'more then'], ['admitted', 'more now']]));
    }
  }
  open(file);
  if (rule) requestAnimationFrame(() => jump(rule.line, 1));
  return { title: 'Try a change', leave() { ending.abort(); graph.leave(); } };
}

