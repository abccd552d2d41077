// What media hold of a virtual machine; looked at while it is open.

import { ask, type Medium, type MediumContent, type MediumSource, type Vm } from "./api.ts";
import type { BearerNote } from "./bearer.ts";
import { h, mark, say } from "./dom.ts";
import { date } from "./format.ts";
import { type MediaAnswer, mediumPath, outcome, share, writing, written } from "./media_verbs.ts";
import { Listing } from "./page.ts";
import { refill, type Work } from "./work.ts";

const NONE = 'The configuration of the server names no medium: sources = ["/media/usb"] in sojourn.toml.';

/** What is on a medium of a machine and its disk. */
function heldOf(vm: Vm, { holds }: Medium): MediumContent[] {
  return holds.filter(({ kind, name }) =>
    kind === "machine" ? name.split("@")[0] === vm.name : kind === "disk" && name === vm.disk,
  );
}

function told(vm: Vm, held: MediumContent): string {
  const newest = vm.parcels.at(-1)?.parcel;
  const older =
    held.kind === "machine" && newest !== undefined && held.version !== newest ? `; the newest is ${newest}` : "";
  const what = held.kind === "machine" ? held.version : `disk ${held.name}`;
  return `${what}, ${date(held.written)}: ${share(held)}${older}`;
}

export class VmMediaView {
  readonly element: HTMLDetailsElement;
  private readonly failure = h("p", { class: "failure" });
  private readonly nothing = h("p", { class: "nothing" });
  private readonly list = h("ul", { class: "held" });
  private readonly asking = new Listing(
    30,
    () => this.load(),
    (error) => say(this.failure, error ? `What media hold is not known: ${error.message}` : ""),
  );
  private vm: Vm | null = null;
  private media: Medium[] = [];
  private drawn = "";

  constructor(
    private readonly work: Work,
    private readonly bearer: BearerNote,
  ) {
    this.element = h(
      "details",
      { class: "on-media", ontoggle: () => this.turn() },
      h("summary", {}, "On media"),
      this.failure,
      this.nothing,
      this.list,
    );
  }

  /** It is of this machine from now on, or of none. */
  of(vm: Vm | null): void {
    const other = vm?.name !== this.vm?.name;
    this.vm = vm;
    if (other) this.turn();
    this.draw();
  }

  private turn(): void {
    if (this.vm !== null && this.element.open) this.asking.start();
    else this.asking.stop();
  }

  private async load(): Promise<void> {
    if (document.visibilityState === "hidden") return;
    const { media } = await ask<{ media: MediumSource[] }>("media");
    // A directory that is no medium yet becomes one when it is written to.
    const places = media.filter(({ kind }) => kind === "medium" || kind === "tree");
    this.media = await Promise.all(places.map(({ name }) => ask<Medium>(mediumPath(name))));
    say(this.nothing, this.media.length === 0 ? NONE : "");
    this.draw();
  }

  private draw(): void {
    const { vm } = this;
    if (vm === null) return;
    const mayWrite = this.bearer.may("admin") && vm.parcels.length > 0;
    const works = this.work.doing(vm.name) !== null;
    const text = JSON.stringify([vm.name, vm.parcels.at(-1), this.media, mayWrite, works]);
    if (text === this.drawn) return;
    this.drawn = text;
    refill(
      this.list,
      this.media.map((medium) => this.item(vm, medium, mayWrite, works)),
    );
  }

  private item(vm: Vm, medium: Medium, mayWrite: boolean, works: boolean): HTMLElement {
    const held = heldOf(vm, medium).map((one) => h("p", {}, told(vm, one)));
    if (held.length === 0) held.push(h("p", { class: "big-note" }, "nothing of it"));
    const label = `Write ${vm.name} onto ${medium.name}`;
    const write = h("button", { type: "button", "aria-label": label }, "Write…");
    mark(write, "aria-disabled", works ? "true" : null);
    if (!works) write.addEventListener("click", () => this.write(vm.name, medium));
    const link = h("a", { href: `#media/${encodeURIComponent(medium.name)}` }, medium.name);
    return h("li", {}, link, ...held, mayWrite ? h("div", { class: "verbs" }, write) : null);
  }

  private write(vm: string, { name: medium, kind }: Medium): void {
    const question = { title: `Write onto ${medium}`, verb: "Write", ...writing(vm, kind) };
    this.work.begin(vm, question, async (values) => {
      await this.work.run<MediaAnswer>(vm, `being written onto ${medium}`, written(medium, values), outcome);
      this.asking.anew();
    });
  }
}
