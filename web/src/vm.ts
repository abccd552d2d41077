// One virtual machine: what it is, what can be done with it, what it was suspended as, and where that is.

import type { ByteMap, Vm, VmParcel } from "./api.ts";
import type { BearerNote } from "./bearer.ts";
import type { Values } from "./dialog.ts";
import { h, mark, say } from "./dom.ts";
import { bytes, count, date, NONE, some } from "./format.ts";
import { MapPicture, type Places } from "./map.ts";
import { Pane } from "./page.ts";
import { VmLogView } from "./vm_log.ts";
import { VmMediaView } from "./vm_media.ts";
import { outcome, PARCEL_VERBS, type ParcelOf, VM_VERBS, type VmAnswer } from "./vm_verbs.ts";
import { asked, refill, type Verb, VerbButtons, type Work, WorkNote } from "./work.ts";

/** So many parcels are in the document, the newest. */
const NAMED = 20;

/** What a machine does, as `sojourn vm list` says it. */
export function stateOf({ state, host, pending }: Vm): string {
  if (state === "elsewhere") return host ? `is on ${host}` : "is on another host";
  if (!pending) return state;
  const left = bytes(pending.left_bytes);
  if (pending.stopped) return `suspended, ${left} stopped`;
  return `suspended, ${left} ${pending.error === undefined ? "to go up" : "cannot go up"}`;
}

/** Where its memory is. */
export function memoryOf({ state, pending, running, parcels }: Vm): string {
  if (running) {
    if (running.parcel === null || running.memory_here || !running.memory_on_demand) return "all here";
    return "comes as it is touched";
  }
  if (state === "elsewhere") return "on another host";
  if (pending) return `here, ${bytes(pending.left_bytes)} to go up`;
  return state === "suspended" && parcels.length > 0 ? "in the store" : NONE;
}

const CLOCKS = {
  set: "set by the guest agent",
  setting: "the guest agent is setting it",
  no_agent: "no guest agent sets it: behind by as long as the guest stood still, until the guest sets it",
};

function facts(vm: Vm): [string, string | string[]][] {
  const told: [string, string | string[]][] = [["State", stateOf(vm)]];
  if (vm.error !== undefined) told.push(["Not known", vm.error]);
  if (vm.disk === "") return told;
  told.push(["Disk", vm.disk], ["Memory", bytes(vm.memory)], ["Processors", count(vm.cpus)], ["Network card", vm.mac]);
  const { running, pending } = vm;
  if (running) {
    if (running.state !== vm.state) told.push(["In QEMU", running.state]);
    told.push(["Came from", running.parcel ?? "its disk, which it booted"]);
    told.push(
      ["Memory here", memoryHere(vm)],
      ["Written", `${bytes(running.memory_written)} of memory, since it runs`],
    );
    told.push(["Runs by", running.accelerator === "kvm" ? "KVM" : "QEMU's emulator"]);
    if (running.clock !== undefined)
      told.push(["Clock", typeof running.clock === "string" ? CLOCKS[running.clock] : running.clock.failed]);
    told.push(["Console", `sojourn vm console ${vm.name}`]);
    if (running.screen !== null) told.push(["Screen", `remote-viewer vnc+unix://${running.screen}`]);
  }
  if (pending) {
    told.push(["Goes up as", `${pending.parcel}, of ${date(pending.created)}`]);
    const by =
      pending.keeper === null ? (pending.stopped ? "somebody had that end" : "nothing sends it") : "being sent";
    told.push(["Still to go", `${bytes(pending.left_bytes)} at the most, ${by}`]);
    if (pending.error !== undefined) told.push(["Why not", pending.error]);
  }
  return told;
}

function memoryHere({ running }: Vm): string {
  if (!running || running.parcel === null) return "all of it";
  if (running.memory_here) return "all of it is on this host";
  if (!running.memory_on_demand) return "all of it was fetched before it went on";
  return "what its guest touched, and what has come behind it";
}

