// The recording of a boot storm: a lane for each guest, in the colours of what it waited for.

import { ask, type Boot, type BootWait, type Storm } from "./api.ts";
import { onTheme, property } from "./charts.ts";
import { h, mark, say } from "./dom.ts";
import { bytes, count, date, NONE, percent, some } from "./format.ts";
import { Listing, Pane } from "./page.ts";
import { WAITS, waitName } from "./waits.ts";

/** How often a storm that goes on is asked for again, in seconds. */
const AGAIN = 3;
/** The height of a lane, in CSS pixels; with its gap, if there is room for one. */
const LANES = [12, 8, 5, 3, 2, 1];
/** How high the picture may become. */
const HIGHEST = 420;
/** How high the sum above the lanes is. */
const SUM = 48;

const seconds = (value: number): string => `${value.toFixed(1)} s`;

/** How far a boot is, of its image's boot list. */
export function progress(boot: Pick<Boot, "list_chunks" | "listed_chunks" | "other_chunks">): string {
  if (boot.list_chunks === null) return count(boot.other_chunks);
  return `${count(boot.listed_chunks)} of ${count(boot.list_chunks)}`;
}

export class StormPane {
  private readonly canvas = h("canvas", { role: "img" });
  private readonly reading = h("output", { class: "cell", "aria-live": "off" });
  private readonly failure = h("p", { class: "failure" });
  private readonly body = h("tbody");
  private readonly pane: Pane;
  private readonly asking = new Listing(
    AGAIN,
    () => this.load(),
    (error) => say(this.failure, error ? `The recording is not up to date: ${error.message}` : ""),
  );
  private number: string | null = null;
  private storm: Storm | null = null;
  private lane = 1;

  constructor() {
    const head = ["What for", "Guests' time", "Share"].map((title, at) =>
      h("th", { scope: "col", class: at > 0 ? "number" : "" }, title),
    );
    const below = h(
      "div",
      { class: "map storm" },
      this.failure,
      this.canvas,
      this.reading,
      h("table", {}, h("caption", {}, "What its guests waited for"), h("thead", {}, h("tr", {}, ...head)), this.body),
    );
    this.pane = new Pane("Boot storm", "#boots", below);
    this.canvas.addEventListener("pointermove", (event) => this.read(event.offsetX, event.offsetY));
    this.canvas.addEventListener("pointerleave", () => say(this.reading, ""));
    new ResizeObserver(() => this.draw()).observe(below);
    onTheme(() => this.draw());
  }

  get element(): HTMLElement {
    return this.pane.element;
  }

  /** Shows the storm of this number from now on, or none. */
  choose(number: string | null): void {
    if (number !== this.number) this.storm = null;
    this.number = number;
    if (number === null) {
      this.stop();
      this.pane.hide();
      return;
    }
    this.tell();
    this.pane.focus();
    this.asking.start();
  }

  stop(): void {
    this.asking.stop();
  }

  private async load(): Promise<void> {
    const { number } = this;
    if (number === null || this.storm?.over || document.visibilityState === "hidden") return;
    const storm = await ask<Storm>(`boots/${encodeURIComponent(number)}`);
    if (number !== this.number) return;
    this.storm = storm;
    this.tell();
  }

  private tell(): void {
    const { storm } = this;
    if (!storm) {
      this.pane.show(`Storm ${this.number ?? ""}`, [["State", "…"]]);
      this.body.replaceChildren();
      return;
    }
    const took = storm.boots.map((boot) => boot.seconds).sort((a, b) => a - b);
    const of = (part: number): string => seconds(took[Math.min(took.length - 1, Math.floor(took.length * part))] ?? 0);
    const stored = storm.moments.reduce((sum, moment) => sum + moment.stored_bytes, 0);
    const facts: [string, string | string[]][] = [
      ["Began", date(storm.began)],
      ["State", storm.over ? `over after ${seconds(storm.seconds)}` : `goes on for ${seconds(storm.seconds)}`],
      ["Boots", count(storm.watched)],
      ["Each took", took.length > 0 ? [`half up to ${of(0.5)}`, `the longest ${of(1)}`] : NONE],
      ["From the store", bytes(stored)],
    ];
    const left = storm.boots.filter((boot) => boot.state === "left").length;
    if (left > 0) facts.push(["Left early", some(left, "client")]);
    if (storm.unwatched > 0) facts.push(["Not watched", some(storm.unwatched, "boot")]);
    this.pane.show(`Storm of ${some(storm.watched, "boot")}`, facts);
    this.sum(storm);
    this.draw();
  }

