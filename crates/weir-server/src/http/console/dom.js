// Builds elements, and brings those on the page up to date in place, so that focus, selection and scrolling stay.
//
// Text reaches the page as text nodes and attributes only.

const SVG = 'http://www.w3.org/2000/svg';
const HANDLERS = ['onclick', 'oninput', 'onchange', 'onsubmit', 'onkeydown', 'onpointermove', 'onpointerleave', 'onscroll'];
// what people change on the page themselves
const THEIRS = new Set(['open', 'value']);

export function el(name, attributes, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (HANDLERS.includes(name)) element[name] = value;
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...nodes(children));
  return element;
}

function nodes(children) {
  const shown = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  return shown.map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

// Makes `children` the content of `parent`.
export function show(parent, ...children) {
  const focused = document.activeElement;
  reconcile(parent, nodes(children));
  // a browser takes the focus from an element that moves
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

function reconcile(parent, wanted) {
  const keyed = new Map();
  for (const child of parent.children) if (child.dataset.key) keyed.set(child.dataset.key, child);
  let at = parent.firstChild;
  for (const node of wanted) {
    const old = node.dataset?.key ? keyed.get(node.dataset.key) : at;
    if (!old || !isAlike(old, node)) {
      parent.insertBefore(node, at);
    } else {
      if (old === at) at = at.nextSibling;
      else parent.insertBefore(old, at);
      update(old, node);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function isAlike(old, node) {
  return old.nodeName === node.nodeName && old.dataset?.key === node.dataset?.key;
}

function update(old, node) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== node.data) old.data = node.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!node.hasAttribute(name) && !THEIRS.has(name)) old.removeAttribute(name);
  }
  for (const { name, value } of node.attributes) {
    if (old.getAttribute(name) !== value && !THEIRS.has(name)) old.setAttribute(name, value);
  }
  for (const name of HANDLERS) if (old[name] !== node[name]) old[name] = node[name];
  // the text of a field is theirs, too
  if (old.nodeName !== 'TEXTAREA') reconcile(old, [...node.childNodes]);
}

// === parts that several views have ===

// Characters that a name may hide behind: controls, marks of direction, invisible ones.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}]/u;
const HIDDEN_PARTS = new RegExp(`(${HIDDEN.source})`, 'u');

// A name that somebody else has chosen: as text, with what cannot be seen by its number.
export function name(text) {
  const parts = text.split(HIDDEN_PARTS).map((part) => (HIDDEN.test(part) ? el('span', { class: 'hidden-character' }, code(part)) : part));
  return el('bdi', { class: 'name' }, parts);
}

function code(character) {
  return `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}`;
}

export function entriesText(entries) {
  return entries.map(({ key, value }) => (value === '' ? key : `${key}=${value}`)).join(' ');
}

// Masked values name no counter.
export function isNamed(entries) {
  return entries !== null && entries.every(({ value }) => value !== '***');
}

export function link(view, params, ...children) {
  return el('a', { href: address(view, params) }, ...children);
}

// The fragment of a view: it is the whole state of the page.
export function address(view, params = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== null && one !== undefined && one !== '') query.append(key, one);
  }
  return `#/${view}${query.size ? `?${query}` : ''}`;
}

export function keyLink(domain, entries, text = entriesText(entries)) {
  return link('key', { domain, entry: entries.map(({ key, value }) => `${key}=${value}`) }, name(text));
}

// A place in the rules; the whole path is its title.
export function place(file, line) {
  return el('span', { class: 'place', title: file }, name(line ? `${fileName(file)}:${line}` : fileName(file)));
}

export function fileName(path) {
  return path.split('/').at(-1);
}

// A word with a colour; the word alone says it, too.
export function badge(kind, word) {
  return el('span', { class: `badge ${kind}` }, word);
}

export function empty(what, todo) {
  return el('div', { class: 'empty' }, el('p', { class: 'what' }, what), todo && el('p', {}, todo));
}

export function problem(error) {
  return el('div', { class: 'problem', role: 'alert' }, el('strong', {}, error.title ?? 'An error'), el('p', {}, error.message));
}

export function note(text) {
  return text ? el('p', { class: 'note' }, text) : null;
}

// A table whose rows are cards on a narrow screen. A column is `{ title, cell(row), number, wide }`.
// Roles are written out, since a browser forgets those of a table that is laid out as cards.
export function table(caption, columns, rows, keyOf, detailOf = () => null) {
  const heads = columns.map(({ title, number }) => el('th', { role: 'columnheader', scope: 'col', class: number && 'number' }, title));
  const body = rows.flatMap((row) => [line(columns, row, keyOf(row)), detail(columns, detailOf(row), keyOf(row))]);
  return el(
    'table',
    { role: 'table', class: 'cards' },
    el('caption', {}, caption),
    el('thead', { role: 'rowgroup' }, el('tr', { role: 'row' }, heads)),
    el('tbody', { role: 'rowgroup' }, body),
  );
}

function line(columns, row, key) {
  const cells = columns.map(({ title, cell, number, wide }, index) =>
    el('td', { role: index ? 'cell' : 'rowheader', class: number ? 'number' : wide && 'wide', 'data-title': title }, el('div', {}, cell(row))));
  return el('tr', { role: 'row', 'data-key': key }, cells);
}

function detail(columns, content, key) {
  if (!content) return null;
  const cell = el('td', { role: 'cell', colspan: columns.length }, content);
  return el('tr', { role: 'row', class: 'detail', 'data-key': `${key} detail` }, cell);
}

// A row of links of which one is the present state.
export function choices(label, view, params, field, options) {
  const present = params[field] ?? options[0][0];
  const links = options.map(([value, word]) =>
    el('a', { href: address(view, { ...params, [field]: value }), 'aria-current': value === present ? 'true' : null }, word));
  return el('div', { class: 'choices', role: 'group', 'aria-label': label }, links);
}