/** The parcels of a machine, each with what can be done with it. */
class ParcelTable {
  readonly element: HTMLElement;
  private readonly body = h("tbody");
  private readonly more = h("p", { class: "big-note" });
  private drawn = "";

  /** `begin` has something done with a parcel, and `locate` its map drawn. */
  constructor(
    private readonly begin: (verb: Verb<ParcelOf>, parcel: VmParcel) => void,
    private readonly locate: (parcel: string) => void,
  ) {
    const head = h("tr", {}, h("th", { scope: "col" }, "Parcel"), h("th", { scope: "col" }, "What can be done"));
    const table = h("table", {}, h("caption", {}, "Parcels"), h("thead", {}, head), this.body);
    this.element = h("section", { class: "parcels" }, table, this.more);
  }

  show(
    vm: Vm,
    offered: (verb: Verb<ParcelOf>, parcel: VmParcel) => boolean,
    works: boolean,
    sizes: Map<string, number>,
  ): void {
    const newest = [...vm.parcels].reverse().slice(0, NAMED);
    this.element.hidden = newest.length === 0;
    const rows = newest.map((parcel) => ({ parcel, verbs: PARCEL_VERBS.filter((verb) => offered(verb, parcel)) }));
    const told = rows.map(({ parcel, verbs }) => [parcel, sizes.get(parcel.parcel), verbs.map(({ name }) => name)]);
    const text = JSON.stringify([told, works]);
    if (text === this.drawn) return;
    this.drawn = text;
    refill(
      this.body,
      rows.map(({ parcel, verbs }) => this.row(parcel, verbs, works, sizes)),
    );
    const rest = vm.parcels.length - newest.length;
    say(this.more, rest > 0 ? `and ${some(rest, "older one")}: sojourn vm show ${vm.name}` : "");
  }

  private row(parcel: VmParcel, verbs: Verb<ParcelOf>[], works: boolean, sizes: Map<string, number>): HTMLElement {
    const buttons = verbs.map((verb) => {
      const label = `${verb.label.replace("…", "")} ${parcel.parcel}`;
      const button = h(
        "button",
        { type: "button", class: verb.loses ? "destroys" : "", "aria-label": label },
        verb.label,
      );
      mark(button, "aria-disabled", works ? "true" : null);
      if (!works) button.addEventListener("click", () => this.begin(verb, parcel));
      return button;
    });
    const where = h("button", { type: "button", "aria-label": `Where ${parcel.parcel} is` }, "Where it is");
    where.addEventListener("click", () => this.locate(parcel.parcel));
    const size = sizes.get(parcel.parcel);
    const name = h("th", { scope: "row" }, parcel.parcel, h("small", {}, date(parcel.created)));
    if (size !== undefined) name.append(h("small", {}, `${bytes(size)} of memory`));
    return h("tr", {}, name, h("td", {}, h("div", { class: "verbs" }, ...buttons, where)));
  }
}

export class VmPane {
  readonly element: HTMLElement;
  private readonly note = new WorkNote();
  private readonly verbs = new VerbButtons(VM_VERBS, (name) => this.begin(name));
  private readonly parcels = new ParcelTable(
    (verb, parcel) => this.beginWith(verb, parcel),
    (parcel) => this.locate(parcel),
  );
  private readonly map = new MapPicture(MEMORY_MAP, (parcel, map) => this.measure(parcel, map));
  private readonly media: VmMediaView;
  private readonly log = new VmLogView();
  private readonly pane: Pane;
  private vm: Vm | null = null;
  /** The parcel whose map is drawn, and which one somebody chose for that. */
  private drawn: string | null = null;
  private mapped: string | null = null;
  /** Bytes of the memory of parcels that are no zeroes, as far as their maps were drawn. */
  private readonly sizes = new Map<string, number>();

