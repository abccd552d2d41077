// Virtual machines: those of the server's home and of its store, and what can be done with them.

import { ask, type Disk, type Vm } from "./api.ts";
import { BearerNote } from "./bearer.ts";
import { h, say } from "./dom.ts";
import { byName, bytes, date, NONE } from "./format.ts";
import type { Live } from "./live.ts";
import { Listing, type Page } from "./page.ts";
import { Table } from "./table.ts";
import { memoryOf, stateOf, VmPane } from "./vm.ts";
import { created, creation, outcome, type VmAnswer } from "./vm_verbs.ts";
import { Work, WorkNote } from "./work.ts";

/** A machine, and its place by name: to compare names is slow. */
interface Placed {
  vm: Vm;
  place: number;
}

const STATES = ["damaged", "newer", "busy", "starting", "running", "suspended", "stopped", "elsewhere"];
const LOOKS: Record<string, string> = {
  damaged: "is-damaged",
  newer: "is-damaged",
  running: "is-in-use",
  busy: "is-waiting",
  starting: "is-waiting",
  stopped: "is-idle",
  elsewhere: "is-idle",
};
/** What is said of a machine that is being made, of which nothing else can be said yet: no machine has this name. */
const MAKING = "New machine";
const link = (name: string): string => `#vms/${encodeURIComponent(name)}`;
const newest = ({ vm }: Placed): { parcel: string; created: number } | undefined => vm.pending ?? vm.parcels.at(-1);

export class VmsPage implements Page {
  readonly title = "Virtual machines";
  readonly rows = false;
  readonly element: HTMLElement;

  private readonly bearer = new BearerNote("Virtual machines take a token with the right");
  private readonly work = new Work(() => this.worked());
  private readonly pane = new VmPane(this.work, this.bearer);
  private readonly failure = h("p", { class: "failure" });
  private readonly note = new WorkNote();
  private readonly make = h("button", { type: "button", onclick: () => void this.create() }, "New machine…");
  private readonly table = new Table<Placed>({
    noun: ["machine", "machines"],
    name: ({ vm }) => vm.name,
    link: ({ vm }) => link(vm.name),
    haystack: (row) => `${row.vm.name} ${row.vm.disk} ${this.state(row)} ${memoryOf(row.vm)}`.toLowerCase(),
    empty: "There is no virtual machine yet: sojourn vm create NAME --disk DISK",
    columns: [
      { key: "name", title: "Machine", text: ({ vm }) => vm.name, order: (a, b) => a.place - b.place },
      {
        key: "doing",
        title: "State",
        text: (row) => this.state(row),
        look: ({ vm }) => (vm.pending?.error === undefined ? (LOOKS[vm.state] ?? "") : "is-waiting"),
        order: (a, b) => STATES.indexOf(a.vm.state) - STATES.indexOf(b.vm.state),
      },
      {
        key: "memory-is",
        title: "Its memory",
        text: ({ vm }) => memoryOf(vm),
        order: (a, b) => byName(memoryOf(a.vm), memoryOf(b.vm)),
        wide: true,
      },
      {
        key: "disk",
        title: "Disk",
        text: ({ vm }) => vm.disk || NONE,
        order: (a, b) => byName(a.vm.disk, b.vm.disk),
        wide: true,
      },
      {
        key: "memory",
        title: "Memory",
        number: true,
        text: ({ vm }) => (vm.memory > 0 ? bytes(vm.memory) : NONE),
        order: (a, b) => a.vm.memory - b.vm.memory,
        wide: true,
      },
      {
        key: "parcel",
        title: "Parcel",
        text: (row) => newest(row)?.parcel ?? NONE,
        order: (a, b) => byName(newest(a)?.parcel ?? "~", newest(b)?.parcel ?? "~"),
        wide: true,
      },
      {
        key: "made",
        title: "Suspended",
        text: (row) => (newest(row) ? date(newest(row)?.created ?? 0) : NONE),
        order: (a, b) => (newest(a)?.created ?? 0) - (newest(b)?.created ?? 0),
      },
    ],
  });
  private readonly list = new Listing(
    5,
    () => this.load(),
    (error) => say(this.failure, error ? `The list is not up to date: ${error.message}` : ""),
  );
  private vms = new Map<string, Placed>();
  private known = false;
  private chosen: string | null = null;
  private changes = 0;

  constructor() {
    this.make.hidden = true;
    this.element = h(
      "div",
      { class: "split vms" },
      h(
        "div",
        { class: "main" },
        this.bearer.element,
        this.failure,
        this.note.element,
        h("div", { class: "verbs" }, this.make),
        this.table.element,
      ),
      this.pane.element,
    );
  }

  enter(rest: string | null): void {
    const before = this.chosen;
    if (before !== null && before !== rest) {
      this.work.forget(before);
      this.work.forget(MAKING);
    }
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
    this.pane.rest();
    this.list.stop();
  }

  search(): void {
    this.table.focus();
  }

  update(live: Live): void {
    // What was changed through the server; what keepers and commands change is seen by the next look.
    const changes = live.now?.changes ?? 0;
    if (changes !== this.changes) this.list.anew();
    this.changes = changes;
  }

  private state({ vm }: Placed): string {
    return this.work.doing(vm.name) ?? stateOf(vm);
  }

  private async load(): Promise<void> {
    if (document.visibilityState === "hidden") return;
    const told = await this.bearer.learn();
    this.table.element.hidden = !told;
    this.make.hidden = !this.bearer.may("operate");
    const vms = told ? (await ask<{ vms: Vm[] }>("vms")).vms : [];
    vms.sort((a, b) => byName(a.name, b.name));
    this.vms = new Map(vms.map((vm, place) => [vm.name, { vm, place }]));
    this.known = told;
    this.table.set([...this.vms.values()]);
    this.tell();
  }

  /** Something that this page has done has begun or ended. */
  private worked(): void {
    this.table.set([...this.vms.values()]);
    this.tell();
    this.list.anew();
  }

  /** Shows the machine that was chosen, and what is told of one that is being made. */
  private tell(): void {
    const { chosen } = this;
    this.note.show(this.work, MAKING);
    if (chosen === null) return;
    const vm = this.vms.get(chosen)?.vm ?? null;
    this.pane.show(chosen, vm, this.known ? "There is no such machine." : "…");
  }

  /** Asks what a new machine is to be, and has it made. */
  private async create(): Promise<void> {
    const disks = await ask<{ disks: Disk[] }>("disks").catch(() => ({ disks: [] }));
    const names = disks.disks.map(({ name }) => name).sort(byName);
    this.work.begin(MAKING, creation(names), async (values) => {
      const name = values.name ?? "";
      const what = created(values);
      await this.work.run<VmAnswer>(MAKING, `making ${name}`, what, outcome);
      location.hash = link(name);
    });
  }
}
