// @ts-check
// Times: local ones, with UTC on hover and in the datetime attribute.
import { h } from './text.js';

const clockFormat = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const minuteFormat = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit' });
const dayFormat = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit' });

/** @param {Date} d */
export const today = (d) => d.toDateString() === new Date().toDateString();

/**
 * clock is the time of an instant with its milliseconds: 18:04:10.2.
 * @param {string | number} at as Date takes it
 */
export function clock(at) {
  const d = new Date(at);
  return h('time', { datetime: d.toISOString(), title: `${d.toISOString().replace('T', ' ').replace('Z', '')} UTC` }, `${clockFormat.format(d)}.${Math.floor(d.getMilliseconds() / 100)}`);
}

/**
 * when is an instant: a time of today, or a day and a time.
 * @param {string | number} at
 */
export function when(at) {
  const d = new Date(at);
  if (Number.isNaN(d.getTime()) || d.getFullYear() < 1971) return h('span', null, '–');
  return h('time', { datetime: d.toISOString(), title: `${d.toISOString().replace('T', ' ').slice(0, 19)} UTC` }, today(d) ? minuteFormat.format(d) : dayFormat.format(d));
}

/** second is an instant as text, to the second. @param {string | number} at */
export function second(at) {
  const d = new Date(at);
  return `${today(d) ? '' : `${d.getDate()} ${d.toLocaleString('en-GB', { month: 'short' })} `}${clockFormat.format(d)}`;
}

/** outageTime says when an outage was: since, or from and to. @param {Api.Outage} o */
export function outageTime(o) {
  if (!o.to) return `since ${second(o.from)}`;
  return second(o.from) === second(o.to) ? `at ${second(o.from)}` : `${second(o.from)} to ${second(o.to)}`;
}

/**
 * span writes a time that passes: 41 s, 2 h 48 min.
 * @param {number} s
 */
export function span(s) {
  if (!(s >= 0)) return '–';
  if (s < 1) return s === 0 ? '0 s' : `${Math.max(1, Math.round(s * 1000))} ms`;
  if (s < 10) return `${Math.round(s * 10) / 10} s`;
  s = Math.round(s);
  /** @type {[number, string][]} */
  const units = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const at = Math.max(0, units.findIndex(([size]) => s >= size));
  const [size, unit] = units[at];
  const rest = s % size;
  const next = units[at + 1];
  const small = next ? Math.floor(rest / next[0]) : 0;
  return `${Math.floor(s / size)} ${unit}${small && s / size < 10 && s >= 60 ? ` ${small} ${next[1]}` : ''}`;
}

/** @param {string | number} at */
export const ago = (at) => span(Math.max(0, (Date.now() - new Date(at).getTime()) / 1000));

/** @param {string | number} at */
export const left = (at) => span(Math.max(0, (new Date(at).getTime() - Date.now()) / 1000));

/** The times that a view can look back over, as the API takes them. */
export const overs = ['15m', '1h', '6h', '24h', '7d'];

/** @param {string} over such as 6h */
export const overWords = (over) => over.replace('m', ' min').replace('h', ' h').replace('d', ' d');

/** @param {string} over */
export const overSeconds = (over) => Number.parseInt(over, 10) * ({ s: 1, m: 60, h: 3600, d: 86400 }[over.at(-1) ?? 's'] ?? 1);

/**
 * short says from when on there are figures if that is less than was asked for; else null.
 * @param {string} from
 * @param {string} over
 */
export function onlySince(from, over) {
  const has = (Date.now() - new Date(from).getTime()) / 1000;
  if (!(has >= 0) || has > overSeconds(over) * 0.97) return null;
  return `since ${span(has)} only`;
}
