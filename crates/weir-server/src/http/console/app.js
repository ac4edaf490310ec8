// The frame of the console: views by the fragment of the URL, the line on top, the form for a token.
//
// The server has these files by name, index.html at `/`, the others at `/console/`:
//   index.html console.css icon.svg
//   app.js       this file
//   api.js       asks the API
//   live.js      follows its stream, one for all tabs
//   dom.js       elements, and parts that several views have
//   words.js     numbers, times and durations
//   charts.js    lines and bars
//   search.js    finds rules and keys
//   overview.js  Overview, Instances
//   rules.js     Rules
//   keys.js      Hot keys, A key
//   why.js       Why
//   what_if.js   What if

import * as api from './api.js';
import { address, el, empty, name, problem, show } from './dom.js';
import { hotKeys, key } from './keys.js';
import * as live from './live.js';
import { instances, overview } from './overview.js';
import { rules } from './rules.js';
import './search.js';
import { whatIf } from './what_if.js';
import { why } from './why.js';
import * as words from './words.js';

const VIEWS = {
  overview: ['Overview', overview],
  rules: ['Rules', rules],
  hot: ['Hot keys', hotKeys],
  key: ['A key', key],
  why: ['Why', why],
  whatif: ['What if', whatIf],
  instances: ['Instances', instances],
};

const main = document.getElementById('main');
let page = null;
// the instance that answers, and what we may do there
let instance = null;

// What a view sees of the frame, until another view replaces it.
class Page {
  #ends = [];
  #waiting = null;

  constructor(view, params) {
    this.view = view;
    this.params = params;
    this.isOpen = true;
  }

  get instance() {
    return instance;
  }

  get mayChange() {
    return instance?.access?.level === 'full';
  }

  draw(...content) {
    if (!this.isOpen) return;
    main.classList.remove('loading');
    show(main, el('h1', { tabindex: -1 }, VIEWS[this.view][0]), ...content);
  }

  // Draws once for all that arrives at the same time.
  drawSoon(content) {
    this.#waiting ??= requestAnimationFrame(() => {
      this.#waiting = null;
      this.draw(...content());
    });
  }

  follow(topics, listener) {
    this.#ends.push(live.follow(topics, listener));
  }

  // Runs `task` now, and again after `seconds` while the page is seen. An error is shown in place of a view that has
  // nothing else; a lost connection is told by the line on top.
  every(seconds, task) {
    const run = () => document.hidden || this.attempt(task);
    const timer = setInterval(run, seconds * 1_000);
    document.addEventListener('visibilitychange', run);
    this.#ends.push(() => {
      clearInterval(timer);
      document.removeEventListener('visibilitychange', run);
    });
    return this.attempt(task);
  }

  async attempt(task) {
    try {
      await task();
    } catch (error) {
      if (!(error instanceof api.Problem) && !isNetwork(error)) throw error;
      const isForUs = this.isOpen && error instanceof api.Problem && ![401, 403].includes(error.status);
      if (isForUs && !main.querySelector('h1 + *')) this.draw(problem(error));
    }
  }

  // Keeps a change of the state in the URL, without another entry of the history.
  remember(params) {
    this.params = params;
    history.replaceState(null, '', address(this.view, params));
  }

  close() {
    this.isOpen = false;
    for (const end of this.#ends) end();
  }
}

function isNetwork(error) {
  return error instanceof TypeError || error.name === 'TimeoutError' || error.name === 'AbortError';
}

// === views ===

