// Overview and Instances: what needs a person, what happens now, and who answers.

import * as api from './api.js';
import { lines } from './charts.js';
import { badge, el, isNamed, keyLink, link, name, note, place, table } from './dom.js';
import * as words from './words.js';

const HISTORY_STEP = 10;
// findings that are seen at once
const FIRST = 4;
const SEVERITIES = { error: 'Error', warning: 'Warning', info: 'To know' };
// what a clock may differ by before it is marked, in seconds
const CLOCK_DISTANCE = 0.1;

// === Overview ===

export function overview(page) {
  const seen = { instance: null, attention: null, instances: null, audit: null };
  // events have no history, which comes first
  const draw = () => seen.instance?.history && page.drawSoon(() => sections(seen));
  page.every(HISTORY_STEP, async () => {
    const [instance, audit] = await Promise.all([api.get('instance'), api.get('audit', { limit: 5 })]);
    Object.assign(seen, { instance, audit });
    draw();
  });
  page.every(60, async () => {
    const [attention, fleet] = await Promise.all([api.get('attention'), api.get('instances', { limit: 1_000 })]);
    Object.assign(seen, { attention, instances: fleet });
    draw();
  });
  page.follow(['instance', 'attention', 'instances'], (topic, data) => {
    seen[topic] = { ...seen[topic], ...data };
    draw();
  });
}

function sections({ instance, attention, instances, audit }) {
  return [
    attentionList(attention),
    lines(instance.history, `Hits a second on ${instance.name}`),
    el('dl', { class: 'facts' }, facts(instance, instances)),
    changes(audit),
  ];
}

function attentionList(attention) {
  if (!attention) return null;
  const { items, next } = attention;
  return el('section', { 'aria-label': 'Attention' },
    el('h2', {}, 'Attention'),
    items.length ? findings(items.slice(0, FIRST)) : el('p', { class: 'nothing' }, 'Nothing needs you.'),
    items.length > FIRST && el('details', {}, el('summary', {}, `${items.length - FIRST} more`), findings(items.slice(FIRST))),
    next && note('There is more: /v1/attention has all.'));
}

function findings(items) {
  return el('ul', { class: 'attention' }, items.map(finding));
}

function finding({ severity, what, where, do: todo }) {
  return el('li', { class: severity },
    badge(severity, SEVERITIES[severity] ?? severity),
    el('div', {}, el('p', { class: 'what' }, name(what)), el('p', {}, name(todo)), el('p', { class: 'where' }, whereabouts(where))));
}

function whereabouts({ file, line, rule, domain, key, instance }) {
  const entries = key && domain ? entriesOf(key) : null;
  const parts = [
    file && place(file, line),
    rule && link('rules', { domain, rule }, name(rule)),
    entries ? keyLink(domain, entries) : key && name(domain ? `${key} in ${domain}` : key),
    !key && !rule && domain && el('span', {}, 'domain ', name(domain)),
    instance && link('instances', {}, name(instance)),
  ];
  return parts.filter(Boolean).flatMap((part) => [part, ' ']);
}

// The entries of a counter's `k=v,k=v`, if no value has a comma or is masked.
function entriesOf(key) {
  const pairs = key.split(',').map((pair) => pair.split(/=(.*)/s));
  const entries = pairs.map(([key, value]) => ({ key, value }));
  return pairs.every(({ length }) => length > 1) && isNamed(entries) ? entries : null;
}

function facts(instance, instances) {
  const { store, latency, rules, counters, recording } = instance;
  return [
    fact('Requests', `${words.rate(instance.requests_per_second)} a second`, 'in the last minute, on this instance'),
    fact('Latency', latency ? words.duration(latency.p50) : 'no gRPC decisions', latency && `at the median; 1 of 100 takes more than ${words.duration(latency.p99)}`),
    fact('Store', [`${store.kind}: `, badge(store.state === 'ok' ? 'ok' : 'error', store.state)], storeTraffic(store)),
    fact('Instances', instances ? String(instances.items.length) : '–', link('instances', {}, fleetRate(instances))),
    fact('Rules', words.count(rules.count, 'rule'), [rules.is_rejected && badge('error', 'newest files rejected'), rules.loaded_at ? ` loaded ${words.ago(rules.loaded_at)}` : ' none loaded']),
    fact('Counters', `${words.number(counters.held)} of ${words.number(counters.most)}`, `${words.bytes(instance.memory_bytes)} of memory`),
    fact('Recording', recording?.is_on ? 'on' : 'off', recording ? `${words.count(recording.records, 'request')} of ${words.duration(recording.covers)}` : link('whatif', {}, 'needed to compare rules')),
    fact('Up', words.duration((words.now() - Date.parse(instance.since)) / 1_000), `since ${words.clock(instance.since)}`),
  ];
}

