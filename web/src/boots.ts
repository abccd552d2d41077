// Boots: who boots now, how far each guest is and what it waits for; and the last storms.

import { ask, type Boot, type Boots, type StormSummary } from "./api.ts";
import { h, mark, say } from "./dom.ts";
import { byName, bytes, count, duration, hour, some } from "./format.ts";
import { Listing, type Page } from "./page.ts";
import { progress, StormPane } from "./storm.ts";
import { Table } from "./table.ts";
import { WAITS, waitName } from "./waits.ts";

/** How much of the list was read, as a part of one; of those without one nobody knows. */
const part = ({ list_chunks, listed_chunks }: Boot): number => (list_chunks ? listed_chunks / list_chunks : -1);

export class BootsPage implements Page {
  readonly title = "Boots";
  readonly rows = false;
  readonly element: HTMLElement;

  private readonly failure = h("p", { class: "failure" });
  private readonly number = h("p", { class: "big" });
  private readonly note = h("p", { class: "big-note" });
  private readonly bar = h("div", { class: "stack", role: "img" });
  private readonly key = h("ul", { class: "stack-key" });
  private readonly storms = h("ul", { class: "storms" });
  private readonly pane = new StormPane();
  private readonly table = new Table<Boot>({
    noun: ["boot", "boots"],
    name: ({ disk }) => disk,
    link: ({ disk }) => `#disks/${encodeURIComponent(disk)}`,
    haystack: (row) => `${row.disk} ${row.client} ${row.image} ${waitName(row.now)}`.toLowerCase(),
    empty: "Nobody boots now.",
    columns: [
      { key: "name", title: "Disk", text: ({ disk }) => disk, order: (a, b) => byName(a.disk, b.disk) },
      {
        key: "now",
        title: "Waits for",
        text: ({ now }) => waitName(now),
        look: ({ now }) => `waits waits-${now ?? "none"}`,
        order: (a, b) => byName(waitName(a.now), waitName(b.now)),
      },
      {
        key: "part",
        title: "Chunks",
        text: progress,
        order: (a, b) => part(a) - part(b),
        number: true,
      },
      {
        key: "bytes",
        title: "Read",
        text: (row) => bytes(row.bytes),
        order: (a, b) => a.bytes - b.bytes,
        number: true,
      },
      {
        key: "seconds",
        title: "For",
        text: ({ seconds }) => duration(seconds),
        order: (a, b) => a.seconds - b.seconds,
        number: true,
      },
      {
        key: "image",
        title: "Image",
        text: ({ image }) => image,
        order: (a, b) => byName(a.image, b.image),
        wide: true,
      },
      {
        key: "client",
        title: "Client",
        text: ({ client }) => client,
        order: (a, b) => byName(a.client, b.client),
        wide: true,
      },
    ],
  });
  private readonly list = new Listing(
    1,
    () => this.load(),
    (error) => say(this.failure, error ? `This is not up to date: ${error.message}` : ""),
  );
  private chosen: string | null = null;

  constructor() {
    for (const [wait, name, what] of WAITS) {
      this.bar.append(h("span", { class: `wait-${wait}` }));
      const swatch = h("span", { class: `swatch wait-${wait}`, "aria-hidden": "true" });
      this.key.append(h("li", { title: what }, swatch, h("span"), ` ${name}`));
    }
    const told = h("section", { class: "booting", "aria-label": "Booting now" }, this.number, this.note);
    told.append(h("p", { class: "stack-title" }, "What they wait for"), this.bar, this.key);
    this.element = h(
      "div",
      { class: "split" },
      h(
        "div",
        { class: "main boots" },
        this.failure,
        told,
        h("section", {}, h("h2", {}, "Storms"), this.storms),
        this.table.element,
      ),
      this.pane.element,
    );
  }

  enter(rest: string | null): void {
    const before = this.chosen;
    this.chosen = rest;
    this.pane.choose(rest);
    if (rest === null && before !== null)
      this.storms.querySelector<HTMLElement>(`[href="#boots/${CSS.escape(before)}"]`)?.focus();
    this.list.start();
  }

  leave(): void {
    this.list.stop();
    this.pane.stop();
  }

  search(): void {
    this.table.focus();
  }

  update(): void {
    // It asks by itself, once a second.
  }

  private async load(): Promise<void> {
    if (document.visibilityState === "hidden") return;
    const { booting, waits, boots, storms } = await ask<Boots>("boots");
    say(this.number, count(booting));
    const untold = booting - boots.length;
    const those = untold > 0 ? `; ${count(untold)} of them, the latest, are not in the table` : "";
    say(this.note, `${booting === 1 ? "guest boots" : "guests boot"} now${those}`);
    const all = Math.max(
      1,
      WAITS.reduce((sum, [wait]) => sum + waits[wait], 0),
    );
    WAITS.forEach(([wait], at) => {
      (this.bar.children[at] as HTMLElement).style.width = `${(waits[wait] * 100) / all}%`;
      say(this.key.children[at]?.children[1] as Element, count(waits[wait]));
    });
    mark(this.bar, "aria-label", WAITS.map(([wait, name]) => `${name} ${count(waits[wait])}`).join(", "));
    this.table.set(boots);
    this.show(storms);
  }

  private show(storms: StormSummary[]): void {
    const wanted = storms.map((storm): [string, string] => {
      const took = storm.over ? `${storm.seconds.toFixed(1)} s` : "going on";
      return [`#boots/${storm.storm}`, `${hour(storm.began)}: ${some(storm.watched, "boot")}, ${took}`];
    });
    while (this.storms.children.length > Math.max(1, wanted.length)) this.storms.lastElementChild?.remove();
    if (wanted.length === 0) {
      if (this.storms.textContent !== NOBODY) this.storms.replaceChildren(h("li", {}, NOBODY));
      return;
    }
    wanted.forEach(([link, text], at) => {
      let anchor = this.storms.children[at]?.querySelector("a");
      if (!anchor) {
        anchor = h("a");
        const item = h("li", {}, anchor);
        const old = this.storms.children[at];
        if (old) old.replaceWith(item);
        else this.storms.append(item);
      }
      mark(anchor, "href", link);
      mark(anchor, "aria-current", link === `#boots/${this.chosen ?? ""}` ? "true" : null);
      say(anchor, text);
    });
  }
}

const NOBODY = "Nobody has booted since the server began.";
