// The search field: finds rules, hot keys, and any key that is written as key=value.

import * as api from './api.js';
import { address, el, entriesText, isNamed, name, show } from './dom.js';

const field = document.getElementById('search');
const found = document.getElementById('found');
const MOST_FOUND = 12;
// all rules are not asked for at each search
const FRESH = 10_000;
let known = { rules: [], hot: [] };
let learnt = 0;
let chosen = -1;

async function learn() {
  if (Date.now() - learnt < FRESH) return;
  const [ruleList, hits, rejected] = await Promise.all([
    Array.fromAsync(api.pages('rules')),
    api.get('hot', { limit: 1_000 }),
    api.get('hot', { limit: 1_000, by: 'rejected' }),
  ]);
  const hot = new Map([...hits.items, ...rejected.items].map((item) => [`${item.domain} ${item.text}`, item]));
  learnt = Date.now();
  known = { rules: ruleList.flatMap(({ items }) => items), hot: [...hot.values()] };
}

function matches(text) {
  const wanted = text.toLowerCase();
  const rule = known.rules
    .filter((rule) => `${rule.rule} ${rule.name ?? ''} ${rule.file}`.toLowerCase().includes(wanted))
    .map((rule) => ({ href: address('rules', { domain: rule.domain, rule: rule.rule }), kind: 'rule', text: rule.rule }));
  const hot = known.hot
    .filter((item) => isNamed(item.entries) && item.text.toLowerCase().includes(wanted))
    .map((item) => ({ href: keyAddress(item.domain, entriesOf(item)), kind: `key in ${item.domain}`, text: entriesText(item.entries) }));
  const asked = text.includes('=') ? [...new Set(known.rules.map(({ domain }) => domain))] : [];
  const direct = asked.map((domain) => ({ href: keyAddress(domain, text.split(/\s+/)), kind: `look up in ${domain}`, text }));
  return [...rule.slice(0, MOST_FOUND / 2), ...hot.slice(0, MOST_FOUND / 2), ...direct.slice(0, 4)];
}

function keyAddress(domain, entry) {
  return address('key', { domain, entry });
}

function entriesOf({ entries }) {
  return entries.map(({ key, value }) => `${key}=${value}`);
}

function search() {
  const text = field.value.trim();
  const results = text ? matches(text) : [];
  chosen = results.length ? 0 : -1;
  const options = results.map(({ href, kind, text }, index) =>
    el('li', { role: 'option', id: `found-${index}`, 'data-href': href, 'aria-selected': String(index === chosen), onclick: () => take(href) },
      el('span', { class: 'kind' }, kind), name(text)));
  const nothing = text && !results.length && el('li', { role: 'option', 'aria-disabled': 'true' }, 'Nothing found. A key that is not hot: write key=value.');
  show(found, options, nothing);
  found.hidden = !text;
  field.setAttribute('aria-expanded', String(Boolean(text)));
  choose(chosen);
}

function choose(index) {
  const options = [...found.querySelectorAll('[data-href]')];
  if (!options.length) return field.removeAttribute('aria-activedescendant');
  chosen = (index + options.length) % options.length;
  options.forEach((option, at) => option.setAttribute('aria-selected', String(at === chosen)));
  options[chosen].scrollIntoView({ block: 'nearest' });
  field.setAttribute('aria-activedescendant', options[chosen].id);
}

function take(href) {
  endSearch();
  location.hash = href;
}

function endSearch() {
  field.value = '';
  search();
  field.blur();
}

function searchKey(event) {
  const moves = { ArrowDown: 1, ArrowUp: -1 };
  if (event.key === 'Escape') endSearch();
  else if (event.key in moves) choose(chosen + moves[event.key]);
  else if (event.key === 'Enter' && chosen >= 0) take(found.children[chosen].dataset.href);
  else return;
  event.preventDefault();
}

// Whether the keys that are pressed are text.
function isWriting({ target }) {
  return target.closest('input, textarea, select, dialog[open]') !== null;
}

function shortcut(event) {
  if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey || isWriting(event)) return;
  event.preventDefault();
  field.focus();
}

field.addEventListener('focus', () => learn().then(search, () => {}));
field.addEventListener('input', search);
field.addEventListener('keydown', searchKey);
field.addEventListener('blur', () => setTimeout(() => (found.hidden = true), 200));
document.addEventListener('keydown', shortcut);
