// How VitePress renders the site. scripts/build site lays the pages into src/ beside this file's
// folder, and says by the environment what version they are of.
import { readFileSync, readdirSync, writeFileSync, mkdirSync } from 'node:fs';
import path from 'node:path';
import { anchor, beside, contents, sitePath, target } from './pages.mjs';

const srcDir = path.resolve(import.meta.dirname, '..', 'src');
const base = process.env.SITE_BASE ?? '/';
const version = process.env.SITE_VERSION ?? 'unknown';
// Where the documentation of each version is: the newest, then those that have a tag.
const versions = (process.env.SITE_VERSIONS ?? '').split(' ').filter(Boolean).map((link, i) => ({ text: i === 0 ? 'newest' : link.split('/').at(-2), link }));

const sources = readdirSync(srcDir, { recursive: true, encoding: 'utf8' }).filter((f) => f.endsWith('.md'));
const pages = new Set(sources.map((f) => f.split(path.sep).join('/')));
const read = (source) => readFileSync(path.join(srcDir, source), 'utf8');
const title = (source) => /^# (.*)$/m.exec(read(source))?.[1] ?? source;
const groups = contents(read('docs/README.md')).map((g) => ({ ...g, pages: g.pages.filter((p) => pages.has(p.source)) }));
const html = (source) => '/' + sitePath(source).replace(/(index)?\.md$/, (_, index) => (index ? '' : '.html'));

/** repositoryLinks makes the links of each page lead to pages of the site, or into the repository. */
function repositoryLinks(md) {
  md.core.ruler.push('repository-links', (state) => {
    const from = path.relative(srcDir, state.env.realPath ?? state.env.path).split(path.sep).join('/');
    for (const block of state.tokens) {
      for (const token of block.children ?? []) {
        const href = token.type === 'link_open' && token.attrGet('href');
        if (href) token.attrSet('href', target(from, href, pages, '/'));
      }
    }
  });
}

/** emptyCells makes a heading of a table that says nothing an ordinary cell. */
function emptyCells(md) {
  md.core.ruler.push('empty-cells', (state) => {
    for (const [i, token] of state.tokens.entries()) {
      if (token.type !== 'th_open' || state.tokens[i + 1].content !== '') continue;
      token.tag = 'td';
      state.tokens[i + 2].tag = 'td';
    }
  });
}

/** ownBraces shows pairs of braces as they stand: here they belong to Go's templates, never to Vue's. */
function ownBraces(md) {
  for (const rule of ['text', 'code_inline']) {
    const before = md.renderer.rules[rule];
    md.renderer.rules[rule] = (...args) => before(...args).replaceAll('{{', '&#123;&#123;');
  }
}

/**
 * searchRoles makes the theme's search a dialog with a list of links: it calls itself a button, and
 * its links options, in which nothing else may take the focus.
 */
const searchRoles = {
  name: 'search-roles',
  enforce: 'pre',
  transform(code, id) {
    if (!id.endsWith('/VPLocalSearchBox.vue')) return undefined;
    for (const [from, to] of [
      [/role="button"\s+:aria-owns="[^"]*"\s+aria-expanded="true"\s+aria-haspopup="listbox"/, 'role="dialog" aria-modal="true"'],
      [/:role="results\?\.length \? 'listbox' : undefined"/, ''],
      [/<kbd :aria-label/g, '<kbd role="img" :aria-label'], // a name without a role says nothing
      [/:aria-selected="selectedIndex === index \? 'true' : 'false'"\s+role="option"/, ':aria-current="selectedIndex === index || undefined"'],
    ]) {
      if (code.search(from) < 0) throw new Error(`the search of this VitePress has no ${from}`);
      code = code.replace(from, to);
    }
    return code;
  },
};

/** llms is the list of pages for programs that read them. */
function llms() {
  const lines = ['# Weir', '', '> A rate limiter: a server, a reverse proxy and a Go library that decide, for each request, whether it may pass now.', ''];
  for (const g of groups) {
    lines.push(`## ${g.reader}`, '', ...g.pages.map((p) => `- [${title(p.source)}](${base}${sitePath(p.source)})`), '');
  }
  return lines.join('\n');
}

const playground = pages.has('docs/site/playground.md');

export default {
  lang: 'en',
  title: 'Weir',
  description: 'A rate limiter: a server, a reverse proxy and a Go library that decide, for each request, whether it may pass now.',
  base,
  srcDir,
  outDir: process.env.SITE_OUT,
  rewrites: Object.fromEntries([...pages].map((p) => [p, sitePath(p)]).filter(([from, to]) => from !== to)),
  head: [['link', { rel: 'icon', type: 'image/svg+xml', href: `${base}icon.svg` }]],
  router: { prefetchLinks: false }, // the first page is all that a reader has asked for
  vite: { plugins: [searchRoles] },
  markdown: {
    theme: { light: 'github-light-high-contrast', dark: 'github-dark-high-contrast' },
    anchor: { slugify: anchor },
    config(md) {
      repositoryLinks(md);
      emptyCells(md);
      ownBraces(md);
    },
  },
  themeConfig: {
    nav: [
      { text: 'Documentation', link: '/pages.html' },
      ...(playground ? [{ text: 'Playground', link: '/playground.html' }] : []),
      { text: version, link: '/CHANGELOG.html' },
      ...(versions.length > 1 ? [{ component: 'Versions', props: { here: base, versions } }] : []),
    ],
    sidebar: groups.map((g) => ({
      text: g.reader, items: g.pages.map((p) => ({ text: p.text, link: html(p.source) })),
    })),
    outline: { level: [2, 3] },
    search: { provider: 'local' },
  },
  async buildEnd({ outDir }) {
    writeFileSync(path.join(outDir, 'llms.txt'), llms());
    for (const source of pages) {
      const file = path.join(outDir, sitePath(source));
      mkdirSync(path.dirname(file), { recursive: true });
      writeFileSync(file, beside(source, read(source), pages, base));
    }
  },
};
