// @ts-check
// Loads the script of the page, with all modules that its view needs, when what came with the HTML
// is painted: their loading would hold up the first frame. A hidden tab has no frames.

function load() {
  for (const name of (document.body.dataset.modules ?? '').split(' ')) {
    const link = document.createElement('link');
    link.rel = 'modulepreload';
    link.href = new URL(name, import.meta.url).href;
    document.head.append(link);
  }
  void import('./app.js');
}

if (document.hidden) load();
else requestAnimationFrame(() => setTimeout(load));
