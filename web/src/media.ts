// Media: the sources that the configuration names, what those that are media hold, and what can be done with them.

import { ask, type Medium, type MediumContent, type MediumSource } from "./api.ts";
import { BearerNote } from "./bearer.ts";
import { h, mark, say } from "./dom.ts";
import { byName, bytes, date, NONE } from "./format.ts";
import type { Live } from "./live.ts";
import { type MediaAnswer, MEDIA_VERBS, mediumPath, outcome, share, TAKE_OFF } from "./media_verbs.ts";
import { Listing, type Page, Pane } from "./page.ts";
import { Table } from "./table.ts";
import { asked, refill, type Verb, VerbButtons, Work, WorkNote } from "./work.ts";

interface Placed {
  source: MediumSource;
  place: number;
}

const KINDS = {
  store: "another store",
  export: "an NBD export",
  medium: "a medium",
  tree: "a directory tree",
  image: "an image",
};
const link = (name: string): string => `#media/${encodeURIComponent(name)}`;
const kindOf = ({ kind }: MediumSource): string => (kind === null ? NONE : KINDS[kind]);
const HOW = 'The configuration of the server names no source: sources = ["/media/usb"] in sojourn.toml.';

/** What is on a medium. */
class HeldTable {
  readonly element: HTMLElement;
  private readonly body = h("tbody");
  private drawn = "";

  constructor(private readonly takeOff: (held: MediumContent) => void) {
    const titles = ["Name", "Holds"].map((title) => h("th", { scope: "col" }, title));
    const table = h("table", {}, h("caption", {}, "On it"), h("thead", {}, h("tr", {}, ...titles)), this.body);
    this.element = h("section", { class: "held" }, table);
  }

  show(holds: MediumContent[], mayTakeOff: boolean, works: boolean): void {
    this.element.hidden = holds.length === 0;
    const text = JSON.stringify([holds, mayTakeOff, works]);
    if (text === this.drawn) return;
    this.drawn = text;
    const sorted = [...holds].sort((a, b) => byName(a.name, b.name));
    refill(
      this.body,
      sorted.map((held) => this.row(held, mayTakeOff, works)),
    );
  }

  private row(held: MediumContent, mayTakeOff: boolean, works: boolean): HTMLElement {
    const button = h("button", { type: "button", class: "destroys" }, TAKE_OFF.label);
    mark(button, "aria-label", `Take off ${held.name}`);
    mark(button, "aria-disabled", works ? "true" : null);
    if (!works) button.addEventListener("click", () => this.takeOff(held));
    const version = held.version === held.name ? held.kind : `${held.kind} ${held.version}`;
    const name = h("th", { scope: "row" }, held.name, h("small", {}, version));
    // That of a machine is how its memory is laid out, and not how much there is.
    const size = held.kind === "machine" ? "" : `${bytes(held.size)}, `;
    const what = `${share(held)}; ${size}written ${date(held.written)}`;
    return h("tr", {}, name, h("td", {}, what, mayTakeOff ? h("div", { class: "verbs" }, button) : null));
  }
}

export class MediaPage implements Page {
  readonly title = "Media";
  readonly rows = false;
  readonly element: HTMLElement;

  private readonly bearer = new BearerNote("Media take a token with the right");
  private readonly work = new Work(() => this.worked());
  private readonly note = new WorkNote();
  private readonly verbs = new VerbButtons(MEDIA_VERBS, (name) => this.begin(name));
  private readonly held = new HeldTable((held) => this.takeOff(held));
  private readonly looked = h("p", { class: "failure" });
  private readonly pane = new Pane(
    "Medium",
    "#media",
    h("div", {}, this.looked, this.note.element, this.verbs.element, this.held.element),
  );
  private readonly failure = h("p", { class: "failure" });
  private readonly table = new Table<Placed>({
    noun: ["source", "sources"],
    name: ({ source }) => source.name,
    link: ({ source }) => link(source.name),
    haystack: (row) => `${row.source.name} ${kindOf(row.source)} ${this.state(row)}`.toLowerCase(),
    empty: HOW,
    columns: [
      { key: "source", title: "Source", text: ({ source }) => source.name, order: (a, b) => a.place - b.place },
      {
        key: "kind",
        title: "Is",
        text: ({ source }) => kindOf(source),
        order: (a, b) => byName(kindOf(a.source), kindOf(b.source)),
      },
      {
        key: "doing",
        title: "State",
        text: (row) => this.state(row),
        look: ({ source }) => (source.error === undefined ? "" : "is-damaged"),
        order: (a, b) => byName(this.state(a), this.state(b)),
      },
    ],
  });
  private readonly list = new Listing(
    15,
    () => this.load(),
    (error) => say(this.failure, error ? `The list is not up to date: ${error.message}` : ""),
  );
  /** To look at a medium reads what it has: a key is slow. */
  private readonly look = new Listing(
    30,
    () => this.lookAt(),
    (error) => say(this.looked, error ? `What it holds is not known: ${error.message}` : ""),
  );
  private sources = new Map<string, Placed>();
  private known = false;
  private chosen: string | null = null;
  private medium: Medium | null = null;
  private changes = 0;

