// Machines: those that start from the network, and first of all those that wait for a disk.

import { ask, type Machine, type Machines, type WaitingMachine } from "./api.ts";
import { h, say } from "./dom.ts";
import { byName, count, date, hour, NONE } from "./format.ts";
import { Listing, type Page, Pane } from "./page.ts";
import { Table } from "./table.ts";

/** A machine of either kind, in the order in which it stands at first. */
interface Placed {
  name: string;
  place: number;
  known: Machine | null;
  waits: WaitingMachine | null;
}

const METHODS = { iscsi: "iSCSI", nbd: "NBD", local: "its own disk" };
const link = (name: string): string => `#machines/${encodeURIComponent(name)}`;

function state({ known }: Placed): string {
  if (known === null) return "waits for a disk";
  return known.method === "local" ? "starts from its own disk" : `starts from ${known.disk ?? NONE}`;
}

const method = ({ known }: Placed): string => (known === null ? NONE : METHODS[known.method]);
const address = ({ known, waits }: Placed): string => known?.mac ?? waits?.mac ?? known?.uuid ?? NONE;
const asked = ({ waits }: Placed): string => (waits === null ? NONE : hour(waits.last_seen));

export class MachinesPage implements Page {
  readonly title = "Machines";
  readonly rows = false;
  readonly element: HTMLElement;

  private readonly pane = new Pane("Machine", "#machines");
  private readonly failure = h("p", { class: "failure" });
  private readonly table = new Table<Placed>({
    noun: ["machine", "machines"],
    name: ({ name }) => name,
    link: ({ name }) => link(name),
    haystack: (row) => `${row.name} ${address(row)} ${state(row)} ${method(row)}`.toLowerCase(),
    empty: "No machine has asked yet: sojourn netboot --interface NAME",
    columns: [
      { key: "name", title: "Machine", text: ({ name }) => name, order: (a, b) => a.place - b.place },
      {
        key: "state",
        title: "State",
        text: state,
        look: ({ known }) => (known === null ? "is-waiting" : ""),
        order: (a, b) => byName(state(a), state(b)),
      },
      { key: "method", title: "By", text: method, order: (a, b) => byName(method(a), method(b)), wide: true },
      { key: "address", title: "Address", text: address, order: (a, b) => byName(address(a), address(b)), wide: true },
      {
        key: "asked",
        title: "Asked at",
        text: asked,
        order: (a, b) => (a.waits?.last_seen ?? 0) - (b.waits?.last_seen ?? 0),
        wide: true,
      },
    ],
  });
  private readonly list = new Listing(
    5,
    () => this.load(),
    (error) => say(this.failure, error ? `The list is not up to date: ${error.message}` : ""),
  );
  private machines = new Map<string, Placed>();
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
    this.list.stop();
  }

  search(): void {
    this.table.focus();
  }

  update(): void {
    // What netboot and commands change, the server is not told: the list is enough.
  }

  private async load(): Promise<void> {
    const { machines, waiting } = await ask<Machines>("machines");
    machines.sort((a, b) => byName(a.name, b.name));
    const rows: Placed[] = [];
    for (const waits of waiting) rows.push({ name: waits.mac, place: rows.length, known: null, waits });
    for (const known of machines) rows.push({ name: known.name, place: rows.length, known, waits: null });
    this.machines = new Map(rows.map((row) => [row.name, row]));
    this.table.set(rows);
    this.tell();
  }

  private tell(): void {
    if (this.chosen === null) return;
    const row = this.machines.get(this.chosen);
    if (!row) {
      this.pane.show(this.chosen, [["State", this.machines.size > 0 ? "There is no such machine." : "…"]]);
      return;
    }
    const { known, waits } = row;
    const facts: [string, string | string[]][] = [["State", state(row)]];
    const mac = known?.mac ?? waits?.mac;
    const uuid = known?.uuid ?? waits?.uuid;
    if (mac !== undefined) facts.push(["MAC address", mac]);
    if (uuid !== undefined) facts.push(["UUID of its board", uuid]);
    if (known !== null) {
      facts.push(["By", method(row)]);
      if (known.append !== undefined) facts.push(["Kernel parameters", known.append]);
      facts.push(["In the list", known.by_rule ? "by a rule of netboot" : "by a person"]);
    }
    if (waits !== null) {
      facts.push(["Asked first", date(waits.first_seen)], ["Asked last", date(waits.last_seen)]);
      facts.push(["Asked", `${count(waits.times)} times`]);
      facts.push(["To give it a disk", `sojourn machine assign ${waits.mac} --from IMAGE --name NAME`]);
    }
    this.pane.show(row.name, facts);
  }
}