function fact(title, value, more) {
  return el('div', {}, el('dt', {}, title), el('dd', { class: 'value' }, value), el('dd', {}, more));
}

function storeTraffic({ is_shared, calls_per_second, round_trip }) {
  if (!is_shared) return 'counts of this instance alone';
  const trip = round_trip === null ? 'no calls' : `round trip ${words.duration(round_trip)}`;
  return `${words.rate(calls_per_second)} calls a second, ${trip}`;
}

function fleetRate(instances) {
  const total = (field) => instances.items.reduce((sum, { rates }) => sum + rates[field], 0);
  return instances ? `${words.rate(total('admitted_1m'))} admitted, ${words.rate(total('rejected_1m'))} rejected a second` : 'all instances';
}

function changes(audit) {
  if (!audit?.items.length) return null;
  const item = ({ at, who, what, before, after }) =>
    el('li', {}, el('time', { datetime: at }, words.clock(at)), ' ', name(who), ': ', name(what),
      before && after && el('span', { class: 'faint' }, ' ', name(before), ' → ', name(after)));
  return el('section', { 'aria-label': 'Last changes' }, el('h2', {}, 'Last changes'), el('ul', { class: 'plain' }, audit.items.map(item)));
}

// === Instances ===

export function instances(page) {
  let fleet = null;
  const draw = () => page.drawSoon(() => fleetSections(fleet));
  page.every(60, async () => {
    fleet = await api.get('instances', { limit: 1_000 });
    draw();
  });
  page.follow(['instances'], (_, data) => {
    fleet = data;
    draw();
  });
}

function fleetSections({ items, scope, note: said }) {
  const usual = { version: most(items.map(({ version }) => version)), digest: most(items.map(({ rules }) => rules.digest)) };
  const differing = items.filter((item) => differences(item, usual).length).length;
  const sentence = items.length === 1 ? 'One instance reports.'
    : differing ? `${words.count(differing, 'instance')} of ${items.length} ${differing === 1 ? 'differs' : 'differ'} from the others.`
      : `All ${items.length} instances agree.`;
  return [
    el('p', { class: 'lead' }, sentence),
    note(said ?? (scope === 'instance' ? 'Without a shared store each instance is on its own.' : null)),
    table('Instances that reported in the last 10 seconds', columns(usual), items, ({ name }) => name),
  ];
}

function most(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort((one, other) => other[1] - one[1])[0]?.[0];
}

function differences({ version, rules, clock_distance, store_state }, usual) {
  return [
    version !== usual.version && 'version',
    rules.digest !== usual.digest && 'rules',
    rules.is_rejected && 'rules rejected',
    Math.abs(clock_distance ?? 0) > CLOCK_DISTANCE && 'clock',
    store_state !== 'ok' && 'store',
  ].filter(Boolean);
}

function columns(usual) {
  return [
    { title: 'Instance', cell: (item) => [name(item.name), item.is_this && badge('info', 'this one')] },
    { title: 'Differs by', cell: (item) => differences(item, usual).map((word) => badge('warning', word)) },
    { title: 'Version', cell: ({ version }) => version },
    { title: 'Rules', cell: ({ rules }) => [words.count(rules.count, 'rule'), el('span', { class: 'faint' }, ` ${rules.digest.slice(0, 8)}`)] },
    { title: 'Clock', wide: true, cell: ({ clock_distance }) => clockWords(clock_distance) },
    { title: 'Store', cell: ({ store_state }) => badge(store_state === 'ok' ? 'ok' : 'error', store_state) },
    { title: 'Admitted a second', number: true, cell: ({ rates }) => words.rate(rates.admitted_1m) },
    { title: 'Rejected a second', number: true, cell: ({ rates }) => words.rate(rates.rejected_1m) },
    { title: 'Counters', number: true, cell: ({ counters_held }) => words.number(counters_held) },
    { title: 'Memory', number: true, cell: ({ memory_bytes }) => words.bytes(memory_bytes) },
    { title: 'Up', wide: true, cell: ({ since }) => words.duration((words.now() - Date.parse(since)) / 1_000) },
  ];
}

function clockWords(distance) {
  if (distance === null) return 'not compared';
  if (Math.abs(distance) < 1e-6) return 'that of the store';
  return `${words.duration(Math.abs(distance))} ${distance > 0 ? 'ahead of' : 'behind'} the store’s`;
}
