// Why: what a request would get now, and which rules matched or not. Nothing is counted.

import * as api from './api.js';
import { address, badge, el, empty, entriesText, link, name, note, place, problem } from './dom.js';
import { counterSection } from './keys.js';
import * as words from './words.js';

const VERDICTS = {
  admitted: ['admitted', 'Admitted'],
  rejected: ['rejected', 'Rejected'],
  would_reject: ['warning', 'Would be rejected, but the rule only counts'],
  unlimited: ['admitted', 'Unlimited'],
  no_limit: ['warning', 'No limit'],
  replaced: ['info', 'Replaced by another rule'],
  ends: ['info', 'Ends a request'],
};

export function why(page) {
  const { text = '', domain = '' } = page.params;
  const seen = { domains: [], answer: null, error: null };
  const draw = () => page.draw(whyForm(page, seen), seen.error && problem(seen.error), seen.answer ? answerSections(seen.answer) : !seen.error && whyHelp());
  page.attempt(async () => {
    const { items } = await api.get('rules', { limit: 1_000 });
    seen.domains = [...new Set(items.map((rule) => rule.domain))];
    if (text) await ask(text, domain || seen.domains[0], seen);
    draw();
  });
}

async function ask(text, domain, seen) {
  try {
    seen.answer = await api.post('why', questionOf(text, domain));
  } catch (error) {
    if (!(error instanceof api.Problem)) throw error;
    seen.error = error;
  }
}

// JSON with descriptors is a request, lines of `key=value` are descriptors; all else is a line of the log.
function questionOf(text, domain) {
  const json = api.parsedJson(text);
  if (json?.descriptors) return json;
  if (json !== null || /\brejected domain=/.test(text)) return { line: text };
  const lines = text.split('\n').map((line) => line.trim()).filter(Boolean);
  return { domain, descriptors: lines.map((line) => ({ entries: entriesOf(line) })) };
}

// `key=value key="a value" key`.
function entriesOf(line) {
  const found = line.matchAll(/([^\s=]+)(?:=(?:"([^"]*)"|(\S*)))?/g);
  return [...found].map(([, key, quoted, plain]) => ({ key, value: quoted ?? plain ?? '' }));
}

function whyForm(page, { domains }) {
  const { text = '', domain } = page.params;
  const submit = (event) => {
    event.preventDefault();
    const { text, domain } = event.target;
    location.hash = address('why', { text: text.value.trim(), domain: domain.value });
  };
  const send = (event) => {
    if (event.key !== 'Enter' || event.shiftKey) return;
    event.preventDefault();
    event.target.form.requestSubmit();
  };
  const options = domains.map((one) => el('option', { value: one, selected: one === domain }, one));
  // another question is another form
  return el('form', { class: 'question', onsubmit: submit, 'data-key': `question ${text} ${domains.length}` },
    el('label', { for: 'text' }, 'A descriptor, a request as JSON, or a line of the log of rejections'),
    el('textarea', { id: 'text', name: 'text', rows: text.includes('\n') || text.length > 160 ? 5 : 2, required: true, spellcheck: 'false', onkeydown: send, placeholder: 'tenant=acme path=/v1/orders' }, text),
    el('div', { class: 'buttons' },
      el('label', { for: 'domain' }, 'Domain of a descriptor'), el('select', { id: 'domain', name: 'domain' }, options),
      el('button', { type: 'submit', class: 'main' }, 'Ask why')));
}

function whyHelp() {
  return empty('Write what a caller sends: key=value, a line for each descriptor.', 'The answer says what a request would get now, which rule matches, and which do not. It counts nothing.');
}

function answerSections({ domain, verdict, sentence, descriptors, logged, note: said }) {
  return el('div', { class: 'answer', 'aria-live': 'polite' },
    el('p', { class: 'verdict' }, badge(...VERDICTS[verdict]), ' ', name(sentence)),
    logged && el('p', { class: 'logged' }, loggedSentence(logged)),
    note(said),
    descriptors.map((descriptor) => descriptorSection(domain, descriptor)));
}

function loggedSentence({ at, rule, descriptor, hits, limit, retry_after, reason }) {
  const when = Number.isNaN(Date.parse(at)) ? 'Then' : `At ${words.clock(at)}`;
  return [`${when} ${words.count(hits, 'hit')} of `, name(descriptor), ' exceeded ', name(limit), ' of rule ', name(rule), `: reason ${reason}, to be tried again after ${retry_after}.`];
}

function descriptorSection(domain, { entries, verdict, sentence, rule, file, line, steps, passed_over, did_you_mean, counter }) {
  return el('section', { 'aria-label': `Descriptor ${entriesText(entries)}` },
    el('h2', {}, name(entriesText(entries))),
    el('p', {}, badge(...VERDICTS[verdict]), ' ', name(sentence), ' ', rule && !counter && [link('rules', { domain, rule }, name(rule)), ' ', file && place(file, line)]),
    did_you_mean && el('p', { class: 'hint' }, 'Did you mean ', name(did_you_mean), '?'),
    steps.length > 0 && el('ol', { class: 'steps' }, steps.map(stepItem)),
    passed_over && el('p', { class: 'hint' }, name(passed_over.sentence), ' ', place(passed_over.file, passed_over.line)),
    counter && counterSection(counter));
}

function stepItem({ entry, tried, alternatives, alternatives_total }) {
  const more = alternatives_total - alternatives.length;
  return el('li', {},
    el('strong', {}, name(entriesText([entry]))),
    el('ul', {}, tried.map(({ words: text, is_match, file, line }) =>
      el('li', { class: is_match ? 'match' : 'no-match' }, badge(is_match ? 'ok' : 'none', is_match ? 'matches' : 'does not match'), ' ', name(text), ' ', file && place(file, line)))),
    alternatives.length > 0 && el('p', {}, 'Declared here: ', alternatives.flatMap((text, index) => [index ? ', ' : '', name(text)]), more > 0 ? ` and ${words.number(more)} more.` : '.'));
}
