// Images: every version in the store, and what stands on it.

import { ask, type Version } from "./api.ts";
import { h, say } from "./dom.ts";
import { byName, bytes, count, date, NONE } from "./format.ts";
import { LineageTree } from "./lineage.ts";
import { Listing, type Page, Pane } from "./page.ts";
import { Table } from "./table.ts";

/** So many users of a version are named. */
const NAMED = 200;

interface Placed {
  version: Version;
  place: number;
  /** What is searched: thousands may stand on a version. */
  words: string;
}

const searched = ({ image, source, used_by: users }: Version): string =>
  `${image} ${source ?? ""} ${users.join(" ")}`.toLowerCase();

const link = (name: string): string => `#images/${encodeURIComponent(name)}`;

function users({ version }: Placed): string {
  const [first] = version.used_by;
  if (first === undefined) return NONE;
  return version.used_by.length === 1 ? first : `${first} and ${count(version.used_by.length - 1)} more`;
}

export class ImagesPage implements Page {
  readonly title = "Images";
  readonly rows = false;
  readonly element: HTMLElement;

  private readonly lineage = new LineageTree();
  private readonly pane = new Pane("Image version", "#images", this.lineage.element);
  private readonly failure = h("p", { class: "failure" });
  private readonly table = new Table<Placed>({
    noun: ["version", "versions"],
    name: ({ version }) => version.image,
    link: ({ version }) => link(version.image),
    haystack: ({ words }) => words,
    empty: "There is no image yet: sojourn image import FILE NAME",
    columns: [
      { key: "name", title: "Version", text: ({ version }) => version.image, order: (a, b) => a.place - b.place },
      {
        key: "size",
        title: "Size",
        number: true,
        text: ({ version }) => (version.error === null ? bytes(version.size) : NONE),
        order: (a, b) => a.version.size - b.version.size,
      },
      {
        key: "created",
        title: "Made",
        text: ({ version }) => (version.error === null ? date(version.created) : NONE),
        order: (a, b) => a.version.created - b.version.created,
        wide: true,
      },
      {
        key: "users",
        title: "What stands on it",
        text: (row) => row.version.error ?? users(row),
        look: ({ version }) => (version.error === null ? "" : "is-damaged"),
        order: (a, b) => a.version.used_by.length - b.version.used_by.length,
      },
      {
        key: "source",
        title: "Came from",
        text: ({ version }) => version.source ?? NONE,
        order: (a, b) => byName(a.version.source ?? "~", b.version.source ?? "~"),
        wide: true,
      },
    ],
  });
  private readonly list = new Listing(
    15,
    () => this.load(),
    (error) => say(this.failure, error ? `The list is not up to date: ${error.message}` : ""),
  );
  private versions = new Map<string, Version>();
  private chosen: string | null = null;

  constructor() {
    this.element = h(
      "div",
      { class: "split" },
      h("div", { class: "main" }, this.failure, this.table.element),
      this.pane.element,
    );
  }

  enter(rest: string | null): void {
    const before = this.chosen;
    this.chosen = rest;
    this.lineage.of(rest);
    this.table.choose(rest);
    if (rest === null) {
      this.pane.hide();
      if (before !== null) this.table.focusRow(before);
    } else {
      this.tell();
      this.pane.focus();
    }
    this.list.start();
  }

  leave(): void {
    this.lineage.of(null);
    this.list.stop();
  }

  search(): void {
    this.table.focus();
  }

  update(): void {
    // Images change seldom: the list is enough.
  }

  private async load(): Promise<void> {
    const { images } = await ask<{ images: Version[] }>("images");
    images.sort((a, b) => byName(a.image, b.image));
    this.versions = new Map(images.map((version) => [version.image, version]));
    this.table.set(images.map((version, place) => ({ version, place, words: searched(version) })));
    this.tell();
  }

  private tell(): void {
    if (this.chosen === null) return;
    const version = this.versions.get(this.chosen);
    if (!version) {
      this.pane.show(this.chosen, [["State", this.versions.size > 0 ? "There is no such version." : "…"]]);
      return;
    }
    if (version.error !== null) {
      this.pane.show(version.image, [["State", version.error]]);
      return;
    }
    const named = [...version.used_by].sort(byName).slice(0, NAMED);
    if (version.used_by.length > NAMED) named.push(`and ${count(version.used_by.length - NAMED)} more`);
    this.pane.show(version.image, [
      ["Size", bytes(version.size)],
      ["Made", date(version.created)],
      ["Came from", version.source ?? "not known"],
      ["Manifest", version.manifest],
      [`Stands on it (${count(version.used_by.length)})`, named.length > 0 ? named : "nothing"],
    ]);
  }
}
