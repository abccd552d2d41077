// Charts of the last ten minutes, by uPlot: lines, and times of requests as a heat map.

import uPlot from "uplot";
import { KEPT, type Live, type Moment } from "./live.ts";
import { h, mark, say } from "./dom.ts";
import { hour, time } from "./format.ts";

/** When so many seconds between two moments belong to neither, there is a gap. */
const GAP = 0.5;

interface Line {
  name: string;
  /** The property of the style sheet that has its colour. */
  colour: string;
  value: (moment: Moment) => number | null;
  fill?: boolean;
}

interface ChartOptions {
  title: string;
  height: number;
  lines: Line[];
  format: (value: number) => string;
  /** Powers of ten, from this on; up to where the moments go. */
  log?: { from: number; to: (moments: Moment[]) => number };
  /** The distances that marks of the scale may have. */
  steps?: number[];
  /** Draws below the lines. */
  below?: (plot: uPlot, moments: Moment[]) => void;
}

/** A property of the style sheet, as it is in the present colours. */
export const property = (name: string): string =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Calls back when colours change between dark and light. */
export function onTheme(changed: () => void): void {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
}

/** A figure that follows the server. */
export class Chart {
  readonly element: HTMLElement;
  private plot: uPlot | null = null;
  private readonly room = h("div", { class: "plot", role: "img" });
  private readonly reading = h("output", { class: "reading", "aria-live": "off" });
  private moments: Moment[] = [];
  private readonly sizes = new ResizeObserver(() => this.fit());

  constructor(private readonly options: ChartOptions) {
    const key = h("span", { class: "key" });
    for (const line of options.lines) key.append(h("span", { class: `key-${line.colour.slice(2)}` }, line.name));
    this.element = h(
      "figure",
      { class: "chart" },
      h("figcaption", {}, h("h2", {}, options.title), key, this.reading),
      this.room,
    );
    this.sizes.observe(this.room);
    onTheme(() => this.rebuild());
  }

  /** Shows what is known now. */
  draw(live: Live): void {
    this.moments = live.moments;
    if (!this.plot) return;
    const now = live.moments.at(-1)?.t ?? Date.now() / 1000;
    this.plot.batch(() => {
      this.plot?.setData(this.data(), false);
      this.plot?.setScale("x", { min: now - KEPT, max: now });
      this.plot?.setScale("y", this.range());
    });
    this.read(this.plot.cursor.idx ?? null);
  }

  private range(): { min: number; max: number } {
    const { log, lines } = this.options;
    if (log) return { min: log.from, max: log.to(this.moments) };
    let most = 1;
    for (const line of lines) for (const moment of this.moments) most = Math.max(most, line.value(moment) ?? 0);
    return { min: 0, max: most * 1.06 };
  }

  private data(): uPlot.AlignedData {
    const times: number[] = [];
    const values: (number | null)[][] = this.options.lines.map(() => []);
    let before = Infinity;
    for (const moment of this.moments) {
      if (moment.t - moment.point.seconds - before > GAP) {
        times.push(before + GAP / 2);
        for (const list of values) list.push(null);
      }
      times.push(moment.t);
      this.options.lines.forEach((line, at) => values[at]?.push(line.value(moment)));
      before = moment.t;
    }
    return [times, ...values];
  }

  private fit(): void {
    const width = Math.floor(this.room.clientWidth);
    if (width === 0) return;
    if (this.plot) this.plot.setSize({ width, height: this.options.height });
    else this.build(width);
  }

  private rebuild(): void {
    this.plot?.destroy();
    this.plot = null;
    this.fit();
  }

