// @ts-check
import { bytes, count, fill, h, percent, rate, seconds, visible } from '../parts/text.js';
import { keepFocus, table } from '../parts/table.js';
import { ago, when } from '../parts/time.js';

/** @param {import('../app.js').Context} ctx @param {HTMLElement} root @returns {Promise<import('../app.js').View>} */
export async function show(ctx, root) {
  const ask = () => /** @type {Promise<{list: Api.Node[], nodes: Api.Nodes}>} */ (ctx.api('/api/v1/nodes', { signal: ctx.signal }));
  let answer = await ask();
  const box = h('div', null);
  const lead = h('p', { class: 'lead' });
  fill(root, h('div', { class: 'head' }, h('h1', null, 'Nodes')), lead, h('section', { class: 'card' }, box));

  function draw() {
    const { list, nodes: n } = answer;
    const digests = new Set(list.map((x) => x.digest));
    const broken = list.filter((x) => x.rules_broken);
    const faults = new Set(list.flatMap((x) => x.store_fault ? [x.store_fault] : []));
    fill(lead, n.answered < n.asked ? h('strong', { class: 'ink-refused' }, `${count(n.answered)} of ${count(n.asked)} nodes answered. `) : list.length === 1 ? 'One node. ' : `All ${count(list.length)} nodes answered. `,
      broken.length ? h('strong', { class: 'ink-refused' }, `What lies in the source is not in force on ${broken.map((x) => x.node).join(', ')}.`) : digests.size > 1 ? h('strong', { class: 'ink-refused' }, 'They do not have the same rules in force.') : list.length > 1 ? 'They have the same rules in force.' : '',
      [...faults].map((text) => h('div', null, h('strong', { class: 'ink-refused' }, `${visible(text)}.`))));
    fill(box, table({
      caption: 'Nodes', rows: list, none: 'No node answered.', columns: [
        { title: 'Node', cell: (x) => [h('strong', { class: 'mono' }, visible(x.node)), x.self ? h('span', { class: 'sub' }, ' this one') : null, x.address && !x.node.includes(x.address) ? h('div', { class: 'sub mono' }, visible(x.address)) : null, h('div', { class: 'sub' }, `${visible(x.version)}, up for ${ago(x.started)}`)] },
        { title: 'Rules', cell: (x) => [`${count(x.rules)} since `, when(x.rules_since), h('div', { class: 'sub mono' }, `${visible(x.digest).replace(/^sha256:/, '').slice(0, 12)} · ${x.rules_version ? `version ${visible(x.rules_version)}` : `generation ${count(x.generation)}`}`), x.rules_broken ? h('div', { class: 'ink-refused' }, 'newer ones are broken') : null] },
        { title: 'Decisions', number: true, cell: (x) => `${rate(x.per_second)} /s` },
        { title: 'Refused', number: true, cell: (x) => percent(x.refused_share) },
        { title: 'Time to decide, p99', number: true, cell: (x) => seconds(x.p99) },
        { title: 'Store', cell: (x) => [visible(x.store), x.breaker && x.breaker !== 'there' ? h('span', { class: 'ink-refused' }, ` ${x.breaker}`) : null, h('div', { class: 'sub' }, `${count(x.store_errors)} errors`), x.store_remark ? h('div', { class: 'ink-refused' }, visible(x.store_remark)) : null] },
        { title: 'Decisions seen', number: true, cell: (x) => [count(x.taken), h('div', { class: 'sub' }, x.thinned ? `${count(x.thinned)} left out` : 'none left out')] },
        { title: 'Memory', number: true, cell: (x) => bytes(x.memory) }],
    }));
    ctx.nodes(n, false);
  }
  draw();
  return { title: 'Nodes', every: 2000, async poll() { answer = await ask(); keepFocus(root, draw); } };
}
