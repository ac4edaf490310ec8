// Rules: the tree of the files in force, with the traffic of each rule.

import * as api from './api.js';
import { bar, spark } from './charts.js';
import { address, badge, choices, el, empty, isNamed, keyLink, link, name, note, place, table } from './dom.js';
import * as words from './words.js';

// rows of a domain before one asks for more
const PART = 100;
const HOT_KEYS = 5;

export function rules(page) {
  const seen = { rules: [], unmatched: null, hot: null, rows: new Map(), shown: PART, isComplete: false };
  const draw = () => page.drawSoon(() => sections(page, seen, draw));
  page.every(60, async () => {
    await load(page, seen, draw);
    seen.unmatched = await api.get('unmatched');
    draw();
  });
  page.follow(['rules'], (_, { items }) => {
    merge(seen.rules, items);
    draw();
  });
  if (page.params.rule) {
    page.every(5, async () => {
      seen.hot = await api.get('hot', { limit: 1_000 });
      draw();
    });
  }
}

// The first load shows the first rules before it has all; later ones replace all at once.
async function load(page, seen, draw) {
  const all = [];
  for await (const { items } of api.pages('rules')) {
    if (!page.isOpen) return;
    all.push(...items);
    if (seen.rules.length) continue;
    seen.rules = items;
    draw();
  }
  Object.assign(seen, { rules: all, isComplete: true });
  draw();
}

function merge(rules, updates) {
  const byPath = new Map(updates.map((update) => [update.rule, update]));
  for (const rule of rules) {
    const { rates, last_matched } = byPath.get(rule.rule) ?? rule;
    Object.assign(rule, { rates, last_matched });
  }
}

function sections(page, seen, draw) {
  const domains = [...new Set(seen.rules.map(({ domain }) => domain))];
  if (!domains.length) return [seen.isComplete ? noRules() : null];
  const shown = domains.filter((domain) => !page.params.domain || domain === page.params.domain);
  return [
    domains.length > 1 && choices('Domain', 'rules', { domain: page.params.domain ?? '' }, 'domain', [['', 'All domains'], ...domains.map((domain) => [domain, domain])]),
    filter(page, draw),
    shown.map((domain) => domainSection(page, seen, domain, draw)),
    unmatchedSection(seen.unmatched, page.params.domain),
  ];
}

function noRules() {
  return empty('No rules are in force.', 'Put a file with a domain into the directory of --config: docs/rules.md begins with one.');
}

function filter(page, draw) {
  const remember = ({ target }) => {
    page.remember({ ...page.params, text: target.value });
    draw();
  };
  return el('p', { class: 'filter' },
    el('label', { for: 'filter' }, 'Show rules with '),
    el('input', { id: 'filter', type: 'search', value: page.params.text, autocomplete: 'off', oninput: remember }));
}

// === the tree ===

function domainSection(page, seen, domain, draw) {
  const { found, rows } = rowsOf(seen, domain, (page.params.text ?? '').toLowerCase());
  const chosen = rows.findIndex(({ rule }) => rule && rule.rule === page.params.rule);
  const most = Math.max(seen.shown, chosen + 1);
  const more = () => {
    seen.shown = most + PART;
    draw();
  };
  return el('section', { 'data-key': domain, 'aria-label': `Domain ${domain}` },
    el('h2', {}, 'Domain ', name(domain)),
    found.length ? table(`${words.count(found.length, 'rule')} of ${domain}`, columns(page), rows.slice(0, most), ({ key }) => key, (row) => detailOf(page, seen, row))
      : empty('No rule here has this text.', 'Clear the field above to see all.'),
    rows.length > most && el('button', { type: 'button', onclick: more }, `Show more of ${words.number(rows.length)} rows`));
}

// Thousands of rules are not searched each second.
function rowsOf(seen, domain, text) {
  const known = seen.rows.get(domain);
  if (known?.rules === seen.rules && known.text === text) return known;
  const found = seen.rules.filter((rule) => rule.domain === domain && `${rule.rule} ${rule.file} ${rule.limit}`.toLowerCase().includes(text));
  const made = { rules: seen.rules, text, found, rows: tree(found) };
  seen.rows.set(domain, made);
  return made;
}

// The rules in the order of the files, with a row for each level above that has no rule of its own.
function tree(rules) {
  const rows = [];
  let above = [];
  rules.forEach((rule, index) => {
    const path = rule.levels.map(levelText);
    const common = path.findIndex((text, depth) => text !== above[depth]);
    const from = common < 0 ? path.length - 1 : common;
    for (let depth = from; depth < path.length - 1; depth += 1) {
      rows.push({ key: `${index} ${depth}`, depth, text: path[depth], rule: null });
    }
    rows.push({ key: `${rule.file}:${rule.line} ${rule.rule}`, depth: Math.max(path.length - 1, 0), text: path.at(-1) ?? '(domain)', rule });
    above = path;
  });
  return rows;
}

