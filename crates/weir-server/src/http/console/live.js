// Follows the API's stream of updates: one stream for all tabs, none while they are hidden.
//
// Of the visible tabs one leads: it reads the stream, and hands every event to the others. A tab says which topics it
// wishes; one whose leader is silent leads itself, and of two leaders the one with the lesser name stays.

import { get } from './api.js';

const TICK = 1_000;
const SILENT_LEADER = 3_000;
const SILENT_STREAM = 6_000;
const OLD_WISH = 10_000;
const POLL = 3_000;
const RETRY_STREAM = 30_000;
// what a topic is if it is asked for, if there is no stream to be had
const OPERATIONS = {
  instance: ['instance'],
  instances: ['instances'],
  attention: ['attention'],
  hot: ['hot', { scope: 'fleet', by: 'hits', limit: 20 }],
  hot_rejected: ['hot', { scope: 'fleet', by: 'rejected', limit: 20 }],
};

const me = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
const channel = new BroadcastChannel('weir');
const followers = new Set();
const watchers = new Set();
const wishes = new Map();

let leader = null;
let leaderHeard = 0;
let stream = null;
let streamTopics = '';
let streamHeard = 0;
let polled = null;
let ticking = null;
// since when there is no connection, and whether the API is polled
let state = { lost: null, polls: false };

// Calls `listener(topic, data)` for events of these topics. Returns what ends that.
export function follow(topics, listener) {
  const follower = { topics, listener };
  followers.add(follower);
  wish();
  return () => {
    followers.delete(follower);
    wish();
  };
}

// Calls `watcher` with the state now, and whenever it changes.
export function watch(watcher) {
  watchers.add(watcher);
  watcher(state);
}

// Begins, or begins again after a token was accepted.
export function start() {
  if (document.hidden || ticking) return;
  leader = null;
  leaderHeard = Date.now() - SILENT_LEADER + 300;
  say({ kind: 'hello' });
  ticking = setInterval(tick, TICK);
  setTimeout(tick, 350);
}

export function stop() {
  clearInterval(ticking);
  ticking = null;
  if (leader === me) stepDown();
}

document.addEventListener('visibilitychange', () => (document.hidden ? stop() : start()));
addEventListener('pagehide', stop);

// === the tabs ===

function say(message) {
  channel.postMessage({ ...message, from: me });
}

channel.onmessage = ({ data }) => {
  const { kind, from } = data;
  if (kind === 'hello' && leader === me) say({ kind: 'lead' });
  else if (kind === 'lead') heardLeader(from);
  else if (kind === 'leave' && from === leader) leaderHeard = 0;
  else if (kind === 'wish' && leader === me) keepWish(from, data.topics);
  else if (kind === 'event' && from === leader) deliver(data.topic, data.data);
  else if (kind === 'state' && from === leader) setState(data.state);
};

function heardLeader(from) {
  if (leader === me && from > me) return;
  if (leader === me) closeStream();
  const isNew = leader !== from;
  leader = from;
  leaderHeard = Date.now();
  if (isNew) wish();
}

function tick() {
  if (!ticking) return;
  if (leader !== me && Date.now() - leaderHeard > SILENT_LEADER) leader = me;
  wish();
  if (leader === me) lead();
}

function stepDown() {
  closeStream();
  leader = null;
  say({ kind: 'leave' });
}

function wish() {
  const topics = [...new Set([...followers].flatMap((follower) => follower.topics))];
  if (leader === me) keepWish(me, topics);
  else say({ kind: 'wish', topics });
}

function keepWish(from, topics) {
  wishes.set(from, { topics, at: Date.now() });
}

function wishedTopics() {
  for (const [from, { at }] of wishes) if (Date.now() - at > OLD_WISH) wishes.delete(from);
  // each second has an event of `instance`: that shows that the stream lives
  return [...new Set(['instance', ...[...wishes.values()].flatMap(({ topics }) => topics)])].sort();
}

function deliver(topic, data) {
  for (const { topics, listener } of followers) if (topics.includes(topic)) listener(topic, data);
}

function setState(next) {
  if (next.lost === state.lost && next.polls === state.polls) return;
  state = next;
  for (const watcher of watchers) watcher(state);
  if (leader === me) say({ kind: 'state', state });
}

// === the leader ===

function lead() {
  say({ kind: 'lead' });
  if (polled !== null) return poll();
  if (streamTopics !== wishedTopics().join(',')) openStream();
  else if (Date.now() - streamHeard > SILENT_STREAM) lose();
}

function openStream() {
  closeStream();
  streamTopics = wishedTopics().join(',');
  streamHeard = Date.now();
  stream = new EventSource(`v1/stream?topics=${streamTopics}`);
  stream.onopen = heard;
  stream.onerror = () => failed(stream);
  for (const topic of streamTopics.split(',')) stream.addEventListener(topic, received);
}

function closeStream() {
  stream?.close();
  stream = null;
  streamTopics = '';
  polled = null;
}

function heard() {
  streamHeard = Date.now();
  setState({ lost: null, polls: polled !== null });
}

function received({ type, data }) {
  heard();
  pass(type, JSON.parse(data));
}

function pass(topic, data) {
  deliver(topic, data);
  say({ kind: 'event', topic, data });
}

// The next tick opens another stream.
function lose() {
  setState({ lost: state.lost ?? streamHeard, polls: false });
  closeStream();
}

// A browser does not tell why there is no stream; an operation does.
async function failed(broken) {
  if (broken !== stream) return;
  const hasEnded = stream.readyState === EventSource.CLOSED;
  if (!hasEnded) return setState({ lost: state.lost ?? streamHeard, polls: false });
  try {
    await get('instance');
    if (broken === stream) beginToPoll();
  } catch {
    if (broken === stream) lose();
  }
}

function beginToPoll() {
  closeStream();
  polled = { since: Date.now(), at: 0 };
}

async function poll() {
  if (Date.now() - polled.since > RETRY_STREAM) return closeStream();
  if (Date.now() - polled.at < POLL) return;
  polled.at = Date.now();
  for (const topic of wishedTopics().filter((topic) => OPERATIONS[topic])) {
    try {
      const data = await get(...OPERATIONS[topic]);
      heard();
      pass(topic, data);
    } catch {
      return lose();
    }
  }
}
