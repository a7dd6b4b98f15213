// Opens the built site in Chromium for the Go test beside it. It reads {base, pages, every,
// patience} from standard input and writes what it found, as JSON. Patience is how many milliseconds
// it waits for anything.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

const require = createRequire(path.join(process.env.WEIR_BROWSER_TOOLS, 'node_modules', 'x.js'));
const { chromium } = require('playwright-core');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
const { base, pages, every, patience } = JSON.parse(readFileSync(0, 'utf8'));

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, timeout: patience, args: ['--no-sandbox', '--disable-gpu'] });
const ways = [['light', 1280], ['dark', 390], ['light', 390], ['dark', 1280]];
const faults = [];
const found = {};

/** open returns a tab in which whatever is odd becomes a fault. */
async function open(theme, width) {
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme: theme, reducedMotion: 'reduce', permissions: ['clipboard-read', 'clipboard-write'] });
  context.setDefaultTimeout(patience);
  const tab = await context.newPage();
  tab.on('request', (r) => { if (!r.url().startsWith(base) && !/^(data|blob):/.test(r.url())) faults.push(`${tab.url()} asks ${r.url()}`); });
  tab.on('console', (m) => { if (m.type() === 'error') faults.push(`${tab.url()}: ${m.text()}`); });
  tab.on('pageerror', (e) => faults.push(`${tab.url()}: ${e}`));
  return tab;
}

/** visit opens a page, and waits until its program listens to keys and clicks. */
async function visit(tab, page) {
  await tab.goto(base + page, { waitUntil: 'networkidle' });
  await tab.waitForFunction(() => document.querySelector('#app').__vue_app__);
}

/** look checks the page that a tab shows. */
async function look(tab, what) {
  await tab.evaluate(axe);
  const { violations } = await tab.evaluate(() => axe.run(document, { resultTypes: ['violations'] }));
  for (const v of violations) faults.push(`${what}: axe ${v.id}: ${v.nodes.slice(0, 3).map((n) => `${n.target} ${n.failureSummary.split('\n').at(-1).trim()}`).join('; ')}`);
  const wide = await tab.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  if (wide > 0) faults.push(`${what} is ${wide} pixels too wide`);
}

// What the first page costs a reader who has nothing of it.
{
  const tab = await open('light', 1280);
  const sizes = [];
  tab.on('requestfinished', (r) => sizes.push(r.sizes()));
  await tab.goto(base, { waitUntil: 'networkidle' });
  found.firstPage = (await Promise.all(sizes)).reduce((sum, s) => sum + s.responseBodySize + s.responseHeadersSize, 0);
  found.title = await tab.title();
  await tab.context().close();
}

// Each page in one theme and one width, in turn, or in all of them.
const tabs = await Promise.all(ways.map(([theme, width]) => open(theme, width)));
for (const [i, page] of pages.entries()) {
  for (const [j, tab] of tabs.entries()) {
    if (!every && i % ways.length !== j) continue;
    await visit(tab, page);
    await look(tab, `${page} (${ways[j]})`);
  }
}

// Search, from the keyboard to a page.
{
  const [tab] = tabs;
  await visit(tab, '');
  await tab.keyboard.press('/');
  await tab.locator('.VPLocalSearchBox input:focus').waitFor(); // it is loaded only now
  await tab.keyboard.type('token_bucket');
  await tab.locator('.VPLocalSearchBox .result').first().waitFor();
  await look(tab, 'the search');
  found.results = await tab.locator('.VPLocalSearchBox .result').count();
  await tab.keyboard.press('Enter');
  await tab.waitForURL((u) => u.href !== base);
  found.searched = tab.url().slice(base.length);
}

// The theme, chosen by hand, which stays.
{
  const [tab] = tabs;
  await visit(tab, '');
  await tab.locator('.VPNavBar .VPSwitchAppearance').first().click();
  await tab.reload({ waitUntil: 'networkidle' });
  found.dark = await tab.evaluate(() => document.documentElement.classList.contains('dark'));
  await look(tab, 'the theme chosen by hand');
}

// A copy button gives the block as it stands.
{
  const [tab] = tabs;
  await visit(tab, 'start/first-steps.html');
  const block = tab.locator('div[class*=language-]').first();
  await tab.evaluate(() => navigator.clipboard.writeText('nothing yet'));
  await block.hover();
  await block.locator('button.copy').click();
  // The button says so for two seconds only, which a busy machine may miss.
  const end = Date.now() + patience;
  do found.copied = (await tab.evaluate(() => navigator.clipboard.readText())).trim(); while (found.copied === 'nothing yet' && Date.now() < end);
  found.block = (await block.locator('code').innerText()).trim();
}

// The playground: what it decides, a fault, a hostile text, and a link that holds both texts.
{
  const [tab] = tabs;
  const rows = (t) => t.locator('.decisions tbody tr').allInnerTexts();
  await visit(tab, 'playground.html');
  await tab.locator('.summary, .fault').first().waitFor();
  found.summary = await tab.locator('.summary, .fault').first().innerText();
  found.rows = await rows(tab);
  await look(tab, 'the playground that has decided');

  await tab.locator('textarea.rules').fill(`domain: shop\nlimits:\n  - name: "<img src=x onerror=document.hostile=1>"\n    per: [user]\n    alow: 1/min\n`);
  await tab.locator('.fault').waitFor();
  found.fault = await tab.locator('.fault').innerText();
  await look(tab, 'a fault in the playground');

  await tab.locator('textarea.rules').fill('domain: shop\nlimits:\n  - name: a\n    if: user == "ada"\n    allow: 1/min\n');
  await tab.locator('.fault', { hasText: 'if: ' }).waitFor();
  found.leftOut = await tab.locator('.fault').innerText();

  await tab.locator('textarea.rules').fill('domain: shop\nlimits:\n  - name: few\n    per: [user]\n    allow: 2/min\n');
  await tab.locator('textarea.requests').fill('0s x3 every 1s user="<img src=x onerror=document.hostile=1>"\n');
  await tab.getByText('2 of 3 requests allowed').waitFor();
  found.hostile = await tab.evaluate(() => document.hostile ?? document.querySelectorAll('.playground img').length);
  await tab.locator('.share').click();
  found.link = await tab.locator('.shared').getAttribute('href');
  const shared = await rows(tab);
  const other = await open('dark', 390);
  await other.goto(found.link, { waitUntil: 'networkidle' });
  await other.getByText('2 of 3 requests allowed').waitFor();
  found.same = JSON.stringify(shared) === JSON.stringify(await rows(other));
  await look(other, 'a shared playground');
}

await browser.close();
process.stdout.write(JSON.stringify({ ...found, faults }));
