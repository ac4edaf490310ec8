// What if: other rules, with the messages of `weir check`, and what they would have done with what was recorded.

import * as api from './api.js';
import { bar } from './charts.js';
import { badge, el, empty, fileName, name, note, problem, table } from './dom.js';
import * as words from './words.js';

const DRAFT = 'weir what if';
const PAUSE = 700;
const RECORD_SECONDS = 300;

export function whatIf(page) {
  const seen = { files: draft(), inForce: null, said: null, file: page.params.file, result: null, error: null, isChecking: false, isChanged: false, timer: null };
  const view = { page, seen, draw: () => page.drawSoon(() => whatIfSections(view)) };
  page.attempt(async () => {
    await loadFiles(seen);
    seen.file = fileNamed(seen.files, seen.file);
    view.draw();
    if (seen.file !== undefined) check(view);
    if (page.params.line) requestAnimationFrame(() => requestAnimationFrame(() => goTo(Number(page.params.line))));
  });
}

// What one has written stays with the tab.
function draft() {
  return api.parsedJson(sessionStorage.getItem(DRAFT)) ?? {};
}

function keep(files) {
  try {
    sessionStorage.setItem(DRAFT, JSON.stringify(files));
  } catch {
    // it is too large to keep, and is checked all the same
  }
}

async function loadFiles(seen) {
  try {
    const lists = await Array.fromAsync(api.pages('files'));
    seen.inForce = Object.fromEntries(lists.flatMap(({ items }) => items).map(({ name, text }) => [name, text]));
    seen.said = lists[0].note;
  } catch (error) {
    if (error.status !== 404) throw error;
  }
  if (!Object.keys(seen.files).length) seen.files = { ...seen.inForce };
}

// The file of that path or name, else the first.
function fileNamed(files, wanted) {
  const paths = Object.keys(files);
  return paths.find((path) => path === wanted || fileName(path) === wanted) ?? paths[0];
}

function edited(view, text) {
  const { seen } = view;
  seen.files[seen.file] = text;
  keep(seen.files);
  clearTimeout(seen.timer);
  seen.timer = setTimeout(() => check(view), PAUSE);
  view.draw();
}

// One check at a time: what changes meanwhile is checked afterwards.
async function check(view) {
  const { page, seen } = view;
  if (!page.instance.access.can_try || !page.isOpen) return;
  if (seen.isChecking) return void (seen.isChanged = true);
  Object.assign(seen, { isChecking: true, isChanged: false });
  view.draw();
  await page.attempt(() => tryFiles(seen));
  seen.isChecking = false;
  view.draw();
  const isBusy = seen.error?.status === 429;
  if (seen.isChanged || isBusy) seen.timer = setTimeout(() => check(view), isBusy ? 3_000 : PAUSE);
}

async function tryFiles(seen) {
  try {
    seen.result = await api.post('try', { files: seen.files });
    seen.error = null;
  } catch (error) {
    if (!(error instanceof api.Problem)) throw error;
    seen.error = error;
  }
}

function whatIfSections(view) {
  const { page, seen } = view;
  if (!page.instance.access.can_try) return [empty('You may not try rules here.', 'It needs the level full, or a request from the machine itself.')];
  const text = seen.files[seen.file];
  return [
    fileBar(view),
    note(seen.said),
    text === undefined ? empty('Choose the rule files that you want to change.', 'They are checked as weir check does, and compared with what was recorded. Nothing changes.') : editor(view, text),
    seen.error && problem(seen.error),
    text !== undefined && messagesSection(view),
    seen.result && comparisonSection(view),
  ];
}

function fileBar(view) {
  const { seen } = view;
  const open = async ({ target }) => {
    const texts = await Promise.all([...target.files].map(async (file) => [file.name, await file.text()]));
    Object.assign(seen.files, Object.fromEntries(texts));
    select(view, texts[0]?.[0] ?? seen.file);
  };
  const restore = () => {
    seen.files = { ...seen.inForce };
    select(view, Object.keys(seen.files)[0]);
  };
  const tabs = Object.keys(seen.files).map((file) =>
    el('button', { type: 'button', title: file, 'aria-pressed': String(file === seen.file), onclick: () => select(view, file) }, name(fileName(file)), seen.inForce && seen.files[file] !== seen.inForce[file] ? ' (changed)' : ''));
  return el('div', { class: 'bar-of-choices' },
    el('div', { class: 'choices', role: 'group', 'aria-label': 'Files' }, tabs),
    el('label', { class: 'button' }, 'Open files …', el('input', { type: 'file', multiple: true, class: 'unseen', onchange: open })),
    Object.keys(seen.files).length > 0 && el('button', { type: 'button', onclick: restore }, seen.inForce ? 'Begin with the files as they are' : 'Begin anew'));
}

function select(view, file) {
  view.seen.file = file;
  view.page.remember({ file });
  keep(view.seen.files);
  view.draw();
  if (file !== undefined) check(view);
}

// === the editor ===

function editor(view, text) {
  const { seen } = view;
  const lines = text.split('\n').length;
  const here = (seen.result?.messages ?? []).filter(({ file }) => file === seen.file);
  const byLine = new Map(here.map((message) => [message.line, message]));
  const numbers = Array.from({ length: lines }, (_, index) => el('span', { class: byLine.get(index + 1)?.severity }, `${index + 1}`));
  const last = Math.min(lines, Math.max(0, ...byLine.keys()));
  const marks = Array.from({ length: last }, (_, index) => mark(byLine.get(index + 1)));
  return el('div', { class: 'editor', 'data-key': `editor ${seen.file}` },
    el('div', { class: 'gutter', 'aria-hidden': 'true' }, numbers),
    el('div', { class: 'sheet' },
      el('div', { class: 'marks', 'aria-hidden': 'true' }, marks),
      el('textarea', {
        id: 'yaml', rows: lines, wrap: 'off', spellcheck: 'false', autocapitalize: 'off', 'aria-label': `Text of ${seen.file}`,
        'aria-describedby': 'messages', oninput: ({ target }) => edited(view, target.value),
      }, text)));
}

