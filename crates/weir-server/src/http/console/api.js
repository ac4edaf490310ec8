// Asks the admin API. Its errors are problems (RFC 9457) with a sentence for people.

const TIMEOUT = 10_000;
// a replay may take 30 s
const LONG_TIMEOUT = 45_000;

export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail);
    this.status = status;
    this.title = title;
  }
}

// Dispatches `refused` with the problem if nobody may ask without a token.
export const session = new EventTarget();

export function get(path, params = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== null && one !== undefined) query.append(key, one);
  }
  return ask('GET', query.size ? `${path}?${query}` : path);
}

export function post(path, body) {
  return ask('POST', path, body, LONG_TIMEOUT);
}

export function remove(path) {
  return ask('DELETE', path);
}

// All items of a list, page by page.
export async function* pages(path, params = {}) {
  let cursor = null;
  do {
    const page = await get(path, { ...params, limit: 1_000, cursor });
    yield page;
    cursor = page.next;
  } while (cursor);
}

async function ask(method, path, body, timeout = TIMEOUT) {
  const options = { method, cache: 'no-store', signal: AbortSignal.timeout(timeout) };
  if (method !== 'GET') options.headers = { 'content-type': 'application/json' };
  if (body !== undefined) options.body = JSON.stringify(body);
  const response = await fetch(`v1/${path}`, options);
  if (!response.ok) throw await problemOf(response, method, path);
  return response.status === 204 ? null : response.json();
}

async function problemOf(response, method, path) {
  const { title, detail } = await response.json().catch(() => ({}));
  const problem = new Problem(response.status, title ?? `Status ${response.status}`, detail ?? `${path} was not answered.`);
  if (isRefused(response.status, method, path)) session.dispatchEvent(new CustomEvent('refused', { detail: problem }));
  return problem;
}

// Who may read may not always change.
function isRefused(status, method, path) {
  return path !== 'login' && (status === 401 || (status === 403 && method === 'GET'));
}

// Returns the object that a text is, if it is one.
export function parsedJson(text) {
  try {
    const json = JSON.parse(text);
    return json && typeof json === 'object' ? json : null;
  } catch {
    return null;
  }
}
