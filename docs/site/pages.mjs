// Which pages the site has, in which order, and where the links of a page lead. Paths begin at
// the root of the repository; a page of docs/ stands at the same place below the site's root.
import path from 'node:path';

export const repository = 'https://github.com/weir-rl/weir';

/**
 * sitePath returns where a page stands on the site.
 * @param {string} source
 */
export function sitePath(source) {
  const moved = { 'README.md': 'index.md', 'docs/README.md': 'pages.md' }[source];
  return moved ?? source.replace(/^docs\//, '').replace(/README\.md$/, 'index.md').replace(/^site\//, '');
}

/**
 * contents reads the table of docs/README.md: for each reader the pages, in order.
 * @param {string} text of docs/README.md
 * @returns {{reader: string, pages: {text: string, source: string}[]}[]}
 */
export function contents(text) {
  const groups = [];
  for (const [, reader, cell] of text.matchAll(/^\| \*\*(.+?)\*\* \| (.*) \|$/gm)) {
    const pages = [...cell.matchAll(/\[([^\]]+)\]\(([^)\s]+)\)/g)].map(([, text, target]) => ({
      text: text[0].toUpperCase() + text.slice(1), source: path.posix.join('docs', target),
    }));
    groups.push({ reader: reader[0].toUpperCase() + reader.slice(1), pages });
  }
  return groups;
}

/**
 * target returns where a link leads: to a page of the site, or to a file of the repository.
 * @param {string} from the page that has the link
 * @param {string} href as it is written there
 * @param {Set<string>} pages all pages of the site
 * @param {string} base of the site
 */
export function target(from, href, pages, base) {
  if (href === '' || href.startsWith('#') || /^[a-z][a-z0-9+.-]*:/i.test(href)) return href;
  const [file, anchor] = href.split('#');
  const source = path.posix.join(path.posix.dirname(from), file);
  const tail = anchor === undefined ? '' : `#${anchor}`;
  if (pages.has(source)) return base + sitePath(source) + tail;
  return `${repository}/${path.posix.extname(source) ? 'blob' : 'tree'}/HEAD/${source.replace(/\/$/, '')}${tail}`;
}

/**
 * beside returns the Markdown of a page as it stands beside the page, with links that lead from there.
 * @param {string} from
 * @param {string} text
 * @param {Set<string>} pages
 * @param {string} base
 */
export function beside(from, text, pages, base) {
  let fenced = false;
  return text.split('\n').map((line) => {
    if (line.trim().startsWith('```')) fenced = !fenced;
    if (fenced) return line;
    return line.replace(/(\]\()([^()\s]+)(\))/g, (_, open, href, close) => open + target(from, href, pages, base) + close);
  }).join('\n');
}

/**
 * anchor returns the anchor of a heading, as GitHub makes it; the second of two equal ones gets its
 * number from the generator.
 * @param {string} heading
 */
export function anchor(heading) {
  return [...heading.trim()].map((c) => {
    if (c === ' ') return '-';
    return /[-_\p{L}\p{N}]/u.test(c) ? c.toLowerCase() : '';
  }).join('');
}
