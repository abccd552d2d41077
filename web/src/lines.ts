// Lines over a scale of powers of two, as a picture: hit curves, responses by number of clients.

import { onTheme, property } from "./charts.ts";
import { h, mark } from "./dom.ts";

export interface PlottedLine {
  name: string;
  points: [number, number][];
}

interface LinesOptions {
  title: string;
  x: (value: number) => string;
  y: (value: number) => string;
  /** The scale ends here at the most, whatever the lines do. */
  most?: number;
}

/** Colours of lines, by turns; those behind them are drawn again with dashes. */
const COLOURS = ["--read", "--write", "--wait-disk", "--wait-queue", "--wait-nearby", "--bad"];
const [LEFT, RIGHT, TOP, BOTTOM, HEIGHT] = [52, 10, 8, 24, 240];

const steps = (most: number): number[] => [0, 0.25, 0.5, 0.75, 1].map((part) => part * most);

export class LinePlot {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { role: "img" });
  private readonly key = h("ul", { class: "stack-key" });
  private lines: PlottedLine[] = [];

  constructor(private readonly options: LinesOptions) {
    this.element = h("figure", { class: "line-plot" }, h("h3", {}, options.title), this.canvas, this.key);
    new ResizeObserver(() => this.draw()).observe(this.element);
    onTheme(() => this.draw());
  }

  show(lines: PlottedLine[]): void {
    const most = this.options.most ?? Infinity;
    // What is beyond the scale is not drawn at its end: the line leaves the picture.
    this.lines = lines.map(({ name, points }) => {
      const beyond = points.findIndex(([, y]) => y > most);
      return { name, points: beyond < 0 ? points : points.slice(0, beyond + 1) };
    });
    const items = lines.map(({ name }, at) => {
      const swatch = h("span", { class: "swatch line", "aria-hidden": "true" });
      swatch.style.borderTopColor = `var(${COLOURS[at % COLOURS.length] ?? "--ink"})`;
      if (at >= COLOURS.length) swatch.style.borderTopStyle = "dashed";
      return h("li", {}, swatch, name);
    });
    this.key.replaceChildren(...items);
    this.draw();
  }

  private draw(): void {
    const width = this.element.clientWidth;
    const points = this.lines.flatMap((line) => line.points);
    if (width === 0 || points.length === 0) return;
    const { options, canvas } = this;
    const last = this.lines.map(({ name, points }) => `${name} ${options.y(points.at(-1)?.[1] ?? 0)}`);
    const end = Math.max(...points.map(([x]) => x));
    mark(canvas, "aria-label", `${options.title}; at ${options.x(end)}: ${last.join(", ")}`);
    const ratio = window.devicePixelRatio;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(HEIGHT * ratio);
    canvas.style.height = `${HEIGHT}px`;
    const context = canvas.getContext("2d");
    if (!context) return;
    context.scale(ratio, ratio);
    this.paint(context, width, points);
  }

  private paint(context: CanvasRenderingContext2D, width: number, points: [number, number][]): void {
    const { options } = this;
    const xs = points.map(([x]) => Math.log2(x));
    const [from, to] = [Math.min(...xs), Math.max(...xs)];
    const most = Math.min(options.most ?? Infinity, Math.max(...points.map(([, y]) => y))) || 1;
    const [wide, high] = [width - LEFT - RIGHT, HEIGHT - TOP - BOTTOM];
    const x = (value: number): number => LEFT + (to > from ? (Math.log2(value) - from) / (to - from) : 0.5) * wide;
    const y = (value: number): number => TOP + (1 - value / most) * high;
    context.font = `12px ${property("--sans")}`;
    context.strokeStyle = property("--rule");
    context.fillStyle = property("--muted");
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const step of steps(most)) {
      context.beginPath();
      context.moveTo(LEFT, y(step));
      context.lineTo(width - RIGHT, y(step));
      context.stroke();
      context.fillText(options.y(step), LEFT - 8, y(step));
    }
    context.textBaseline = "top";
    const places = [...new Set(points.map(([value]) => value))].sort((a, b) => a - b);
    let free = -Infinity;
    for (const value of places) {
      const [text, at] = [options.x(value), x(value)];
      const half = context.measureText(text).width / 2;
      const middle = Math.min(Math.max(at, LEFT + half - 8), width - half);
      if (middle - half < free) continue;
      free = middle + half + 14;
      context.textAlign = "center";
      context.fillText(text, middle, HEIGHT - BOTTOM + 7);
    }
    context.lineWidth = 2;
    context.beginPath();
    context.rect(LEFT, TOP - 2, wide, high + 4);
    context.clip();
    this.lines.forEach((line, at) => {
      context.strokeStyle = property(COLOURS[at % COLOURS.length] ?? "--ink");
      context.setLineDash(at >= COLOURS.length ? [5, 4] : []);
      context.beginPath();
      line.points.forEach(([px, py], number) => {
        if (number === 0) context.moveTo(x(px), y(py));
        else context.lineTo(x(px), y(py));
      });
      context.stroke();
    });
    context.setLineDash([]);
  }
}
