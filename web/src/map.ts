// The chunk map: where the bytes of a disk are, or of the memory of a suspended machine, as a picture of cells and as a
// table. It is asked for again and again while it is open and seen.

import { ask, type ByteMap, type Place } from "./api.ts";
import { onTheme, property } from "./charts.ts";
import { h, mark, say } from "./dom.ts";
import { bytes, count, NONE, percent } from "./format.ts";
import { Listing } from "./page.ts";

/** The places from left to right in a cell, and what they are. */
export type Places = [Place, string][];

/** What a map is of. */
interface MapOf {
  title: string;
  /** What has the bytes, in a sentence: `the disk`. */
  noun: (name: string) => string;
  places: Places;
  /** Where it is asked for, by name. */
  path: (name: string) => string;
  /** How often. */
  seconds: number;
}

const PLACES: Places = [
  ["private", "written here, nowhere else"],
  ["waiting", "private, on its way up"],
  ["cached", "of the image, in memory"],
  ["kept", "of the image, on this host"],
  ["stored", "of the image, in the store"],
  ["unread", "of the image, map not read"],
  ["zero", "nothing but zeroes"],
];

/** That of a disk. */
export const DISK_MAP: MapOf = {
  title: "Map",
  noun: () => "the disk",
  places: PLACES,
  path: (disk) => `disks/${encodeURIComponent(disk)}/map`,
  seconds: 1,
};

/** What only the disk has. */
const OWN: Place[] = ["private", "waiting"];
/** So many cells are asked for at the most. */
const CELLS = 2048;
/** Sizes of a cell, in CSS pixels, gap included, and how high the picture may become. */
const [SIZES, HIGHEST] = [[12, 10, 8, 7, 6, 5, 4, 3], 300];
/** The least that is seen of what only the disk has, in device pixels. */
const LEAST = 1;

export class MapPicture {
  readonly element: HTMLDetailsElement;
  private readonly canvas = h("canvas", { role: "img" });
  private readonly scale = h("p", { class: "scale" });
  private readonly reading = h("output", { class: "cell", "aria-live": "off" });
  private readonly failure = h("p", { class: "failure" });
  private readonly cells = new Map<Place, { bytes: HTMLElement; share: HTMLElement }>();
  private readonly asking: Listing;
  private name: string | null = null;
  private map: ByteMap | null = null;
  /** How many cells are beside each other, and how large they are in CSS pixels. */
  private grid = { columns: 1, size: 1 };
  private pointer: { x: number; y: number } | null = null;

  /** `heard` is called with every map that comes. */
  constructor(
    private readonly what: MapOf,
    private readonly heard: (name: string, map: ByteMap) => void = () => {},
  ) {
    this.asking = new Listing(
      what.seconds,
      () => this.load(),
      (error) => say(this.failure, error ? `The map is not up to date: ${error.message}` : ""),
    );
    const rows = what.places.map(([place, what]) => {
      const row = { bytes: h("td", { class: "number" }), share: h("td", { class: "number" }) };
      this.cells.set(place, row);
      const swatch = h("span", { class: `swatch at-${place}`, "aria-hidden": "true" });
      const name = h("th", { scope: "row", title: what }, swatch, place, h("small", {}, what));
      return h("tr", {}, name, row.bytes, row.share);
    });
    const head = h(
      "tr",
      {},
      h("th", { scope: "col" }, "Where"),
      h("th", { scope: "col", class: "number" }, "Bytes"),
      h("th", { scope: "col", class: "number" }, "Share"),
    );
    this.element = h(
      "details",
      { class: "map", ontoggle: () => this.turn() },
      h("summary", {}, what.title),
      this.failure,
      this.canvas,
      this.scale,
      this.reading,
      h(
        "table",
        {},
        h("caption", { class: "unseen" }, "Where its bytes are"),
        h("thead", {}, head),
        h("tbody", {}, ...rows),
      ),
    );
    this.canvas.addEventListener("pointermove", (event) => this.point({ x: event.offsetX, y: event.offsetY }));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(this.element);
    onTheme(() => this.draw());
  }

  /** It is of what has this name from now on, or of nothing. */
  of(name: string | null): void {
    if (name !== this.name) {
      this.map = null;
      this.name = name;
      this.tell();
    }
    this.turn();
  }

