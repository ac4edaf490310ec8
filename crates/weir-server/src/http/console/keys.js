// Hot keys, and a key: its tiers, who holds what, its reset.

import * as api from './api.js';
import { bar, lines, tiers } from './charts.js';
import { badge, choices, el, empty, entriesText, isNamed, keyLink, link, name, note, place, problem, table } from './dom.js';
import * as words from './words.js';

const ROWS = 20;
const MODES = { local: 'alone', interval: 'by reports in intervals', lease: 'by leases', strict: 'by asking the store each time', split: 'by its part of the limit' };

// === Hot keys ===

export function hotKeys(page) {
  const { by = 'hits', window = '1m', scope = window === '1m' ? 'fleet' : 'instance' } = page.params;
  let hot = null;
  const draw = () => page.drawSoon(() => hotSections(page, { by, window, scope }, hot));
  const isStreamed = window === '1m' && scope === 'fleet';
  page.every(isStreamed ? 30 : 5, async () => {
    hot = await api.get('hot', { by, window, scope, limit: ROWS });
    draw();
  });
  if (!isStreamed) return;
  page.follow([by === 'hits' ? 'hot' : 'hot_rejected'], (_, data) => {
    hot = data;
    draw();
  });
}

function hotSections(page, state, hot) {
  const { by, window } = state;
  return [
    el('div', { class: 'bar-of-choices' },
      choices('Order', 'hot', state, 'by', [['hits', 'By hits'], ['rejected', 'By rejections']]),
      choices('Time', 'hot', { ...state, scope: null }, 'window', [['1m', 'Last minute'], ['10m', 'Last 10 minutes']]),
      window === '1m' && choices('Instances', 'hot', state, 'scope', [['fleet', 'All instances'], ['instance', 'This one']])),
    hot.items.length ? hotTable(by, hot) : noHotKeys(by, hot),
    note(hot.note ?? (hot.scope === 'instance' && state.scope === 'fleet' ? 'Without a shared store these are the keys of this instance.' : null)),
    hot.items.length > 0 && note(sampling(hot)),
  ];
}

function noHotKeys(by, { values }) {
  if (values === 'off') return empty('Hot keys are switched off.', 'WEIR_HOT_KEYS=shown or masked finds them.');
  return by === 'hits' ? empty('No key had hits in this time.', 'Send a request: weir call --domain DOMAIN KEY=VALUE.')
    : empty('Nothing was rejected in this time.', 'By hits, the keys with the most traffic are there.');
}

function sampling({ one_in, values }) {
  const masked = values === 'masked' ? ' Values are masked (WEIR_HOT_KEYS=masked), so keys cannot be opened from here.' : '';
  return `Counts are estimates${one_in > 1 ? ` from one in ${words.number(one_in)} decisions` : ''}: the pale end of a bar is the part that is not certain.${masked}`;
}

function hotTable(by, { items }) {
  const most = Math.max(...items.map((item) => Number(item.at_most)), 1);
  const kind = by === 'hits' ? 'admitted' : 'rejected';
  const columns = [
    { title: 'Key', cell: (item) => [hotKey(item), el('span', { class: 'faint' }, name(item.domain))] },
    { title: by === 'hits' ? 'Hits' : 'Rejected hits', cell: (item) => hotBar(item, most, kind) },
    { title: 'Hits a second', number: true, cell: ({ per_second }) => words.rate(per_second) },
    { title: 'Between', number: true, cell: ({ at_least, at_most }) => `${words.number(at_least)} and ${words.number(at_most)}` },
    { title: 'Used of limit', number: true, cell: ({ used }) => el('span', { class: used >= 0.9 ? 'rejected strong' : '' }, words.share(used)) },
    { title: 'Rule', wide: true, cell: ({ rule, domain }) => (rule ? link('rules', { domain, rule }, name(rule)) : 'limit of the request') },
  ];
  return table('The hottest first', columns, items, (item) => JSON.stringify([item.domain, item.text, item.number]));
}