  constructor(
    private readonly work: Work,
    private readonly bearer: BearerNote,
  ) {
    this.media = new VmMediaView(work, bearer);
    const below = h("div", {}, this.note.element, this.verbs.element, this.parcels.element);
    below.append(this.map.element, this.media.element, this.log.element);
    this.pane = new Pane("Virtual machine", "#vms", below);
    this.element = this.pane.element;
    this.element.classList.add("vm");
  }

  focus(): void {
    this.pane.focus();
  }

  hide(): void {
    this.rest();
    this.pane.hide();
  }

  /** Asks nothing more of the server. */
  rest(): void {
    this.vm = null;
    this.draw(null);
    this.media.of(null);
    this.log.of(null);
  }

  /** Shows a machine, or that there is none of this name. */
  show(name: string, vm: Vm | null, nothing: string): void {
    this.vm = vm;
    this.pane.show(name, vm ? facts(vm) : [["State", nothing]]);
    this.note.show(this.work, name);
    const works = this.work.doing(name) !== null;
    const offered = vm ? VM_VERBS.filter((verb) => this.bearer.may(verb.right) && verb.fits(vm)) : [];
    if (!this.verbs.show(offered, works)) this.pane.focus();
    if (vm) this.showParcels(vm, works);
    else this.parcels.element.hidden = true;
    this.map.element.hidden = !vm || vm.parcels.length === 0;
    const chosen = vm?.parcels.find(({ parcel }) => parcel === this.mapped) ?? vm?.parcels.at(-1);
    this.draw(chosen?.parcel ?? null);
    this.media.of(vm);
    // What a machine of another host said lies there.
    this.log.element.hidden = !vm?.here;
    this.log.of(vm?.here ? vm.name : null);
  }

  private showParcels(vm: Vm, works: boolean): void {
    const may = (verb: Verb<ParcelOf>, parcel: VmParcel): boolean =>
      this.bearer.may(verb.right) && verb.fits({ vm, parcel });
    this.parcels.show(vm, may, works, this.sizes);
  }

  /** Shows where the memory of a parcel is. */
  private locate(parcel: string): void {
    this.mapped = parcel;
    this.draw(parcel);
    this.map.open();
  }

  private measure(parcel: string, { size, total }: ByteMap): void {
    if (total.unread === 0) this.sizes.set(parcel, size - total.zero);
    if (this.vm) this.showParcels(this.vm, this.work.doing(this.vm.name) !== null);
  }

  /** Draws the map of this parcel from now on. */
  private draw(parcel: string | null): void {
    if (parcel === this.drawn) return;
    this.drawn = parcel;
    this.map.of(parcel);
  }

  private begin(name: string): void {
    const { vm, work } = this;
    const verb = VM_VERBS.find((one) => one.name === name);
    if (!vm || !verb) return;
    work.begin(vm.name, asked(verb, vm, vm.name), (values) => this.run(vm.name, verb, vm, values));
  }

  private beginWith(verb: Verb<ParcelOf>, parcel: VmParcel): void {
    const { vm, work } = this;
    if (!vm) return;
    const of = { vm, parcel };
    work.begin(vm.name, asked(verb, of, parcel.parcel), (values) => this.run(vm.name, verb, of, values));
  }

  private run<T>(name: string, verb: Verb<T>, of: T, values: Values): Promise<VmAnswer> {
    return this.work.run<VmAnswer>(name, verb.doing, verb.change(of, values), outcome);
  }
}

/** The memory of a parcel. */
const MEMORY_MAP = {
  title: "Where its memory is",
  noun: (parcel: string): string => `the memory of ${parcel}`,
  places: [
    ["cached", "in memory of this server"],
    ["kept", "on this host"],
    ["stored", "in the store"],
    ["unread", "its map is not read yet"],
    ["zero", "nothing but zeroes"],
  ] as Places,
  path: (parcel: string): string => `vms/${encodeURIComponent(parcel)}/memory`,
  // What it is made of does not change, and may be read from afar.
  seconds: 10,
};