  private build(width: number): void {
    const { options } = this;
    const [ink, rule] = [property("--muted"), property("--rule")];
    const font = `11px ${property("--sans")}`;
    const axis = { stroke: ink, font, grid: { stroke: rule, width: 1 }, ticks: { show: false } };
    const range: uPlot.Range.Function = (_plot, least, most) => [least ?? 0, most ?? 1];
    const y: uPlot.Scale = options.log ? { distr: 3, log: 10, auto: false, range } : { auto: false, range };
    // Between powers of ten there are no marks.
    const filter = (_plot: uPlot, ticks: number[]) => ticks.map((tick) => (isPower(tick) ? tick : null));
    this.plot = new uPlot(
      {
        width,
        height: options.height,
        legend: { show: false },
        cursor: { y: false, points: { size: 5 }, drag: { x: false, y: false } },
        padding: [6, 20, 0, 0],
        scales: { x: { time: true, auto: false }, y },
        axes: [
          {
            ...axis,
            size: 24,
            space: 64,
            incrs: [60, 120, 300, 600],
            grid: { show: false },
            values: (_plot, ticks) => ticks.map((t) => hour(t).slice(0, 5)),
          },
          {
            ...axis,
            size: 66,
            gap: 6,
            space: 20,
            values: (_plot, ticks) => ticks.map((tick) => (tick === null ? null : options.format(tick))),
            ...(options.log ? { filter, grid: { ...axis.grid, filter } } : {}),
            ...(options.steps ? { incrs: options.steps } : {}),
          },
        ],
        series: [
          {},
          ...options.lines.map((line) => ({
            label: line.name,
            stroke: property(line.colour),
            width: 1.25,
            points: { show: false },
            ...(line.fill ? { fill: `${property(line.colour)}22` } : {}),
          })),
        ],
        hooks: {
          drawAxes: [(plot) => options.below?.(plot, this.moments)],
          setCursor: [(plot) => this.read(plot.cursor.idx ?? null)],
        },
      },
      this.data(),
      this.room,
    );
    const now = this.moments.at(-1)?.t ?? Date.now() / 1000;
    this.plot.setScale("x", { min: now - KEPT, max: now });
    this.plot.setScale("y", this.range());
  }

  /** Tells the values under the pointer, or the newest. */
  private read(index: number | null): void {
    const data = this.plot?.data;
    const at = index ?? (data?.[0].length ?? 0) - 1;
    const t = data?.[0][at];
    if (!data || t === undefined) return;
    const values = this.options.lines.map((line, row) => {
      const value = data[row + 1]?.[at];
      return `${line.name} ${value === null || value === undefined ? "none" : this.options.format(value)}`;
    });
    const text = values.join(" · ");
    say(this.reading, index === null ? text : `${hour(t)} · ${text}`);
    if (index === null) mark(this.room, "aria-label", `${this.options.title}, last ten minutes; now ${text}`);
  }
}

const isPower = (tick: number): boolean => Math.abs(Math.log10(tick) - Math.round(Math.log10(tick))) < 1e-9;

/** The shortest time that the heat map shows, and the least that it goes up to, in microseconds. */
const [SHORTEST, LEAST_LONG] = [4, 100_000];

function longest(moments: Moment[]): number {
  let most = LEAST_LONG;
  for (const { point } of moments) {
    const last = point.latency?.cells.at(-1);
    if (last) most = Math.max(most, last[0] / 1000);
  }
  return 10 ** Math.ceil(Math.log10(most)) * 1.01;
}

/** Distances of marks that are round numbers of KiB, MiB or GiB. */
export const BINARY = Array.from({ length: 48 }, (_, power) => 2 ** power);

/** How long reads and writes took: a column for each second, darker where there were more. */
export function heatMap(): Chart {
  return new Chart({
    title: "Time of reads and writes",
    height: 260,
    format: time,
    log: { from: SHORTEST, to: longest },
    lines: [
      { name: "p50", colour: "--ink", value: (moment) => moment.point.latency?.p50_us ?? null },
      { name: "p99", colour: "--write", value: (moment) => moment.point.latency?.p99_us ?? null },
    ],
    below: drawCells,
  });
}

function drawCells(plot: uPlot, moments: Moment[]): void {
  const { ctx, bbox } = plot;
  const [from, to] = [plot.scales.x?.min ?? 0, plot.scales.x?.max ?? 0];
  let most = 1;
  for (const { point } of moments) for (const [, number] of point.latency?.cells ?? []) most = Math.max(most, number);
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.fillStyle = property("--read");
  for (const moment of moments) {
    if (moment.t < from || moment.t > to + 1 || !moment.point.latency) continue;
    const left = Math.round(plot.valToPos(moment.t - moment.point.seconds, "x", true));
    const right = Math.round(plot.valToPos(moment.t, "x", true));
    for (const [nanos, number] of moment.point.latency.cells) {
      const [below, above] = bounds(nanos);
      const top = Math.round(plot.valToPos(Math.max(above, SHORTEST), "y", true));
      const bottom = Math.round(plot.valToPos(Math.max(below, SHORTEST), "y", true));
      ctx.globalAlpha = 0.1 + 0.85 * (Math.log1p(number) / Math.log1p(most));
      ctx.fillRect(left, top, Math.max(right - left, 1), Math.max(bottom - top, 2));
    }
  }
  ctx.restore();
}

/** The bounds of a cell in microseconds, by its longest time: half a power of two. */
function bounds(nanos: number): [number, number] {
  const above = nanos + 1;
  const power = 2 ** Math.floor(Math.log2(nanos));
  return [(above > 1.5 * power ? 1.5 * power : power) / 1000, above / 1000];
}