function hotKey({ domain, entries, text }) {
  if (isNamed(entries)) return keyLink(domain, entries, text);
  return [name(text), entries === null && el('span', { class: 'faint' }, ' too long to open')];
}

function hotBar({ hits, at_least, at_most }, most, kind) {
  const label = `${words.number(hits)} hits`;
  return el('span', { class: 'with-bar' },
    bar(Number(at_most) / most, kind, label, Number(at_least) / most), el('b', {}, words.number(hits)));
}

// === A key ===

export function key(page) {
  const { domain, entry = [] } = page.params;
  if (!domain) {
    page.every(60, async () => page.draw(lookUp(page, await domainsOf())));
    return;
  }
  const entries = entry.map(entryOf);
  const seen = { counters: [], below: [], missing: null, history: null, answer: null, said: null };
  const draw = () => page.drawSoon(() => keySections(page, domain, entries, seen, draw));
  page.every(2, async () => {
    await find(domain, entry, seen);
    draw();
  });
  page.every(10, async () => {
    const { items } = await api.get('counters', { domain, entry, below: true });
    seen.below = items.filter((item) => item.entries.length > entries.length);
    draw();
  });
}

async function domainsOf() {
  const { items } = await api.get('rules', { limit: 1_000 });
  return [...new Set(items.map(({ domain }) => domain))];
}

function entryOf(text) {
  const [key, value = ''] = text.split(/=(.*)/s);
  return { key, value };
}

async function find(domain, entry, seen) {
  try {
    const { items, note } = await api.get('counters', { domain, entry });
    Object.assign(seen, { counters: items, missing: null, said: note });
  } catch (error) {
    if (error.status !== 404 && error.status !== 400) throw error;
    Object.assign(seen, { counters: [], missing: error });
  }
}

function lookUp(page, domains) {
  const submit = (event) => {
    event.preventDefault();
    const { domain, entries } = event.target;
    location.hash = link('key', { domain: domain.value, entry: entries.value.trim().split(/\s+/) }).hash;
  };
  return el('form', { class: 'look-up', onsubmit: submit },
    el('p', {}, 'Open a key from ', link('hot', {}, 'Hot keys'), ', find one with ', el('kbd', {}, '/'), ', or name it:'),
    el('label', { for: 'domain' }, 'Domain'), el('select', { id: 'domain', name: 'domain' }, domains.map((domain) => el('option', { value: domain }, domain))),
    el('label', { for: 'entries' }, 'Entries, in order'),
    el('input', { id: 'entries', name: 'entries', required: true, autocomplete: 'off', spellcheck: 'false', placeholder: 'tenant=acme path=/v1/orders' }),
    el('button', { type: 'submit', class: 'main' }, 'Look up'));
}

function keySections(page, domain, entries, seen, draw) {
  const question = JSON.stringify({ domain, descriptors: [{ entries }] });
  return [
    el('p', { class: 'the-key' }, name(entriesText(entries)), el('span', { class: 'faint' }, ' in domain ', name(domain))),
    seen.missing && el('div', {}, el('p', { class: 'hint' }, name(seen.missing.message)), el('p', {}, link('why', { text: question }, 'Why?'))),
    seen.counters.map((counter) => counterSection(counter)),
    note(seen.said),
    seen.counters.length > 0 && resetSection(page, domain, entries, seen, draw),
    seen.counters.length > 0 && el('p', {}, link('why', { text: question }, 'What would a request get now, and why?')),
    belowSection(domain, seen.below),
  ];
}

export function counterSection(counter) {
  const { rule, file, line, mode, source, is_shadow, in_flight, history } = counter;
  return el('section', { 'aria-label': 'Counter' },
    el('p', {},
      rule ? ['Rule ', link('rules', { domain: counter.domain, rule }, name(rule)), ' ', file && place(file, line)] : 'A limit that came with the request',
      ' ', is_shadow && badge('info', 'shadow: it only counts')),
    tiers(counter.tiers),
    in_flight && el('p', {}, `${words.number(in_flight.now)} of ${words.number(in_flight.most)} places are taken by requests in flight.`),
    el('p', { class: 'faint' }, `Counts are from ${source === 'store' ? 'the shared store' : source}${mode ? `; this instance counts ${MODES[mode] ?? mode} (${mode})` : ''}.`),
    held(counter),
    history ? lines(history, 'Hits a second, 10 minutes') : note('No line of the last minutes: the key is not among the hot ones.'),
    note(counter.note));
}