  constructor() {
    this.pane.element.classList.add("vm");
    this.element = h(
      "div",
      { class: "split media" },
      h("div", { class: "main" }, this.bearer.element, this.failure, this.table.element),
      this.pane.element,
    );
  }

  enter(rest: string | null): void {
    const before = this.chosen;
    if (before !== rest) {
      this.medium = null;
      say(this.looked, "");
      if (before !== null) this.work.forget(before);
    }
    this.chosen = rest;
    this.table.choose(rest);
    if (rest === null) {
      this.look.stop();
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
    this.look.stop();
  }

  search(): void {
    this.table.focus();
  }

  update(live: Live): void {
    const changes = live.now?.changes ?? 0;
    if (changes !== this.changes) this.list.anew();
    this.changes = changes;
  }

  private state({ source }: Placed): string {
    return this.work.doing(source.name) ?? source.error ?? (source.kind === null ? "not there" : "there");
  }

  private async load(): Promise<void> {
    if (document.visibilityState === "hidden") return;
    const told = await this.bearer.learn();
    this.table.element.hidden = !told;
    const media = told ? (await ask<{ media: MediumSource[] }>("media")).media : [];
    this.sources = new Map(media.map((source, place) => [source.name, { source, place }]));
    this.known = told;
    this.table.set([...this.sources.values()]);
    this.tell();
    // The first look at what was chosen; further ones come by themselves.
    if (told && this.chosen !== null && this.medium?.name !== this.chosen) this.look.start();
  }

  private async lookAt(): Promise<void> {
    const { chosen } = this;
    if (chosen === null || !this.sources.has(chosen) || document.visibilityState === "hidden") return;
    const medium = await ask<Medium>(mediumPath(chosen));
    if (chosen !== this.chosen) return this.look.anew();
    this.medium = medium;
    this.tell();
  }

  /** Something that this page has done has begun or ended. */
  private worked(): void {
    this.table.set([...this.sources.values()]);
    this.tell();
    this.list.anew();
    this.look.anew();
  }

  /** Shows the source that was chosen. */
  private tell(): void {
    const { chosen, medium } = this;
    if (chosen === null) return;
    const placed = this.sources.get(chosen);
    const none = this.known ? "The configuration names no such source." : "…";
    this.pane.show(
      chosen,
      placed
        ? [
            ["Is", kindOf(placed.source)],
            ["State", this.state(placed)],
          ]
        : [["State", none]],
    );
    this.note.show(this.work, chosen);
    const works = this.work.doing(chosen) !== null;
    // What it holds is not known at first, but what it is.
    const of: Medium | null = placed ? { ...placed.source, holds: medium?.holds ?? [] } : null;
    const offered = of ? MEDIA_VERBS.filter((verb) => this.bearer.may(verb.right) && verb.fits(of)) : [];
    if (!this.verbs.show(offered, works)) this.pane.focus();
    this.held.show(of?.holds ?? [], this.bearer.may("admin"), works);
  }

  private begin(name: string): void {
    const placed = this.sources.get(this.chosen ?? "");
    const verb = MEDIA_VERBS.find((one) => one.name === name);
    if (!placed || !verb) return;
    this.carryOut(verb, { ...placed.source, holds: this.medium?.holds ?? [] }, placed.source.name, placed.source.name);
  }

  private takeOff(held: MediumContent): void {
    const { medium } = this;
    if (medium) this.carryOut(TAKE_OFF, { medium, held }, medium.name, held.name);
  }

  /** Asks what is to be asked about what has this name, and has it done with a medium. */
  private carryOut<T>(verb: Verb<T>, of: T, medium: string, name: string): void {
    this.work.begin(medium, asked(verb, of, name), (values) =>
      this.work.run<MediaAnswer>(medium, verb.doing, verb.change(of, values), outcome),
    );
  }
}
