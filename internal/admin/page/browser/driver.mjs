// Drives Chromium for the Go tests beside it: one question a line on stdin, one answer a line on
// stdout, both JSON. A question is {"id", "do", ...}; "do" names a function of steps.
import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import path from 'node:path';
import readline from 'node:readline';

const require = createRequire(path.join(process.env.WEIR_BROWSER_TOOLS ?? '.', 'node_modules', 'x.js'));
const { chromium } = require('playwright-core');
const axeSource = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

/** @type {any} */
let browser = null;
/** @type {Map<number, {page: any, context: any, log: {errors: string[], hosts: string[], requests: {url: string, bytes: number}[]}, streams: Set<any>}>} */
const tabs = new Map();
let last = 0;

// The test's own bound ends what does not come about; a driver without one waits for it.
const patience = { timeout: 0 };

const steps = {
  async launch({ executable, dir }) {
    browser = await chromium.launchPersistentContext(dir, {
      executablePath: executable, timeout: 0, viewport: null,
      args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--js-flags=--expose-gc'],
    });
    browser = browser.browser();
    return browser.version();
  },
  async open({ theme, width, height, base, cookie, motion, zone, language, behind }) {
    const context = await browser.newContext({ viewport: { width, height }, colorScheme: theme, baseURL: base, locale: 'en-GB', timezoneId: zone || 'UTC', reducedMotion: motion ?? 'reduce' });
    context.setDefaultTimeout(0);
    if (cookie) await context.addCookies([{ ...cookie, url: base }]);
    await context.addInitScript(() => {
      document.addEventListener('securitypolicyviolation', (e) => console.error(`CSP: ${e.violatedDirective} ${e.blockedURI} ${e.sourceFile}:${e.lineNumber}`));
    });
    // A browser under LANG=C has a language that is no tag, and some clocks are off.
    if (language) await context.addInitScript((l) => Object.defineProperty(Navigator.prototype, 'language', { get: () => l, configurable: true }), language);
    if (behind) await context.addInitScript((ms) => { const real = Date.now; Date.now = () => real() - ms; }, behind);
    const page = await context.newPage();
    const tab = { page, context, log: { errors: [], hosts: [], requests: [] }, streams: new Set() };
    page.on('console', (m) => { if (m.type() === 'error' || m.type() === 'warning') tab.log.errors.push(m.text()); });
    page.on('pageerror', (e) => tab.log.errors.push(String(e.stack ?? e)));
    page.on('dialog', (d) => { tab.log.errors.push(`a dialog of the browser: ${d.message()}`); void d.dismiss(); });
    page.on('request', (r) => {
      if (new URL(r.url()).host !== new URL(base).host) tab.log.hosts.push(r.url());
      if (r.url().includes('/api/v1/stream')) tab.streams.add(r);
    });
    const done = (r) => tab.streams.delete(r);
    page.on('requestfailed', done);
    page.on('requestfinished', async (r) => {
      done(r);
      const sizes = await r.sizes().catch(() => null);
      tab.log.requests.push({ url: r.url(), bytes: sizes ? sizes.responseBodySize : 0 });
    });
    tabs.set(++last, tab);
    return last;
  },
  async close({ tab }) { const t = tabs.get(tab); tabs.delete(tab); void t?.context.close().catch(() => {}); },
  async goto({ page, url }) { await page.goto(url, { ...patience, waitUntil: 'load' }); },
  async reload({ page }) { await page.reload({ ...patience, waitUntil: 'load' }); },
  /** evaluate asks a page; one that is going to another page meanwhile is asked again there. */
  async evaluate({ page, js, arg }) {
    for (;;) {
      try {
        return await page.evaluate(`(${js})(${JSON.stringify(arg ?? null)})`);
      } catch (err) {
        if (!/context was destroyed|Cannot find context|navigat/i.test(String(err))) throw err;
        await page.waitForLoadState('load', patience);
      }
    }
  },
  async press({ page, keys }) { for (const k of keys) await page.keyboard.press(k); },
  async type({ page, text }) { await page.keyboard.type(text); },
  async click({ page, selector }) { await page.click(selector, patience); },
  async fill({ page, selector, text }) { await page.fill(selector, text, patience); },
  async select({ page, selector, value }) { await page.selectOption(selector, value, patience); },
  async axe({ page }) {
    if (!(await page.evaluate('typeof axe !== "undefined"'))) await page.evaluate(axeSource);
    return page.evaluate(async () => {
      const { violations } = await window.axe.run(document, { runOnly: { type: 'tag', values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] } });
      return violations.map((v) => `${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => `${n.html.slice(0, 160)} ${n.failureSummary}`).join(' | ')}`);
    });
  },
  /** block lets the requests for a path fail. */
  async block({ page, path: of }) { await page.route((url) => url.pathname.endsWith(of), (route) => route.abort()); },
  async log({ log }) { return log; },
  async clear({ log }) { log.errors.length = 0; log.requests.length = 0; log.hosts.length = 0; },
  async streams({ streams }) { return streams.size; },
  /** hide hides the tab as another tab in front of it does, or shows it again. */
  async hide({ page, hidden }) {
    await page.evaluate((h) => {
      Object.defineProperty(document, 'hidden', { configurable: true, get: () => h });
      Object.defineProperty(document, 'visibilityState', { configurable: true, get: () => (h ? 'hidden' : 'visible') });
      document.dispatchEvent(new Event('visibilitychange'));
    }, hidden);
  },
  async media({ page, media, motion }) { await page.emulateMedia({ media, reducedMotion: motion }); },
  async picture({ page, file, height }) {
    const all = await page.evaluate("document.documentElement.scrollHeight");
    const { width } = page.viewportSize();
    await page.screenshot({ path: file, fullPage: true, clip: { x: 0, y: 0, width, height: Math.min(all, height) }, timeout: 0 });
  },
  async heap({ page, context }) {
    const cdp = await context.newCDPSession(page);
    for (let i = 0; i < 3; i++) await cdp.send('HeapProfiler.collectGarbage');
    const { usedSize } = await cdp.send('Runtime.getHeapUsage');
    await cdp.detach();
    return usedSize;
  },
  /** objects is how many bytes the objects of each kind hold by themselves, after a collection. */
  async objects({ page, context }) {
    const cdp = await context.newCDPSession(page);
    const parts = [];
    cdp.on('HeapProfiler.addHeapSnapshotChunk', ({ chunk }) => parts.push(chunk));
    for (let i = 0; i < 3; i++) await cdp.send('HeapProfiler.collectGarbage');
    await cdp.send('HeapProfiler.takeHeapSnapshot', { reportProgress: false });
    await cdp.detach();
    const { snapshot: { meta }, nodes, strings } = JSON.parse(parts.join(''));
    const fields = meta.node_fields;
    const [type, name, size] = ['type', 'name', 'self_size'].map((f) => fields.indexOf(f));
    const kinds = meta.node_types[type];
    /** @type {Record<string, number>} */
    const sum = {};
    for (let i = 0; i < nodes.length; i += fields.length) {
      const kind = kinds[nodes[i + type]];
      const of = kind === 'object' || kind === 'native' ? `${kind} ${strings[nodes[i + name]].slice(0, 60)}` : kind;
      sum[of] = (sum[of] ?? 0) + nodes[i + size];
    }
    return sum;
  },
  /** paint is when the first contentful paint of a page was, in ms. */
  async paint({ page }) {
    return page.evaluate(() => new Promise((resolve) => {
      const look = () => {
        const p = performance.getEntriesByName('first-contentful-paint')[0];
        if (p) resolve(p.startTime); else setTimeout(look, 10);
      };
      look();
    }));
  },
};

const lines = readline.createInterface({ input: process.stdin });
lines.on('line', async (line) => {
  const { id, do: name, ...args } = JSON.parse(line);
  let answer;
  try {
    answer = { id, value: (await steps[name]({ ...args, ...tabs.get(args.tab) })) ?? null };
  } catch (err) {
    answer = { id, error: String(err?.stack ?? err) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
});
lines.on('close', async () => {
  await browser?.close();
  process.exit(0);
});