function held({ local }) {
  if (!local) return null;
  return el('p', {}, `This instance holds ${words.count(local.leased, 'leased hit')}, and has ${words.count(local.pending, 'hit')} to report.`);
}

function belowSection(domain, items) {
  if (!items.length) return null;
  const columns = [
    { title: 'Key', cell: (item) => (isNamed(item.entries) ? keyLink(domain, item.entries) : name(entriesText(item.entries))) },
    { title: 'Fullest tier', cell: (item) => fullestTier(item.tiers) },
    { title: 'Rule', wide: true, cell: ({ rule }) => rule && link('rules', { domain, rule }, name(rule)) },
  ];
  return el('section', { 'aria-label': 'Keys below' },
    el('h2', {}, 'Below it, on this instance'), table('Counters that begin with these entries', columns, items, (item) => entriesText(item.entries)));
}

function fullestTier(states) {
  const shareOf = ({ used, limit }) => (Number(limit) ? Number(used) / Number(limit) : 1);
  const fullest = states.reduce((one, other) => (shareOf(other) > shareOf(one) ? other : one));
  return el('span', { class: 'with-bar' },
    bar(shareOf(fullest), fullest.is_over ? 'rejected' : 'admitted', `${words.share(shareOf(fullest))} used`),
    `${words.number(fullest.used)} of ${words.number(fullest.limit)}`);
}

// === reset ===

function resetSection(page, domain, entries, seen, draw) {
  if (!page.mayChange) return note('A reset needs the level full: a token of that level, or WEIR_ADMIN=full.');
  const ask = () => askToReset(domain, entries, () => page.attempt(async () => {
    seen.answer = await reset(domain, entries);
    await find(domain, entries.map(({ key, value }) => `${key}=${value}`), seen);
    draw();
  }));
  return el('div', { class: 'reset' }, el('button', { type: 'button', class: 'danger', onclick: ask }, 'Reset …'), el('div', { role: 'status' }, seen.answer));
}

function askToReset(domain, entries, confirmed) {
  const dialog = el('dialog', { 'aria-labelledby': 'reset-title' },
    el('h2', { id: 'reset-title' }, 'Reset this key?'),
    el('p', { class: 'the-key' }, name(entriesText(entries)), ' in domain ', name(domain)),
    el('p', {}, 'Its hits are forgotten, in all tiers, on all instances and in the store. Hits already admitted stay admitted.'),
    el('div', { class: 'buttons' },
      el('button', { type: 'button', onclick: () => dialog.close() }, 'Keep it'),
      el('button', { type: 'button', class: 'danger', onclick: () => dialog.close('reset') }, 'Reset ', name(entriesText(entries)))));
  dialog.addEventListener('close', () => {
    dialog.remove();
    if (dialog.returnValue === 'reset') confirmed();
  });
  document.body.append(dialog);
  dialog.showModal();
}

async function reset(domain, entries) {
  try {
    const { was, scope, places_freed, note: said } = await api.post('reset', { domain, entries });
    const before = was.flatMap((counter) => counter.tiers.map(({ used, limit }) => `${words.number(used)} of ${words.number(limit)}`));
    const freed = Number(places_freed) ? ` ${words.count(places_freed, 'place')} freed.` : '';
    const where = scope === 'fleet' ? 'on all instances' : 'on this instance';
    return el('p', { class: 'done' }, `Reset ${where} at ${words.clock(words.now())}. Before: ${before.join(', ') || 'nothing'}.${freed} ${said ?? ''}`);
  } catch (error) {
    return error instanceof api.Problem ? problem(error) : problem({ title: 'Not known', message: 'weir did not answer: look at the counts above.' });
  }
}
