// What the guest of a virtual machine said, or what QEMU and its keeper did; asked for while it is open.

import { ask, type VmLog } from "./api.ts";
import { h, say } from "./dom.ts";
import { Listing } from "./page.ts";

/** What moves a terminal's cursor, and other characters that are no text. */
const CONTROLS = /\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.|[\0-\x08\x0b-\x1f\x7f]/g;

export class VmLogView {
  readonly element: HTMLDetailsElement;
  private readonly failure = h("p", { class: "failure" });
  private readonly cut = h("p", { class: "big-note" });
  private readonly text = h("pre", { tabindex: 0, role: "region", "aria-label": "What was said" });
  private readonly qemu = h("input", { type: "checkbox", id: "vm-log-qemu", onchange: () => this.asking.anew() });
  private readonly asking = new Listing(
    3,
    () => this.load(),
    (error) => say(this.failure, error ? `This is not up to date: ${error.message}` : ""),
  );
  private name: string | null = null;

  constructor() {
    const choice = h("p", { class: "check" }, this.qemu);
    choice.append(h("label", { for: "vm-log-qemu" }, "What QEMU and its keeper said"));
    this.element = h(
      "details",
      { class: "log", ontoggle: () => this.turn() },
      h("summary", {}, "What was said"),
      this.failure,
      choice,
      this.cut,
      this.text,
    );
  }

  /** It is of this machine from now on, or of none. */
  of(name: string | null): void {
    if (name === this.name) return;
    this.name = name;
    say(this.text, "");
    say(this.cut, "");
    this.turn();
  }

  private turn(): void {
    if (this.name !== null && this.element.open) this.asking.start();
    else this.asking.stop();
  }

  private async load(): Promise<void> {
    const { name } = this;
    if (name === null || document.visibilityState === "hidden") return;
    const query = this.qemu.checked ? "?qemu=true" : "";
    const { text, is_cut: isCut } = await ask<VmLog>(`vms/${encodeURIComponent(name)}/log${query}`);
    if (name !== this.name) return this.asking.anew();
    const { scrollTop, scrollHeight, clientHeight } = this.text;
    const atEnd = scrollTop + clientHeight >= scrollHeight - 2;
    const told = text.replace(CONTROLS, "");
    say(this.text, told === "" ? "Nothing was said." : told);
    say(this.cut, isCut ? "This is the end of it." : "");
    if (atEnd) this.text.scrollTop = this.text.scrollHeight;
  }
}
