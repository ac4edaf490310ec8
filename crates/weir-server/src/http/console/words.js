// Numbers, times and durations as people read them.

const THIN = '\u202f';
const UNITS = [['day', 86_400], ['hour', 3_600], ['minute', 60], ['second', 1]];
const SMALL = [['millisecond', 1e-3], ['microsecond', 1e-6]];

// The server's clock less ours, in milliseconds.
let ahead = 0;

export function setClock(now) {
  ahead = Date.parse(now) - Date.now();
}

export function now() {
  return Date.now() + ahead;
}

// Whole numbers may come as text, since those above 2^53 do.
export function number(value) {
  const [whole, part] = String(value).split('.');
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, THIN);
  return part === undefined ? grouped : `${grouped}.${part}`;
}

// The numbers of a sentence of the server's.
export function grouped(text) {
  return text.replace(/\d{4,}/g, number);
}

// A rate: three digits say enough.
export function rate(value) {
  if (value === 0) return '0';
  if (value < 0.01) return '< 0.01';
  const digits = value < 1 ? 2 : value < 100 ? 1 : 0;
  return number(String(Number(value.toFixed(digits))));
}

export function share(value) {
  const percent = value * 100;
  const digits = percent > 0 && percent < 1 ? 1 : 0;
  return `${percent.toFixed(digits)}${THIN}%`;
}

export function count(value, word) {
  return `${number(value)} ${word}${String(value) === '1' ? '' : 's'}`;
}

// The two largest units: "2 minutes 5 seconds".
export function duration(seconds) {
  if (seconds > 0 && seconds < 1) return small(seconds);
  const whole = Math.round(seconds);
  const first = UNITS.findIndex(([, size]) => whole >= size);
  if (first < 0) return '0 seconds';
  const [word, size] = UNITS[first];
  const parts = [count(Math.floor(whole / size), word)];
  const [lesser, unit] = UNITS[first + 1] ?? [];
  const rest = unit && Math.floor((whole % size) / unit);
  if (rest) parts.push(count(rest, lesser));
  return parts.join(' ');
}

function small(seconds) {
  const [word, size] = SMALL.find(([, size]) => seconds >= size) ?? SMALL[1];
  const value = seconds / size;
  return count(Number(value.toFixed(value < 10 ? 1 : 0)), word);
}

export function bytes(value) {
  const units = ['bytes', 'KB', 'MB', 'GB'];
  let size = Number(value);
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${rate(size)}${THIN}${units[unit]}`;
}

export function ago(time) {
  const seconds = (now() - Date.parse(time)) / 1_000;
  return seconds < 1 ? 'just now' : `${duration(seconds)} ago`;
}

// The time of day, here; with the date if that is not today.
export function clock(time) {
  const date = new Date(time);
  const two = (value) => String(value).padStart(2, '0');
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const hour = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return date.toDateString() === new Date(now()).toDateString() ? hour : `${day} ${hour}`;
}
