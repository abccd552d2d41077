// Numbers as people read them. Bytes are binary everywhere: KiB, MiB, GiB.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const natural = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
const moment = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

/** What stands for nothing known. */
export const NONE = "–";

export const count = (value: number): string => whole.format(value);

/** Three digits that count: 0.12, 3.4, 56, 1,234. */
function short(value: number): string {
  if (value === 0) return "0";
  if (value < 1) return value.toFixed(2);
  return value < 10 ? value.toFixed(1) : whole.format(value);
}

/** Requests in a second and the like. */
export function rate(value: number): string {
  return value < 99_999.5 ? short(value) : `${short(value / 1000)} k`;
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1023.5 && unit < units.length - 1) [value, unit] = [value / 1024, unit + 1];
  return `${unit === 0 ? whole.format(value) : short(value)} ${units[unit]}`;
}

export const percent = (value: number): string => `${value.toFixed(1)} %`;

/** A time of microseconds. */
export function time(us: number): string {
  if (us < 999.5) return `${us < 10 ? us.toFixed(1) : us.toFixed(0)} µs`;
  if (us < 999_500) return `${us < 9950 ? (us / 1000).toFixed(1) : (us / 1000).toFixed(0)} ms`;
  return `${us < 9.95e6 ? (us / 1e6).toFixed(1) : (us / 1e6).toFixed(0)} s`;
}

/** How long something lasts. */
export function duration(seconds: number): string {
  const [d, h, m] = [Math.floor(seconds / 86_400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (d > 0) return `${d} d ${h} h`;
  if (h > 0) return `${h} h ${m} min`;
  return m > 0 ? `${m} min ${Math.floor(seconds) % 60} s` : `${Math.floor(seconds)} s`;
}

/** Unix seconds as a date. */
export const date = (seconds: number): string => moment.format(seconds * 1000);

/** Unix seconds as a time of day. */
export const hour = (seconds: number): string => clock.format(seconds * 1000);

/** vm2 before vm10. */
export const byName = (a: string, b: string): number => natural.compare(a, b) || (a < b ? -1 : a > b ? 1 : 0);

/** `one` or `many`, with the number. */
export const some = (number: number, one: string, many = `${one}s`): string =>
  `${count(number)} ${number === 1 ? one : many}`;

/** The bytes of a size as people write it: 2GiB, 512M, 1.5 G; `null` for what is none. */
export function parseBytes(text: string): number | null {
  const found = /^(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?$/i.exec(text.trim());
  if (!found) return null;
  const power = ["", "k", "m", "g", "t"].indexOf(found[2]?.toLowerCase() ?? "");
  return Math.round(Number(found[1]) * 1024 ** power);
}