  /** Has it shown, as by who opens it. */
  open(): void {
    this.element.open = true;
    this.element.scrollIntoView({ block: "nearest" });
  }

  private turn(): void {
    if (this.name !== null && this.element.open) this.asking.start();
    else this.asking.stop();
  }

  private async load(): Promise<void> {
    const { name } = this;
    if (name === null || document.visibilityState === "hidden") return;
    const map = await ask<ByteMap>(`${this.what.path(name)}?cells=${CELLS}`);
    if (name !== this.name) return this.asking.anew();
    this.map = map;
    this.tell();
    this.heard(name, map);
  }

  private tell(): void {
    const { map } = this;
    for (const [place, row] of this.cells) {
      const held = map?.total[place] ?? 0;
      say(row.bytes, held > 0 ? bytes(held) : NONE);
      say(row.share, map && held > 0 ? percent((held * 100) / map.size) : NONE);
    }
    const length = map?.cells.zero.length ?? 0;
    const scale = map
      ? `${count(length)} cells of ${bytes(map.cell_bytes)}, from the start of ${this.what.noun(this.name ?? "")} on`
      : "";
    say(this.scale, scale);
    const told = this.what.places.filter(([place]) => (map?.total[place] ?? 0) > 0);
    const totals = told.map(([place]) => `${place} ${bytes(map?.total[place] ?? 0)}`).join(", ");
    mark(this.canvas, "aria-label", map ? `Map of ${this.name}: ${scale}; ${totals}` : "The map is not there yet");
    this.draw();
  }

  private draw(): void {
    const width = this.element.clientWidth;
    if (width === 0 || !this.element.open) return;
    const length = this.map?.cells.zero.length ?? 0;
    const columns = (size: number) => Math.max(1, Math.floor(width / size));
    const fits = (size: number) => Math.ceil(length / columns(size)) * size <= HIGHEST;
    const size = SIZES.find(fits) ?? (SIZES.at(-1) as number);
    this.grid = { columns: columns(size), size };
    const height = Math.ceil(length / this.grid.columns) * size;
    const ratio = window.devicePixelRatio;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d");
    if (this.map && context) this.paint(context, this.map, ratio);
    this.read();
  }

  private paint(context: CanvasRenderingContext2D, map: ByteMap, ratio: number): void {
    const { places } = this.what;
    const colours = places.map(([place]) => property(`--at-${place}`));
    const { columns, size } = this.grid;
    const [pitch, side] = [size * ratio, Math.max(1, Math.round((size - 1) * ratio))];
    for (let cell = 0; cell < map.cells.zero.length; cell += 1) {
      const [x, y] = [Math.round((cell % columns) * pitch), Math.round(Math.floor(cell / columns) * pitch)];
      const held = places.map(([place]) => map.cells[place][cell] ?? 0);
      const all = held.reduce((sum, one) => sum + one, 0);
      let [drawn, upTo] = [0, 0];
      held.forEach((one, at) => {
        upTo += one;
        // What only the disk has is seen, however little it is.
        const least = one > 0 && OWN.includes((places[at] as Places[number])[0]) ? LEAST : 0;
        const end = Math.max(Math.round((upTo / all) * side), drawn + least);
        context.fillStyle = colours[at] as string;
        context.fillRect(x + drawn, y, Math.min(end, side) - drawn, side);
        drawn = Math.min(end, side);
      });
    }
  }

  private point(at: { x: number; y: number } | null): void {
    this.pointer = at;
    this.read();
  }

  /** Tells what is in the cell under the pointer. */
  private read(): void {
    const { map, pointer, grid } = this;
    if (!map || !pointer) return say(this.reading, "");
    const column = Math.min(Math.floor(pointer.x / grid.size), grid.columns - 1);
    const cell = Math.floor(pointer.y / grid.size) * grid.columns + column;
    const told = this.what.places.filter(([place]) => (map.cells[place][cell] ?? 0) > 0);
    const text = told.map(([place]) => `${place} ${bytes(map.cells[place][cell] ?? 0)}`).join(", ");
    say(this.reading, text === "" ? "" : `At ${bytes(cell * map.cell_bytes)}: ${text}`);
  }
}