  /** What all guests waited for together. */
  private sum(storm: Storm): void {
    const all = storm.boots.reduce((sum, boot) => sum + boot.seconds, 0);
    const of = (wait: BootWait): number =>
      wait === "none" ? 0 : storm.boots.reduce((sum, boot) => sum + boot.waited[wait], 0);
    const waited = WAITS.reduce((sum, [wait]) => sum + of(wait), 0);
    const rows = WAITS.map(([wait, name, what]) => {
      const time = wait === "none" ? Math.max(0, all - waited) : of(wait);
      const swatch = h("span", { class: `swatch wait-${wait}`, "aria-hidden": "true" });
      return h(
        "tr",
        {},
        h("th", { scope: "row" }, swatch, name, h("small", {}, what)),
        h("td", { class: "number" }, time > 0 ? seconds(time) : NONE),
        h("td", { class: "number" }, time > 0 ? percent((time * 100) / Math.max(all, time + waited)) : NONE),
      );
    });
    this.body.replaceChildren(...rows);
  }

  private draw(): void {
    const { storm } = this;
    const width = this.canvas.parentElement?.clientWidth ?? 0;
    if (!storm || width === 0) return;
    const [boots, moments] = [storm.boots.length, storm.moments.length];
    this.lane = LANES.find((lane) => boots * lane <= HIGHEST) ?? HIGHEST / boots;
    const height = SUM + Math.ceil(boots * this.lane);
    const ratio = window.devicePixelRatio;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = `${height}px`;
    const waits = WAITS.map(([wait, name]) => `${name} ${count(storm.moments.at(-1)?.waits[wait] ?? 0)}`).join(", ");
    const label = `${some(boots, "boot")} in ${some(moments, "moment")}, a lane each; at the end waiting for: ${waits}`;
    mark(this.canvas, "aria-label", label);
    const context = this.canvas.getContext("2d");
    if (context && moments > 0) this.paint(context, storm, this.canvas.width / moments, ratio);
  }

  private paint(context: CanvasRenderingContext2D, storm: Storm, step: number, ratio: number): void {
    const colours = new Map(WAITS.map(([wait, , , letter]) => [letter, property(`--wait-${wait}`)]));
    const from = (at: number): number => Math.round(at * step);
    const most = Math.max(1, ...storm.moments.map(({ waits }) => WAITS.reduce((sum, [wait]) => sum + waits[wait], 0)));
    storm.moments.forEach(({ waits }, at) => {
      let upTo = 0;
      for (const [wait, , , letter] of WAITS) {
        const [low, high] = [upTo, upTo + waits[wait]];
        upTo = high;
        const y = (count: number): number => Math.round((1 - count / most) * (SUM - 8) * ratio);
        context.fillStyle = colours.get(letter) as string;
        context.fillRect(from(at), y(high), from(at + 1) - from(at), y(low) - y(high));
      }
    });
    const gap = this.lane >= 3 ? 1 : 0;
    storm.boots.forEach((boot, number) => {
      const top = Math.round((SUM + number * this.lane) * ratio);
      const side = Math.max(1, Math.round((this.lane - gap) * ratio));
      [...boot.lane].forEach((letter, at) => {
        const moment = boot.first_moment + at;
        context.fillStyle = colours.get(letter) ?? "";
        context.fillRect(from(moment), top, Math.max(1, from(moment + 1) - from(moment)), side);
      });
    });
  }

  /** Tells of the guest and the moment under the pointer. */
  private read(x: number, y: number): void {
    const { storm } = this;
    const moment = Math.floor((x / this.canvas.clientWidth) * (storm?.moments.length ?? 0));
    const boot = storm?.boots[Math.floor((y - SUM) / this.lane)];
    const at = storm?.moments[moment]?.at;
    if (!boot || at === undefined) return say(this.reading, "");
    const letter = boot.lane[moment - boot.first_moment];
    const wait = WAITS.find(([, , , known]) => known === letter)?.[0] ?? null;
    const what = wait === null ? "does not boot" : `waits for ${waitName(wait)}`;
    say(this.reading, `${boot.disk} ${what} at ${seconds(at)}; ${progress(boot)} chunks in ${seconds(boot.seconds)}`);
  }
}