function mark(message) {
  return message ? el('div', { class: message.severity }, el('span', {}, name(message.message))) : el('div', {});
}

function goTo(line, column = 1) {
  const text = document.getElementById('yaml');
  if (!text) return;
  const before = text.value.split('\n').slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
  text.focus({ preventScroll: true });
  text.setSelectionRange(before + column - 1, before + column - 1);
  const height = text.offsetHeight / text.rows;
  text.closest('.editor').scrollTop = Math.max(0, (line - 4) * height);
}

function messagesSection(view) {
  const { seen } = view;
  const { messages = [], ok } = seen.result ?? {};
  const verdict = seen.isChecking ? 'Checking …' : ok === undefined ? '' : ok ? 'These rules are good.' : 'These rules would be rejected.';
  return el('section', { id: 'messages', 'aria-label': 'Messages' },
    el('p', { class: 'lead', role: 'status' }, ok !== undefined && !seen.isChecking && badge(ok ? 'ok' : 'error', ok ? 'Good' : 'Errors'), ' ', verdict),
    messages.length > 0 && el('ul', { class: 'messages' }, messages.map((message) => messageItem(view, message))));
}

function messageItem(view, { severity, file, line, column, message }) {
  const go = () => {
    if (file !== view.seen.file) select(view, file);
    requestAnimationFrame(() => requestAnimationFrame(() => goTo(line, column)));
  };
  return el('li', {}, badge(severity, severity === 'error' ? 'Error' : 'Warning'), ' ',
    el('button', { type: 'button', class: 'as-link', onclick: go }, name(`${fileName(file)}:${line}:${column}`)), ' ', name(message));
}

// === old and new ===

function comparisonSection({ page, seen, draw }) {
  const { comparison, note: said } = seen.result;
  if (!comparison) return el('section', { 'aria-label': 'Old and new' }, note(said), seen.result.ok && recordButton(page, seen, draw));
  const { sentence, requests, newly_rejected, newly_admitted, unknown, rules, keys } = comparison;
  return el('section', { 'aria-label': 'Old and new' },
    el('h2', {}, 'Old and new'),
    el('p', { class: 'verdict' }, name(sentence)),
    el('p', {}, `${words.count(requests, 'recorded request')}: `,
      el('span', { class: 'rejected' }, `${words.number(newly_rejected)} newly rejected`), ', ',
      el('span', { class: 'admitted' }, `${words.number(newly_admitted)} newly admitted`), '.'),
    unknown.length > 0 && el('ul', { class: 'unknown' }, unknown.map((text) => el('li', {}, name(text)))),
    rules.length > 0 && table('By rule, in hits', oldNewColumns('Rule', ({ rule }) => name(rule)), rules, ({ rule }) => rule),
    keys.length > 0 && table('The keys that differ most, in hits', oldNewColumns('Key', ({ text, rule }) => [name(text), el('span', { class: 'faint' }, name(rule))]), keys, ({ rule, text }) => JSON.stringify([rule, text])),
    note(said));
}

function oldNewColumns(title, cell) {
  return [
    { title, cell },
    { title: 'Rejected, old and new', cell: rejectedBars },
    { title: 'Admitted old', number: true, cell: ({ admitted_old }) => words.number(admitted_old) },
    { title: 'Admitted new', number: true, cell: ({ admitted_new }) => words.number(admitted_new) },
    { title: 'Rejected old', number: true, cell: ({ rejected_old }) => words.number(rejected_old) },
    { title: 'Rejected new', number: true, cell: ({ rejected_new }) => words.number(rejected_new) },
    { title: 'Difference', number: true, cell: difference },
  ];
}

function rejectedBars({ admitted_old, rejected_old, admitted_new, rejected_new }) {
  const share = (rejected, admitted) => Number(rejected) / Math.max(Number(rejected) + Number(admitted), 1);
  const [old, now] = [share(rejected_old, admitted_old), share(rejected_new, admitted_new)];
  return el('span', { class: 'pair' }, bar(old, 'before', `old: ${words.share(old)} rejected`), bar(now, 'rejected', `new: ${words.share(now)} rejected`), el('span', {}, `${words.share(old)} → ${words.share(now)}`));
}

function difference({ rejected_old, rejected_new }) {
  const change = Number(rejected_new) - Number(rejected_old);
  if (change === 0) return 'none';
  return el('span', { class: change > 0 ? 'rejected strong' : 'admitted strong' }, `${words.number(Math.abs(change))} ${change > 0 ? 'more' : 'fewer'} rejected`);
}

function recordButton(page, seen, draw) {
  const { recording } = page.instance;
  if (recording?.is_on) return note(`Recording: ${words.count(recording.records, 'request')} so far. Check again when there are enough.`);
  if (!page.mayChange) return note('To record needs the level full, or WEIR_RECORD.');
  const start = () => page.attempt(async () => {
    await api.post('recording', { seconds: RECORD_SECONDS });
    seen.result.note = `Recording on all instances for ${words.duration(RECORD_SECONDS)}.`;
    draw();
  });
  return el('button', { type: 'button', onclick: start }, 'Record for five minutes');
}
