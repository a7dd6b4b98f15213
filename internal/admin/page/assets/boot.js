// @ts-check
// Loads the script of the page when what came with the HTML is painted: its loading would hold up
// the first frame. A hidden tab has no frames.

const load = () => { void import('./app.js'); };

if (document.hidden) load();
else requestAnimationFrame(() => setTimeout(load));
