// Borrow: where on the owner's disks room is borrowed, for the disks of this server and for others.

import { ask, type Borrowed, type BorrowedDisk, type BorrowedRoom, type Lent } from "./api.ts";
import { onTheme, property } from "./charts.ts";
import { h, mark, say } from "./dom.ts";
import { bytes, count, NONE, percent, some } from "./format.ts";
import { Listing, type Page } from "./page.ts";

/** The height of a map and the gap between its cells, in CSS pixels. */
const [HEIGHT, GAP] = [34, 1];
/** Little that is lent is seen as well, as so much of a cell. */
const LEAST = 0.2;

/** One disk of the owner: a bar of cells, each as full as it is lent. */
class LentPicture {
  readonly element: HTMLElement;
  private readonly title = h("h3");
  private readonly canvas = h("canvas", { role: "img" });
  private readonly note = h("p", { class: "big-note" });
  private lent: Lent | null = null;

  constructor() {
    this.element = h("div", { class: "lent" }, this.title, this.canvas, this.note);
    new ResizeObserver(() => this.draw()).observe(this.element);
    onTheme(() => this.draw());
  }

  show(lent: Lent): void {
    const same = JSON.stringify(lent) === JSON.stringify(this.lent);
    if (same) return;
    this.lent = lent;
    const { map } = lent;
    const part = map && map.size > 0 ? `, ${percent((lent.bytes * 100) / map.size)} of ${bytes(map.size)}` : "";
    const told = `${bytes(lent.bytes)} in ${some(lent.extents, "range")}${part}`;
    say(this.title, lent.disk);
    const cells = map
      ? `; a cell is ${bytes(map.cell_bytes)}, from the start of the disk on`
      : "; a file without a name";
    say(this.note, `${told}${cells}`);
    this.canvas.hidden = map === null;
    mark(this.canvas, "aria-label", `Map of ${lent.disk}: ${told}`);
    this.draw();
  }

  private draw(): void {
    const map = this.lent?.map;
    const width = this.element.clientWidth;
    if (!map || width === 0) return;
    const ratio = window.devicePixelRatio;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(HEIGHT * ratio);
    this.canvas.style.height = `${HEIGHT}px`;
    const context = this.canvas.getContext("2d");
    if (!context) return;
    const [step, high] = [this.canvas.width / Math.max(1, map.cells.length), this.canvas.height];
    const gap = step > 4 * ratio ? GAP * ratio : 0;
    map.cells.forEach((lent, cell) => {
      const [from, to] = [Math.round(cell * step), Math.round((cell + 1) * step - gap)];
      const size = Math.min(map.cell_bytes, map.size - cell * map.cell_bytes);
      const full = lent > 0 ? Math.max(LEAST, lent / size) : 0;
      context.fillStyle = property("--at-zero");
      context.fillRect(from, 0, Math.max(1, to - from), high);
      context.fillStyle = property("--at-cached");
      const tall = Math.round(high * full);
      context.fillRect(from, high - tall, Math.max(1, to - from), tall);
    });
  }
}

/** Something on borrowed room: its facts, and where that lies. */
class Borrowing {
  readonly element: HTMLElement;
  private readonly title = h("h2");
  private readonly facts = h("dl", { class: "facts" });
  private readonly pictures: LentPicture[] = [];

  constructor() {
    this.element = h("section", { class: "borrowing" }, this.title, this.facts);
  }

  show(title: string, facts: [string, string][], lent: Lent[]): void {
    say(this.title, title);
    while (this.facts.children.length > facts.length * 2) this.facts.lastElementChild?.remove();
    while (this.facts.children.length < facts.length * 2) this.facts.append(h("dt"), h("dd"));
    facts.forEach(([name, value], at) => {
      say(this.facts.children[at * 2] as Element, name);
      say(this.facts.children[at * 2 + 1] as Element, value);
    });
    while (this.pictures.length > lent.length) this.pictures.pop()?.element.remove();
    lent.forEach((one, at) => {
      let picture = this.pictures[at];
      if (!picture) {
        picture = new LentPicture();
        this.pictures.push(picture);
        this.element.append(picture.element);
      }
      picture.show(one);
    });
  }
}

export class BorrowPage implements Page {
  readonly title = "Borrow";
  readonly rows = false;
  readonly element: HTMLElement;

  private readonly failure = h("p", { class: "failure" });
  private readonly nothing = h("p", { class: "nothing" });
  private readonly shown = new Map<string, Borrowing>();
  private readonly list = new Listing(
    2,
    () => this.load(),
    (error) => say(this.failure, error ? `This is not up to date: ${error.message}` : ""),
  );

  constructor() {
    this.element = h("div", { class: "borrow" }, this.failure, this.nothing);
  }

  enter(): void {
    this.list.start();
  }

  leave(): void {
    this.list.stop();
  }

  update(): void {
    // What is borrowed outside the server, nobody tells it: it is asked for.
  }

  private async load(): Promise<void> {
    if (document.visibilityState === "hidden") return;
    const { room, disks } = await ask<Borrowed>("borrowed");
    const wanted = new Map<string, [string, [string, string][], Lent[]]>();
    if (room) wanted.set("room", ["Room for the ephemeral disks of this server", roomFacts(room), room.lent]);
    for (const disk of disks)
      wanted.set(`${disk.kind} ${disk.name}`, [`Borrowed disk ${disk.name}`, diskFacts(disk), disk.lent]);
    const none = "Nothing is borrowed: sojourn serve --shadow borrowed, or sojourn borrow up, borrows.";
    say(this.nothing, wanted.size === 0 ? none : "");
    for (const [key, borrowing] of this.shown) {
      if (wanted.has(key)) continue;
      borrowing.element.remove();
      this.shown.delete(key);
    }
    for (const [key, [title, facts, lent]] of wanted) {
      let borrowing = this.shown.get(key);
      if (!borrowing) {
        borrowing = new Borrowing();
        this.shown.set(key, borrowing);
        this.element.append(borrowing.element);
      }
      borrowing.show(title, facts, lent);
    }
  }
}

function roomFacts({ size, used, given_back }: BorrowedRoom): [string, string][] {
  const facts: [string, string][] = [
    ["Size", bytes(size)],
    ["Private blocks", `${bytes(used)}, ${percent((used * 100) / Math.max(1, size))}`],
  ];
  if (given_back > 0) facts.push(["Given back", `${bytes(given_back)}, as the host needed the room`]);
  return facts;
}

function diskFacts(disk: BorrowedDisk): [string, string][] {
  const facts: [string, string][] = [
    ["Address", disk.address],
    ["Served by", disk.pid === null ? "the kernel" : `process ${disk.pid}`],
    ["Size", bytes(disk.size)],
    ["Written", disk.written === null ? NONE : bytes(disk.written)],
    ["Users", count(disk.users)],
  ];
  if (disk.swap !== null) facts.push(["Swap space", disk.swap]);
  if (disk.given_back > 0) facts.push(["Given back", bytes(disk.given_back)]);
  if (disk.state) {
    const { source, fetched, changed, write_back } = disk.state;
    const back = write_back ? "written back at the end" : "not written back";
    facts.push(["State of", source], ["Fetched", bytes(fetched)], ["Changed", `${bytes(changed)}, ${back}`]);
  }
  return facts;
}