function stateOf(fragment) {
  const [view, query] = fragment.replace(/^#\/?/, '').split(/\?(.*)/s);
  const search = new URLSearchParams(query ?? '');
  const params = Object.fromEntries(search);
  if (search.has('entry')) params.entry = search.getAll('entry');
  return { view: Object.hasOwn(VIEWS, view) ? view : 'overview', params };
}

function open() {
  const { view, params } = stateOf(location.hash);
  const isOther = page?.view !== view;
  page?.close();
  page = new Page(view, params);
  document.title = `${VIEWS[view][0]} – weir`;
  drawNavigation(view);
  if (isOther) {
    show(main, el('h1', { tabindex: -1 }, VIEWS[view][0]));
    main.querySelector('h1').focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  VIEWS[view][1](page);
}

function drawNavigation(present) {
  const links = Object.entries(VIEWS).map(([view, [title]]) =>
    el('a', { href: address(view), 'aria-current': view === present ? 'page' : null }, title));
  show(document.getElementById('views'), links);
}

function drawFooter() {
  if (!instance) return;
  const { access } = instance;
  const may = access.level === 'full' ? 'may change' : 'may read';
  show(
    document.getElementById('footer'),
    el('span', {}, 'weir ', instance.version, ' on ', name(instance.name)),
    el('span', {}, name(access.name), ` ${may}`),
    access.by === 'cookie' && el('button', { type: 'button', onclick: logOut }, 'Log out'),
  );
}

// === the line on top ===

function drawBanner({ lost, polls }) {
  document.body.classList.toggle('stale', lost !== null);
  const text = lost !== null ? `No connection since ${words.clock(lost + words.now() - Date.now())}: what you see is of then. Trying again …`
    : polls ? 'This instance has no stream to spare: the page asks every 3 seconds.' : null;
  show(document.getElementById('banner'), text && el('p', { class: lost !== null ? 'lost' : 'slow' }, text));
}

// === tokens ===

function refused({ detail: error }) {
  live.stop();
  page?.close();
  page = null;
  document.title = 'weir';
  document.body.classList.add('refused');
  show(main, el('h1', { tabindex: -1 }, error.status === 401 ? 'Who are you?' : 'Not allowed'),
    error.status === 401 ? loginForm(error) : [problem(error), again()]);
}

function again() {
  return el('p', {}, el('button', { type: 'button', onclick: begin }, 'Try again'));
}

function loginForm(error) {
  return el('form', { class: 'login', onsubmit: logIn },
    el('p', { id: 'why-token' }, error.message),
    el('label', { for: 'token' }, 'Token'),
    el('input', { id: 'token', name: 'token', type: 'password', required: true, autocomplete: 'current-password', 'aria-describedby': 'why-token' }),
    el('button', { type: 'submit', class: 'main' }, 'Log in'),
    el('p', { class: 'note' }, 'A token of WEIR_ADMIN_TOKEN_FILE: the part after the second colon. The browser keeps a cookie for 12 hours, not the token.'),
    el('div', { class: 'answer', role: 'alert' }));
}

async function logIn(event) {
  event.preventDefault();
  const form = event.target;
  try {
    await api.post('login', { token: form.token.value.trim() });
    begin();
  } catch (error) {
    show(form.querySelector('.answer'), error instanceof api.Problem ? problem(error) : empty('weir does not answer.', 'Try again.'));
    form.token.select();
  }
}

async function logOut() {
  await api.remove('login');
  begin();
}

// === start ===

async function begin() {
  try {
    setInstance(await api.get('instance'));
  } catch (error) {
    // those who are refused have their form already
    if (isNetwork(error)) setTimeout(begin, 2_000);
    if (isNetwork(error)) drawBanner({ lost: Date.now(), polls: false });
    else if (![401, 403].includes(error.status)) show(main, el('h1', {}, 'weir'), problem(error), again());
    return;
  }
  document.body.classList.remove('refused');
  live.start();
  open();
}

// Events have no `access`.
function setInstance(data) {
  instance = { ...data, access: data.access ?? instance?.access };
  words.setClock(data.now);
  drawFooter();
}

document.getElementById('skip').addEventListener('click', (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener('hashchange', () => (page ? open() : begin()));
api.session.addEventListener('refused', refused);
live.watch(drawBanner);
live.follow(['instance'], (_, data) => setInstance(data));
begin();
