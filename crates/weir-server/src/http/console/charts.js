// Lines and bars, as SVG. Pictures stretch with the page; their words are HTML beside them.

import { el, show, svg } from './dom.js';
import * as words from './words.js';

const SERIES = [['admitted', 'Admitted'], ['rejected', 'Rejected']];
const WIDTH = 600;
const HEIGHT = 100;

// The chart below the pointer by its caption, and how many steps back from now the pointer is.
let pointed = { caption: null, back: 0 };

// Admitted and rejected hits a second over the time of `history`.
export function lines(history, caption) {
  const top = ceiling(Math.max(...history.admitted, ...history.rejected, 0));
  const steps = Math.max(history.admitted.length, 2);
  const back = pointed.caption === caption ? pointed.back : null;
  const picture = stretched(WIDTH, HEIGHT, describe(history, caption), [
    ...[0.25, 0.5, 0.75].map(grid),
    ...SERIES.map(([series]) => line(history[series], steps, top, series)),
    pointer(back, steps),
  ]);
  const point = (event) => replace(event.currentTarget.closest('figure'), history, caption, backAt(event, steps));
  picture.onpointermove = point;
  picture.onpointerleave = ({ currentTarget }) => replace(currentTarget.closest('figure'), history, caption, null);
  return el('figure', { class: 'lines' },
    el('figcaption', {}, el('span', {}, caption), legend(history, back ?? 0)),
    el('div', { class: 'plot' },
      el('div', { class: 'scale', 'aria-hidden': 'true' }, [top, top / 2, 0].map((value) => el('span', {}, words.rate(value)))),
      picture,
      el('div', { class: 'times', 'aria-hidden': 'true' },
        el('span', {}, history.admitted.length ? `${words.duration(history.step * history.admitted.length)} ago` : 'no hits yet'), el('span', {}, 'now'))));
}

// Draws the chart again with the pointer elsewhere.
function replace(figure, history, caption, back) {
  pointed = { caption: back === null ? null : caption, back };
  show(figure, ...lines(history, caption).childNodes);
}

function backAt({ clientX, currentTarget }, steps) {
  const { left, width } = currentTarget.getBoundingClientRect();
  const back = Math.round((1 - (clientX - left) / width) * (steps - 1));
  return Math.min(Math.max(back, 0), steps - 1);
}

function pointer(back, steps) {
  if (back === null) return null;
  const x = WIDTH * (1 - back / (steps - 1));
  return svg('line', { class: 'pointer', x1: x, x2: x, y1: 0, y2: HEIGHT });
}

function stretched(width, height, label, content) {
  return svg('svg', { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': label }, content);
}

function grid(part) {
  return svg('line', { class: 'grid', x1: 0, x2: WIDTH, y1: HEIGHT * part, y2: HEIGHT * part });
}

function line(values, steps, top, series) {
  return svg('polyline', { class: `line ${series}`, points: points(values, steps, top, WIDTH, HEIGHT) });
}

// The newest value is at the right edge; what is missing is missing on the left.
function points(values, steps, top, width, height) {
  const first = steps - values.length;
  const x = (index) => (((first + index) / (steps - 1)) * width).toFixed(1);
  const y = (value) => (height - 1 - (value / top) * (height - 2)).toFixed(1);
  return values.map((value, index) => `${x(index)},${y(value)}`).join(' ');
}

// The next of 1, 2, 5, 10, 20, 50 and so on.
function ceiling(value) {
  if (value <= 0) return 1;
  const ten = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * ten).find((candidate) => candidate >= value);
}

function legend(history, back) {
  const items = SERIES.map(([series, word]) =>
    el('span', { class: `legend ${series}` }, sample(series), `${word} `, el('b', {}, words.rate(history[series].at(-1 - back) ?? 0))));
  return el('span', { class: 'legends' }, items, el('span', { class: 'at' }, timeOf(history, back)));
}

function sample(series) {
  const line = svg('line', { class: `line ${series}`, x1: 0, y1: 5, x2: 24, y2: 5 });
  return svg('svg', { viewBox: '0 0 24 10', class: 'sample', 'aria-hidden': 'true' }, line);
}

function timeOf({ step, until }, back) {
  return back ? `a second, at ${words.clock(Date.parse(until) - back * step * 1_000)}` : 'a second, now';
}

function describe(history, caption) {
  const parts = SERIES.map(([series, word]) => {
    const values = history[series];
    return `${word.toLowerCase()} ${words.rate(values.at(-1) ?? 0)} now, at most ${words.rate(Math.max(...values, 0))}`;
  });
  return `${caption}: ${parts.join('; ')}`;
}

// A line of a word's size, of the rates of both.
export function spark(history) {
  const top = Math.max(...history.admitted, ...history.rejected, 0) || 1;
  const steps = Math.max(history.admitted.length, 2);
  const drawn = SERIES.map(([series]) =>
    svg('polyline', { class: `line ${series}`, points: points(history[series], steps, top, 100, 20) }));
  const picture = stretched(100, 20, describe(history, 'Hits a second'), drawn);
  picture.setAttribute('class', 'spark');
  return picture;
}

// A share of a whole as a bar. `certain` is the part of it that is no estimate.
export function bar(share, kind, label, certain = share) {
  const part = (value) => Math.min(Math.max(value, 0), 1) * 100;
  const picture = stretched(100, 10, label, [
    svg('rect', { class: 'track', width: 100, height: 10 }),
    svg('rect', { class: `fill uncertain ${kind}`, width: part(share), height: 10 }),
    svg('rect', { class: `fill ${kind}`, width: part(certain), height: 10 }),
  ]);
  picture.setAttribute('class', 'bar');
  return picture;
}

// The tiers of a counter: used of limit, and when hits fit again.
export function tiers(states) {
  return el('ul', { class: 'tiers' }, states.map(tier));
}

function tier(state) {
  const [used, limit] = [Number(state.used), Number(state.limit)];
  const full = limit ? used / limit : 1;
  const word = state.is_over ? 'full' : `${words.share(full)} used`;
  const reset = state.reset > 0 ? `${state.is_over ? 'a hit fits in' : 'resets in'} ${words.duration(state.reset)}` : 'nothing to reset';
  return el('li', {},
    el('div', { class: 'words' }, el('strong', {}, words.grouped(state.words)), el('span', { class: state.is_over ? 'rejected' : 'admitted' }, word)),
    bar(full, state.is_over ? 'rejected' : 'admitted', `${words.number(state.used)} of ${words.number(state.limit)} used`),
    el('div', { class: 'words' },
      el('span', {}, `${words.number(state.used)} of ${words.number(state.limit)} used, ${words.number(state.remaining)} left`),
      el('span', {}, reset)));
}
