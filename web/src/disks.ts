// Disks: all of the home, with what is so of each now.

import { ask, type Disk, type Row } from "./api.ts";
import { h, say } from "./dom.ts";
import { byName, bytes, date, NONE, rate, some } from "./format.ts";
import type { Live } from "./live.ts";
import { DISK_MAP, MapPicture } from "./map.ts";
import { Listing, type Page, Pane } from "./page.ts";
import { Table } from "./table.ts";

/** A disk, and what is so of it now. */
interface Both {
  disk: Disk;
  /** `null` where the token is not for what is so now. */
  row: Row | undefined | null;
  /** Its place by name: to compare names is slow. */
  place: number;
}

const STATES = ["damaged", "full", "slow", "in use", "open", "idle", "not told"];

function state({ disk, row }: Both): string {
  if (disk.error !== null) return "damaged";
  if (row === null) return "not told";
  if (row?.full) return "full";
  if (row?.slow) return "slow";
  if (row?.client || (row?.connections ?? 0) > 0) return "in use";
  return row?.open ? "open" : "idle";
}

const own = ({ disk, row }: Both): number => row?.private_bytes ?? disk.private_bytes;
const asked = ({ row }: Both): number => row?.requests ?? 0;
const moved = ({ row }: Both): number => (row?.read_bytes ?? 0) + (row?.written_bytes ?? 0);
const link = (name: string): string => `#disks/${encodeURIComponent(name)}`;

export class DisksPage implements Page {
  readonly title = "Disks";
  readonly rows = true;
  readonly element: HTMLElement;

  private readonly map = new MapPicture(DISK_MAP);
  private readonly pane = new Pane("Disk", "#disks", this.map.element);
  private readonly failure = h("p", { class: "failure" });
  private readonly table = new Table<Both>({
    noun: ["disk", "disks"],
    name: ({ disk }) => disk.name,
    link: ({ disk }) => link(disk.name),
    haystack: (both) =>
      `${both.disk.name} ${both.disk.image} ${both.row?.client ?? ""} ${state(both)} ${both.disk.mode}`.toLowerCase(),
    empty: "There is no disk yet: sojourn disk create NAME --from IMAGE",
    columns: [
      { key: "name", title: "Disk", text: ({ disk }) => disk.name, order: (a, b) => a.place - b.place },
      {
        key: "state",
        title: "State",
        text: state,
        look: (both) => `is-${state(both).replace(" ", "-")}`,
        order: (a, b) => STATES.indexOf(state(a)) - STATES.indexOf(state(b)),
      },
      {
        key: "image",
        title: "Stands on",
        text: ({ disk }) => disk.image,
        order: (a, b) => byName(a.disk.image, b.disk.image),
        wide: true,
      },
      {
        key: "client",
        title: "Client",
        text: ({ row }) => row?.client ?? NONE,
        order: (a, b) => byName(a.row?.client ?? "~", b.row?.client ?? "~"),
        wide: true,
      },
      {
        key: "size",
        title: "Size",
        number: true,
        text: ({ disk }) => bytes(disk.size),
        order: (a, b) => a.disk.size - b.disk.size,
        wide: true,
      },
      {
        key: "private",
        title: "Private",
        number: true,
        text: (both) => bytes(own(both)),
        order: (a, b) => own(a) - own(b),
      },
      {
        key: "requests",
        title: "Requests/s",
        number: true,
        text: (both) => (asked(both) > 0 ? rate(asked(both)) : NONE),
        order: (a, b) => asked(a) - asked(b),
      },
      {
        key: "bytes",
        title: "Bytes/s",
        number: true,
        text: (both) => (moved(both) > 0 ? bytes(moved(both)) : NONE),
        order: (a, b) => moved(a) - moved(b),
        wide: true,
      },
    ],
  });
  private readonly list = new Listing(
    15,
    () => this.load(),
    (error) => say(this.failure, error ? `The list is not up to date: ${error.message}` : ""),
  );
  private disks: Both[] = [];
  private byName = new Map<string, Both>();
  private chosen: string | null = null;
  private live: Live | null = null;
  /** Changes that the list has, of those that there were. */
  private known = 0;
  private changes = 0;

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
    this.map.of(rest);
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
    this.map.of(null);
    this.list.stop();
  }

  search(): void {
    this.table.focus();
  }

  update(live: Live): void {
    this.live = live;
    const changes = live.now?.changes ?? 0;
    // A server that reads long lists is asked for one again and again until it has what was changed.
    if (live.now && (changes !== this.changes || changes !== this.known)) this.list.soon();
    this.changes = changes;
    for (const both of this.disks) both.row = this.row(both.disk.name);
    this.table.set(this.disks);
    this.tell();
  }

  private row(name: string): Row | undefined | null {
    return this.live && this.live.limited !== null ? null : this.live?.rows.get(name);
  }

  private async load(): Promise<void> {
    const { changes, disks } = await ask<{ changes: number; disks: Disk[] }>("disks");
    this.known = changes;
    disks.sort((a, b) => byName(a.name, b.name));
    this.disks = disks.map((disk, place) => ({ disk, place, row: this.row(disk.name) }));
    this.byName = new Map(this.disks.map((both) => [both.disk.name, both]));
    this.table.set(this.disks);
    this.tell();
  }

  /** Shows the disk that was chosen. */
  private tell(): void {
    if (this.chosen === null) return;
    const both = this.byName.get(this.chosen);
    if (!both) {
      this.pane.show(this.chosen, [["State", this.disks.length > 0 ? "There is no such disk." : "…"]]);
      return;
    }
    const { disk, row } = both;
    const snapshots = disk.snapshots.map((one) =>
      one.error === null ? `${one.name}, ${date(one.created)}, ${bytes(one.size)}` : `${one.name}: ${one.error}`,
    );
    this.pane.show(disk.name, [
      ["State", disk.error ?? state(both)],
      ["Client", row?.client ? `${row.client}, ${some(row.connections, "connection")}` : row === null ? NONE : "none"],
      ["Mode", disk.mode],
      ["Stands on", disk.image],
      ["Size", bytes(disk.size)],
      ["Private", disk.unchanged ? "nothing: it holds what its image does" : bytes(own(both))],
      [
        "Now",
        row && asked(both) > 0
          ? `${rate(row.requests)} requests/s, ${bytes(row.read_bytes)}/s read, ${bytes(row.written_bytes)}/s written`
          : row === null
            ? NONE
            : "nothing is asked",
      ],
      ["Made", date(disk.created)],
      ["Snapshots", snapshots.length > 0 ? snapshots : "none"],
    ]);
  }
}
