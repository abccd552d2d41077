// A table of thousands of rows, of which only those in sight are in the document.

import { h, mark, say } from "./dom.ts";
import { count } from "./format.ts";

export interface Column<T> {
  key: string;
  title: string;
  /** What stands in the cell. */
  text: (row: T) => string;
  order: (a: T, b: T) => number;
  /** Numbers stand to the right, and are sorted from the largest down at first. */
  number?: boolean;
  /** A narrow screen goes without. */
  wide?: boolean;
  /** A class of the cell. */
  look?: (row: T) => string;
}

interface Options<T> {
  /** What the rows are: `disk`, `disks`. */
  noun: [string, string];
  columns: Column<T>[];
  name: (row: T) => string;
  /** Where a row's name leads. */
  link: (row: T) => string;
  /** What is searched, in lower case. */
  haystack: (row: T) => string;
  /** What is said while there is no row at all. */
  empty: string;
}

/** Rows above and below those in sight that are in the document, too. */
const SPARE = 8;

export class Table<T> {
  readonly element: HTMLElement;
  private readonly search: HTMLInputElement;
  private readonly status = h("p", { class: "found", role: "status" });
  private readonly nothing = h("p", { class: "nothing" });
  private readonly region: HTMLElement;
  private readonly body = h("tbody");
  private readonly table: HTMLTableElement;
  private readonly above = h("tr", { "aria-hidden": "true", class: "space" }, h("td"));
  private readonly below = h("tr", { "aria-hidden": "true", class: "space" }, h("td"));
  private readonly heads: HTMLElement[] = [];
  private rows: T[] = [];
  private shown: T[] = [];
  private drawn = new Map<string, HTMLTableRowElement>();
  private sorted: { column: Column<T>; down: boolean };
  private chosen: string | null = null;
  private telling = 0;

  constructor(private readonly options: Options<T>) {
    const { columns, noun } = options;
    this.sorted = { column: columns[0] as Column<T>, down: false };
    this.search = h("input", {
      type: "search",
      id: "search",
      placeholder: `Search ${noun[1]}`,
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.sift(true),
    });
    const head = h("tr", { "aria-rowindex": 1 });
    for (const column of columns) {
      const button = h("button", { type: "button", onclick: () => this.sort(column) }, column.title);
      const cell = h("th", { scope: "col", class: looks(column) }, button);
      this.heads.push(cell);
      head.append(cell);
    }
    this.body.append(this.above, this.below);
    this.table = h("table", {}, h("caption", { class: "unseen" }, `All ${noun[1]}`), h("thead", {}, head), this.body);
    this.region = h(
      "div",
      { class: "rows", tabindex: 0, role: "region", "aria-label": `Rows of ${noun[1]}` },
      this.table,
    );
    this.region.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.region);
    this.element = h(
      "div",
      { class: "listing" },
      h(
        "div",
        { class: "tools" },
        h("label", { for: "search", class: "unseen" }, `Search ${noun[1]}`),
        this.search,
        this.status,
      ),
      this.nothing,
      this.region,
    );
    this.arrow();
  }

  /** Puts the caret where one searches. */
  focus(): void {
    this.search.focus();
    this.search.select();
  }

  /** Shows these rows. */
  set(rows: T[]): void {
    this.rows = rows;
    this.sift(false);
  }

  /** The row of this name is looked at. */
  choose(name: string | null): void {
    this.chosen = name;
    this.draw();
  }

  /** Puts the caret on a row's name, if that is in sight. */
  focusRow(name: string): void {
    (this.drawn.get(name)?.querySelector("a") ?? this.region).focus();
  }

  private sort(column: Column<T>): void {
    const again = this.sorted.column === column;
    this.sorted = { column, down: again ? !this.sorted.down : column.number === true };
    this.arrow();
    this.sift(false);
  }

  private arrow(): void {
    this.options.columns.forEach((column, at) => {
      const head = this.heads[at] as HTMLElement;
      const on = column === this.sorted.column;
      mark(head, "aria-sort", on ? (this.sorted.down ? "descending" : "ascending") : null);
    });
  }

  private sift(typed: boolean): void {
    const words = this.search.value
      .toLowerCase()
      .split(/\s+/)
      .filter((word) => word !== "");
    const { column, down } = this.sorted;
    const found = this.rows.filter((row) => {
      if (words.length === 0) return true;
      const text = this.options.haystack(row);
      return words.every((word) => text.includes(word));
    });
    found.sort((a, b) => (down ? column.order(b, a) : column.order(a, b)) || this.options.columns[0]!.order(a, b));
    this.shown = found;
    if (typed) this.region.scrollTop = 0;
    const none = this.rows.length === 0 ? this.options.empty : `No ${this.options.noun[0]} has all of these words.`;
    say(this.nothing, found.length === 0 ? none : "");
    const all = `${count(this.rows.length)} ${this.options.noun[this.rows.length === 1 ? 0 : 1]}`;
    const text = words.length === 0 ? all : `${count(found.length)} of ${all}`;
    // Not with every letter: it is read out.
    clearTimeout(this.telling);
    this.telling = setTimeout(() => say(this.status, text), typed ? 400 : 0);
    mark(this.table, "aria-rowcount", String(found.length + 1));
    this.draw();
  }

  private draw(): void {
    const { options, shown } = this;
    const height = parseFloat(getComputedStyle(this.region).getPropertyValue("--row"));
    const first = Math.max(0, Math.floor(this.region.scrollTop / height) - SPARE);
    const last = Math.min(shown.length, Math.ceil((this.region.scrollTop + this.region.clientHeight) / height) + SPARE);
    const focused = document.activeElement;
    const kept = new Map<string, HTMLTableRowElement>();
    let place: Element = this.above;
    for (let at = first; at < last; at += 1) {
      const row = shown[at] as T;
      const name = options.name(row);
      const line = this.drawn.get(name) ?? this.line(row);
      this.drawn.delete(name);
      kept.set(name, line);
      this.fill(line, row, at);
      if (place.nextElementSibling !== line) place.after(line);
      place = line;
    }
    for (const line of this.drawn.values()) line.remove();
    this.drawn = kept;
    this.above.style.height = `${first * height}px`;
    this.below.style.height = `${Math.max(0, shown.length - last) * height}px`;
    if (focused instanceof HTMLElement && focused !== document.activeElement && this.body.contains(focused))
      focused.focus();
  }

  private line(row: T): HTMLTableRowElement {
    const line = h("tr");
    this.options.columns.forEach((column, at) => {
      const cell = h(at === 0 ? "th" : "td", { class: looks(column), ...(at === 0 ? { scope: "row" } : {}) });
      if (at === 0) cell.append(h("a", { href: this.options.link(row) }));
      line.append(cell);
    });
    return line;
  }

  private fill(line: HTMLTableRowElement, row: T, at: number): void {
    mark(line, "aria-rowindex", String(at + 2));
    const chosen = this.options.name(row) === this.chosen;
    line.classList.toggle("chosen", chosen);
    mark(line.firstElementChild?.firstElementChild as Element, "aria-current", chosen ? "true" : null);
    this.options.columns.forEach((column, number) => {
      const cell = line.children[number] as Element;
      say(number === 0 ? (cell.firstElementChild as Element) : cell, column.text(row));
      if (column.look) cell.className = `${looks(column)} ${column.look(row)}`;
    });
  }
}

function looks<T>(column: Column<T>): string {
  return `${column.number ? "number" : ""} ${column.wide ? "wide" : ""} c-${column.key}`;
}
