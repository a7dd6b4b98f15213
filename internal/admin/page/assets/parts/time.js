// @ts-check
// Times: all in the zone that the reader chose, in one form, and by the server's clock. Each says
// the instant in UTC on hover and in the datetime attribute.
import { h } from './text.js';

const zoneKey = 'weir_zone';

let utc = (() => { try { return localStorage.getItem(zoneKey) === 'utc'; } catch { return false; } })();

/** inUTC tells whether times are shown in UTC, and not in the zone of the browser. */
export const inUTC = () => utc;

/** showUTC chooses the zone; the views are to be drawn anew. @param {boolean} is */
export function showUTC(is) {
  utc = is;
  try { localStorage.setItem(zoneKey, is ? 'utc' : 'local'); } catch { /* it holds until the page is left */ }
  formats = zoned();
}

function zoned() {
  const zone = utc ? 'UTC' : undefined;
  /** @param {Intl.DateTimeFormatOptions} o */
  const of = (o) => new Intl.DateTimeFormat('en-GB', { ...o, timeZone: zone });
  /** @type {Intl.DateTimeFormatOptions} */
  const minutes = { hour: '2-digit', minute: '2-digit' };
  return { day: of({ day: 'numeric', month: 'short' }), date: of({ year: 'numeric', month: 'numeric', day: 'numeric' }), minutes: of(minutes), seconds: of({ ...minutes, second: '2-digit' }) };
}
let formats = zoned();

/** How far the server's clock is ahead of the browser's, in ms. */
let ahead = 0;

/** A difference of the clocks that matters to a reader, in ms: answers have whole seconds. */
const skewed = 30_000;

/**
 * heard takes the server's time from an answer. What is within its error of what is known changes
 * nothing, so that times do not jump and the remark on the clock does not come and go.
 * @param {string | null} date its Date header, in whole seconds
 * @param {number} asked when it was asked for, by the browser's clock
 */
export function heard(date, asked) {
  const at = Date.parse(date ?? '');
  if (Number.isNaN(at)) return;
  const got = Date.now();
  const by = at + 500 - (asked + got) / 2;
  if (Math.abs(by - ahead) > 2000 + got - asked) ahead = by;
}

/** now is the time by the server's clock, in ms. */
export const now = () => Date.now() + ahead;

/** skew says that the browser's clock is off, "" if it is not. */
export const skew = () => (Math.abs(ahead) < skewed ? '' : `The clock of this browser is ${span(Math.abs(ahead) / 1000)} ${ahead > 0 ? 'behind' : 'ahead of'} the server's. Times on this page go by the server's.`);

/** sameDay tells whether an instant is of today. @param {number} at */
const sameDay = (at) => formats.date.format(at) === formats.date.format(now());

/** moment writes an instant: 18:04:10, of another day 29 Nov, 18:04:10. @param {number} at in ms */
export const moment = (at) => `${sameDay(at) ? '' : `${formats.day.format(at)}, `}${formats.seconds.format(at)}`;

/** tick writes an instant at the axis of a chart. @param {number} at in ms @param {'day' | 'minute' | 'second'} by */
export const tick = (at, by) => (by === 'day' ? `${formats.day.format(at)}, ${formats.minutes.format(at)}` : formats[by === 'second' ? 'seconds' : 'minutes'].format(at));

/** zone is the name of the zone in which times are shown. */
export const zone = () => (utc ? 'UTC' : new Intl.DateTimeFormat('en-GB', { timeZoneName: 'short' }).formatToParts(now()).find((p) => p.type === 'timeZoneName')?.value ?? 'local');

/** timed is an instant as an element. @param {Date} d @param {string} words */
const timed = (d, words) => h('time', { datetime: d.toISOString(), title: `${d.toISOString().replace('T', ' ').slice(0, 19)} UTC` }, words);

/**
 * clock is an instant with its tenths of a second: 18:04:10.2.
 * @param {string | number} at as Date takes it
 */
export function clock(at) {
  const d = new Date(at);
  return timed(d, `${moment(d.getTime())}.${Math.floor(d.getMilliseconds() / 100)}`);
}

/**
 * when is an instant: 18:04:10, of another day 29 Nov, 18:04:10.
 * @param {string | number} at
 */
export function when(at) {
  const d = new Date(at);
  if (Number.isNaN(d.getTime()) || d.getFullYear() < 1971) return h('span', null, '–');
  return timed(d, moment(d.getTime()));
}

/** outageTime says when an outage was: since, or from and to. @param {Api.Outage} o */
export function outageTime(o) {
  if (!o.to) return `since ${moment(Date.parse(o.from))}`;
  const [from, to] = [moment(Date.parse(o.from)), moment(Date.parse(o.to))];
  return from === to ? `at ${from}` : `${from} to ${to}`;
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
export const ago = (at) => span(Math.max(0, (now() - new Date(at).getTime()) / 1000));

/** @param {string | number} at */
export const left = (at) => span(Math.max(0, (new Date(at).getTime() - now()) / 1000));

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
  const has = (now() - new Date(from).getTime()) / 1000;
  if (!(has >= 0) || has > overSeconds(over) * 0.97) return null;
  return `since ${span(has)} only`;
}
