// @ts-check
// The stream: one a tab, none while the tab is hidden. Where it cannot be had, and for views that
// have none, the view asks again and again. When nobody answers, a banner says so, and the page
// goes on when somebody does.

/**
 * @typedef {object} Source
 * @property {Record<string, string>} [stream] parameters of the stream; without them there is none
 * @property {(topic: string, data: any) => void} [on]
 * @property {(detail: string) => void} [problem] is told why there is nothing to show
 * @property {() => Promise<void>} [poll] asks anew
 * @property {() => Promise<boolean>} [opened] asks for what came before the stream, once that is open;
 *   it tells whether all nodes have answered
 * @property {number} [every] how often poll is called without a stream, in ms; 2000 by default
 */

/** How long nobody may answer before a connection is tried anew, in ms. */
const again = 1000;

/** After so many refusals of the stream alone, the view is polled. */
const mostFailures = 3;

/** What is known of the outages of stores, for all views: app.js asks for it. */
export const outages = {
  /** @type {Api.Outage[]} the newest first */
  list: [],
  /** @type {Set<() => void>} called when the list has changed */
  watchers: new Set(),
  /** @param {Api.Outage[]} list */
  take(list) {
    if (JSON.stringify(list) === JSON.stringify(this.list)) return;
    this.list = list;
    for (const f of this.watchers) f();
  },
  /** watch calls f for each change until the function that it returns is called. @param {() => void} f */
  watch(f) {
    this.watchers.add(f);
    return () => { this.watchers.delete(f); };
  },
};

/** alike has the nodes of an outage that decide alike, by how they do. @param {Api.Outage} o */
export function alike(o) {
  /** @type {Map<string, Api.Outage['nodes']>} */
  const by = new Map();
  for (const n of o.nodes) by.set(n.does, [...by.get(n.does) ?? [], n]);
  return [...by];
}

export class Live {
  /** @param {(away: boolean) => void} tell is told when the server goes away, and when it is back */
  constructor(tell) {
    this.tell = tell;
    /** @type {Source | null} */
    this.view = null;
    /** @type {EventSource | null} */
    this.source = null;
    this.polling = 0;
    this.retry = 0;
    this.failures = 0;
    this.away = false;
    this.asking = false;
    document.addEventListener('visibilitychange', () => {
      this.stop();
      if (!document.hidden) this.resume();
    });
    addEventListener('pagehide', () => this.stop());
    addEventListener('pageshow', (e) => { if (e.persisted) this.resume(); });
  }

  /** show goes on with another view, or with none. @param {Source | null} view */
  show(view) {
    this.stop();
    this.view = view;
    this.failures = 0; // the refusals were of another stream
    this.open();
  }

  resume() {
    void this.poll();
    this.open();
  }

  open() {
    const { view } = this;
    if (document.hidden || !view || this.source || this.polling) return;
    if (!view.stream || this.failures >= mostFailures) {
      if (view.poll) this.polling = window.setInterval(() => { void this.poll(); }, view.every ?? 2000);
      return;
    }
    const es = new EventSource(`/api/v1/stream?${new URLSearchParams(view.stream)}`);
    this.source = es;
    let opened = false;
    for (const topic of (view.stream.views ?? '').split(',')) {
      es.addEventListener(topic, (e) => {
        try { view.on?.(topic, JSON.parse(e.data)); } catch (err) { console.error(err); }
      });
    }
    es.addEventListener('problem', (e) => { view.problem?.(JSON.parse(e.data).detail); });
    es.onopen = () => {
      opened = true;
      this.failures = 0;
      this.back();
      void this.before(es, view);
    };
    es.onerror = () => {
      if (this.source !== es) return;
      es.close();
      this.source = null;
      if (!opened) this.failures++;
      void this.lost();
    };
  }

  /** before asks for what came before the stream, and a few times again for nodes that answered too
   * late: the stream does not bring it. @param {EventSource} es @param {Source} view */
  async before(es, view) {
    for (let n = 0; n < 5 && this.source === es; n++) {
      try {
        if (!view.opened || await view.opened()) return;
      } catch {
        // nobody answered
      }
      await new Promise((then) => { setTimeout(then, again); });
    }
  }

  stop() {
    this.source?.close();
    this.source = null;
    clearInterval(this.polling);
    this.polling = 0;
    clearTimeout(this.retry);
    this.retry = 0;
  }

  /** lost finds out why there is no stream: nobody answers, or only the stream is refused. */
  async lost() {
    clearTimeout(this.retry);
    if (document.hidden) return;
    let there = false;
    try {
      there = (await fetch('/healthz', { cache: 'no-store', signal: AbortSignal.timeout(3000) })).ok;
    } catch {
      // nobody answers
    }
    if (there) {
      if (this.away) this.back();
      this.open();
      return;
    }
    this.failures = 0;
    if (!this.away) {
      this.away = true;
      this.tell(true);
    }
    if (!document.hidden) this.retry = window.setTimeout(() => { void this.lost(); }, again);
  }

  /** back goes on after the server was away. */
  back() {
    if (!this.away) return;
    this.away = false;
    this.tell(false);
    void this.poll();
  }

  /** poll asks anew, unless it is asking. */
  async poll() {
    if (this.asking || !this.view?.poll) return;
    this.asking = true;
    try {
      await this.view.poll();
      this.back();
    } catch (err) {
      if (/** @type {any} */ (err)?.status === 0) {
        this.stop();
        void this.lost();
      }
    } finally {
      this.asking = false;
    }
  }
}
