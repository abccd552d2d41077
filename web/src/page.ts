// What every page is, and the pane beside a table.

import { h, say } from "./dom.ts";
import type { Live } from "./live.ts";

export interface Page {
  readonly title: string;
  readonly element: HTMLElement;
  /** It wants to hear of every export in use. */
  readonly rows: boolean;
  /** Shows what is so now. */
  update(live: Live): void;
  /** It is shown, with what follows its name in the address. */
  enter?(rest: string | null): void;
  /** Another page is shown. */
  leave?(): void;
  /** Puts the caret where one searches. */
  search?(): void;
}

/** Facts about one thing, beside the table that has it; and what else is shown of it below them. */
export class Pane {
  readonly element: HTMLElement;
  private readonly heading = h("h2", { tabindex: "-1" });
  private readonly facts = h("dl", { class: "facts" });

  constructor(label: string, back: string, below: Node | null = null) {
    this.element = h(
      "aside",
      { class: "pane", "aria-label": label },
      h("a", { href: back, class: "close" }, "Close"),
      this.heading,
      this.facts,
      below,
    );
    this.element.hidden = true;
  }

  /** Shows facts; a fact may have several lines. */
  show(title: string, facts: [string, string | string[]][]): void {
    say(this.heading, title);
    const nodes = facts.flatMap(([name, value]) => {
      const lines = typeof value === "string" ? [value] : value;
      return [h("dt", {}, name), ...lines.map((line) => h("dd", {}, line))];
    });
    const text = nodes.map((node) => node.textContent).join("\n");
    if (text !== this.facts.dataset.text) {
      this.facts.dataset.text = text;
      this.facts.replaceChildren(...nodes);
    }
    this.element.hidden = false;
  }

  focus(): void {
    this.heading.focus();
  }

  hide(): void {
    this.element.hidden = true;
  }
}

/** How soon a list is asked for that has changed, in milliseconds. */
const SOON = 400;

/** A list of the server, asked for again now and then while its page is shown. */
export class Listing {
  private timer = 0;
  private asking = false;
  private hurried = false;
  private shown = false;
  /** What is being asked for was changed since. */
  private outdated = false;

  constructor(
    private readonly seconds: number,
    private readonly ask: () => Promise<void>,
    private readonly failed: (error: Error | null) => void,
  ) {}

  start(): void {
    this.shown = true;
    void this.again();
  }

  stop(): void {
    clearTimeout(this.timer);
    this.hurried = false;
    this.shown = false;
  }

  /** Asks soon: something changed. What comes meanwhile does not put it off. */
  soon(): void {
    if (this.hurried || this.asking) return;
    this.hurried = true;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.again(), SOON);
  }

  /** The same, and what is being asked for already is asked for once more: that began before the change. */
  anew(): void {
    if (!this.shown) return;
    this.outdated = this.asking;
    this.soon();
  }

  private async again(): Promise<void> {
    clearTimeout(this.timer);
    if (this.asking) return;
    this.asking = true;
    this.hurried = false;
    try {
      await this.ask();
      this.failed(null);
    } catch (error) {
      this.failed(error as Error);
    }
    this.asking = false;
    if (this.outdated && this.shown) {
      this.outdated = false;
      this.soon();
    } else if (this.shown) this.timer = setTimeout(() => void this.again(), this.seconds * 1000);
  }
}