function levelText({ key, values }) {
  return values === null ? key : `${key} = ${values.join(', ')}`;
}

function columns(page) {
  const of = (cell) => ({ rule }) => (rule ? cell(rule) : '');
  return [
    { title: 'Rule', cell: (row) => ruleCell(page, row) },
    { title: 'Limit', cell: of((rule) => [words.grouped(rule.limit), rule.is_shadow && badge('info', 'shadow')]) },
    { title: 'Ten minutes', cell: of(({ recent }) => spark(recent)) },
    { title: 'Admitted a second', number: true, cell: of(({ rates }) => words.rate(rates.admitted_1m)) },
    { title: 'Rejected a second', number: true, cell: of(({ rates }) => rejections(rates)) },
    { title: 'Fullest key', cell: of(fullest) },
    { title: 'Last matched', cell: of(({ last_matched }) => lastMatched(last_matched)) },
  ];
}

function ruleCell(page, { rule, text, depth }) {
  const label = el('span', { class: `depth depth-${Math.min(depth, 8)}` }, rule ? ruleLink(page, rule, text) : name(text));
  return rule ? [label, el('span', { class: 'faint' }, place(rule.file, rule.line))] : label;
}

function ruleLink(page, rule, text) {
  const isChosen = rule.rule === page.params.rule;
  const params = { domain: page.params.domain, text: page.params.text, rule: isChosen ? null : rule.rule };
  return el('a', { href: address('rules', params), 'aria-expanded': String(isChosen) }, name(text));
}

function rejections({ rejected_1m }) {
  return el('span', { class: rejected_1m > 0 ? 'rejected strong' : '' }, words.rate(rejected_1m));
}

function fullest({ fullest }) {
  if (!fullest) return el('span', { class: 'faint' }, 'none yet');
  return el('span', { class: 'fullest' },
    bar(fullest.used, fullest.used >= 0.9 ? 'rejected' : 'admitted', `${words.share(fullest.used)} used`),
    ` ${words.share(fullest.used)}`);
}

function lastMatched(time) {
  return time ? words.ago(time) : el('span', { class: 'faint' }, 'never');
}

// === a rule ===

function detailOf(page, { hot }, { rule }) {
  if (!rule || rule.rule !== page.params.rule) return null;
  const fullest = hot?.items.filter((item) => item.rule === rule.rule && item.domain === rule.domain).slice(0, HOT_KEYS);
  return el('div', { class: 'rule' },
    el('pre', { tabindex: 0, 'aria-label': 'The rule as weir explain prints it' }, rule.description.map((line) => [name(line), '\n'])),
    el('div', {},
      el('p', { class: 'place' }, name(`${rule.file}:${rule.line}`)),
      rule.next_change && el('p', {}, `Its schedule changes the limit in ${words.duration((Date.parse(rule.next_change) - words.now()) / 1_000)}, at ${words.clock(rule.next_change)}.`),
      rule.in_flight && el('p', {}, inFlight(rule.in_flight)),
      el('p', {}, `Since the start ${words.number(rule.totals.admitted)} hits were admitted and ${words.number(rule.totals.rejected)} rejected.`),
      el('h3', {}, 'Hot keys'), hotList(rule, fullest),
      el('p', {}, link('whatif', { file: rule.file, line: rule.line }, 'Edit in What if'), ' · ', link('hot', {}, 'All hot keys'))));
}

function inFlight({ most, now }) {
  return `${words.number(now)} of ${words.number(most)} places are taken here.`;
}

function hotList(rule, items) {
  const fallback = rule.fullest && { text: rule.fullest.text, entries: rule.fullest.entries, used: rule.fullest.used };
  const shown = items?.length ? items : fallback ? [fallback] : [];
  if (!shown.length) return el('p', { class: 'faint' }, 'No key of this rule is hot.');
  const item = ({ text, entries, used }) =>
    el('li', {}, isNamed(entries) ? keyLink(rule.domain, entries, text) : name(text), ` ${words.share(used)} used`);
  return el('ul', { class: 'plain' }, shown.map(item));
}

// === what no rule has ===

function unmatchedSection(unmatched, domain) {
  const items = unmatched?.items.filter((item) => !domain || item.domain === domain) ?? [];
  if (!items.length) return null;
  const columns = [
    { title: 'Domain', cell: (item) => name(item.domain) },
    { title: 'Key', cell: (item) => (item.key === null ? el('span', { class: 'faint' }, 'no rule has the domain') : name(item.key)) },
    { title: 'Descriptors', number: true, cell: (item) => words.number(item.descriptors) },
  ];
  return el('section', { 'aria-label': 'Asked for, and no rule' },
    el('h2', {}, 'Asked for, but no rule has it'),
    table('Names that were asked for in the last hour', columns, items, (item) => JSON.stringify([item.domain, item.key])),
    note('Requests with these are not limited by them. A name that looks like one of a rule may be misspelled.'));
}
