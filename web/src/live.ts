// The live state of the server: one stream for the whole page, which comes back by itself.

import type { Hello, Now, Point, Row, RowChanges } from "./api.ts";
import { readEvents } from "./events.ts";
import { token, words } from "./token.ts";

/** A moment; its end by this machine's clock, in Unix seconds. */
export interface Moment {
  t: number;
  point: Point;
}

/** So many seconds are kept for the charts. */
export const KEPT = 600;
/** After so long without a word the connection is taken for dead. */
const SILENCE = 6000;
/** How long after it was lost it is tried again, at first and at most, in milliseconds. */
const [PAUSE, LONGEST] = [500, 5000];
/** A page that nobody sees goes without after so long: browsers have few connections for one server. */
const HIDDEN = 60_000;

/** A clock that differs by so many seconds was set. */
const CLOCK_SET = 10;

type Listener = () => void;

export class Live {
  now: Now | null = null;
  moments: Moment[] = [];
  rows = new Map<string, Row>();
  /** Since when there is no connection, in Unix milliseconds; `null` while there is one. */
  lost: number | null = Date.now();
  /** Nobody sees the page. */
  paused = false;
  /** The server has another page by now. */
  outdated = false;
  /** Why the token of the page is not for this stream; it may be for some disks and images. */
  limited: string | null = null;
  /** Why the server answered with an error, in its own words. */
  failure: string | null = null;
  /** The server answers nothing without another token: nothing is asked until `open` is called. */
  asked = false;

  private source: AbortController | null = null;
  private page: string | null = null;
  /** When the server was ready, by this machine's clock. */
  private began = 0;
  private withRows = false;
  private pause = PAUSE;
  private silence = 0;
  private again = 0;
  private hidden = 0;
  private listeners = new Set<Listener>();

  constructor() {
    this.open();
    document.addEventListener("visibilitychange", () => this.turn());
    window.addEventListener("online", () => this.retry());
  }

  /** Calls back after every change; gives what ends that. */
  listen(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Whether the rows of exports in use are wanted, too. */
  want(rows: boolean): void {
    if (rows === this.withRows) return;
    this.withRows = rows;
    if (!rows) this.rows.clear();
    if (this.source) this.open();
  }

  /** Asks nothing more: the server wants another token. */
  stop(): void {
    this.close();
    this.asked = true;
    this.limited = null;
    this.failure = null;
    this.lost ??= Date.now();
    this.tell();
  }

  /** Begins, or begins anew: with another token, say. */
  open(): void {
    this.close();
    this.asked = false;
    this.limited = null;
    const source = new AbortController();
    this.source = source;
    this.listenForSilence();
    void this.read(source);
  }

  private tell(): void {
    for (const listener of this.listeners) listener();
  }

  private turn(): void {
    clearTimeout(this.hidden);
    if (document.visibilityState === "hidden") {
      this.hidden = setTimeout(() => {
        this.close();
        this.paused = true;
        this.tell();
      }, HIDDEN);
    } else if (this.paused) {
      this.paused = false;
      if (!this.asked) this.open();
    }
  }

  private close(): void {
    clearTimeout(this.silence);
    clearTimeout(this.again);
    this.source?.abort();
    this.source = null;
  }

  private async read(source: AbortController): Promise<void> {
    try {
      const answer = await token.fetch(this.withRows ? "live?disks=true" : "live", source.signal);
      if (this.source !== source) return;
      if (answer.ok) {
        await readEvents(answer, (name, data) => this.hear(source, name, data));
      } else {
        const why = await words(answer);
        if (this.source !== source) return;
        if (answer.status === 403) {
          this.limit(why);
          return;
        }
        this.failure = why;
      }
    } catch {
      // It broke off, or never began.
    }
    if (this.source === source) this.lose();
  }

  private hear(source: AbortController, name: string, data: string): void {
    if (this.source !== source) return;
    this.listenForSilence();
    try {
      const value: unknown = JSON.parse(data);
      if (name === "hello") this.greet(value as Hello);
      else if (name === "now") this.take(value as Now);
      else if (name === "disks") this.change(value as RowChanges);
    } catch (error) {
      // A fault of the page is no fault of the connection.
      reportError(error);
    }
  }

  private limit(why: string): void {
    this.close();
    this.limited = why;
    this.tell();
  }

  private listenForSilence(): void {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => this.lose(), SILENCE);
  }

  private lose(): void {
    this.close();
    this.lost ??= Date.now();
    this.again = setTimeout(() => this.open(), this.pause);
    this.pause = Math.min(this.pause * 2, LONGEST);
    this.tell();
  }

  private retry(): void {
    if (this.lost !== null && !this.paused && !this.asked) this.open();
  }

  private greet(hello: Hello): void {
    this.page ??= hello.page;
    this.outdated = this.page !== hello.page;
    this.began = Date.now() / 1000 - hello.at;
    const history = hello.history.map((point) => ({ t: this.began + point.at, point }));
    const first = history[0]?.t ?? Infinity;
    // What was there before: of an earlier server, or seen by nobody else.
    this.moments = [...this.moments.filter((moment) => moment.t < first - 0.5), ...history];
  }

  private take(now: Now): void {
    // By the server's clock: what was held up on its way happened before. The quickest one tells best, unless
    // a clock was set.
    const began = Date.now() / 1000 - now.point.at;
    this.began = Math.abs(began - this.began) > CLOCK_SET ? began : Math.min(this.began, began);
    const t = this.began + now.point.at;
    this.now = now;
    this.lost = null;
    this.failure = null;
    this.pause = PAUSE;
    this.moments.push({ t, point: now.point });
    const old = this.moments.findIndex((moment) => moment.t >= t - KEPT);
    if (old > 0) this.moments.splice(0, old);
    this.tell();
  }

  private change(changes: RowChanges): void {
    if (changes.all) this.rows.clear();
    for (const row of changes.rows) this.rows.set(row.name, row);
    for (const name of changes.gone) this.rows.delete(name);
    this.tell();
  }
}
