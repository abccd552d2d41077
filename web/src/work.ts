// What the page has the server do, and what came of it, told where the thing is shown.

import { type Change, change, type Right } from "./api.ts";
import { dialog, type Question, type Values } from "./dialog.ts";
import { h, mark, say } from "./dom.ts";

/** Something that can be done with `T`. */
export interface Verb<T> {
  name: string;
  /** What is written on its button. */
  label: string;
  right: Right;
  /** Whether the state allows it. */
  fits: (of: T) => boolean;
  /** What is said while it lasts: `work: suspending`. */
  doing: string;
  /** Something is lost by it: the name of what it is done with has to be typed. */
  loses?: boolean;
  /** It can be begun while something else is being done with the same thing. */
  always?: boolean;
  /** What is asked before; nothing is asked without. */
  question?: (of: T) => Pick<Question, "text" | "fields">;
  change: (of: T, values: Values) => Change;
}

/** What is asked before something is done with a thing of this name. */
export function asked<T>(verb: Verb<T>, of: T, name: string): Question | null {
  if (!verb.question) return null;
  const label = verb.label.replace("…", "");
  const typed = verb.loses ? { typed: name } : {};
  return { title: `${label}: ${name}`, verb: label, ...typed, ...verb.question(of) };
}

interface Told {
  text: string;
  failed: boolean;
}

/** What is being done with things of one kind, by name, and what came of it last. */
export class Work {
  private readonly now = new Map<string, string[]>();
  private readonly last = new Map<string, Told>();

  /** `changed` is called when something begins or ends. */
  constructor(private readonly changed: () => void) {}

  /** What is being done with this one; of several things the last that was begun. */
  doing(name: string): string | null {
    return this.now.get(name)?.at(-1) ?? null;
  }

  told(name: string): Told | null {
    return this.last.get(name) ?? null;
  }

  /** Nobody is to read any more what came of it. */
  forget(name: string): void {
    this.last.delete(name);
  }

  /** Has something done with a thing, and tells what came of it; fails with the server's own words. */
  async run<T>(name: string, doing: string, what: Change, outcome: (answer: T) => string): Promise<T> {
    this.now.set(name, [...(this.now.get(name) ?? []), doing]);
    this.last.delete(name);
    this.changed();
    try {
      const answer = await change<T>(what);
      this.last.set(name, { text: outcome(answer), failed: false });
      return answer;
    } catch (error) {
      this.last.set(name, { text: (error as Error).message, failed: true });
      throw error;
    } finally {
      const all = this.now.get(name) ?? [];
      all.splice(all.indexOf(doing), 1);
      this.changed();
    }
  }

  /** Has `run` do something with a thing, after a question if there is one. What is told there is not told elsewhere. */
  begin(name: string, question: Question | null, run: (values: Values) => Promise<unknown>): void {
    if (question === null) {
      run({}).catch(() => {
        // It is told where the thing is shown.
      });
      return;
    }
    dialog.ask(question, run, () => {
      this.last.delete(name);
      this.changed();
    });
  }
}

/** What is being done with a thing that is shown, and what came of it. */
export class WorkNote {
  readonly element: HTMLElement;
  private readonly state = h("p", { class: "doing", role: "status" });
  private readonly failure = h("p", { class: "failure", role: "alert" });

  constructor() {
    this.element = h("div", { class: "work" }, this.state, this.failure);
  }

  show(work: Work, name: string): void {
    const [doing, told] = [work.doing(name), work.told(name)];
    say(this.state, doing !== null ? `${name}: ${doing} …` : told && !told.failed ? told.text : "");
    say(this.failure, doing === null && told?.failed ? told.text : "");
  }
}

/** A button for each thing that can be done; those that cannot be done now are not shown. */
export class VerbButtons {
  readonly element = h("div", { class: "verbs", role: "group", "aria-label": "What can be done" });
  private readonly buttons = new Map<string, HTMLButtonElement>();

  /** `begin` is called with the name of what is to be done. */
  constructor(verbs: { name: string; label: string; loses?: boolean }[], begin: (name: string) => void) {
    for (const { name, label, loses } of verbs) {
      const button = h("button", { type: "button", class: loses ? "destroys" : "" }, label);
      button.addEventListener("click", () => {
        if (button.getAttribute("aria-disabled") === null) begin(name);
      });
      this.buttons.set(name, button);
      this.element.append(button);
    }
  }

  /** Shows those that are offered; while something is being done, few of them do anything. False when the one that had
   * the focus is gone. */
  show(offered: { name: string; always?: boolean }[], works: boolean): boolean {
    const focused = document.activeElement;
    let there = true;
    for (const [name, button] of this.buttons) {
      const verb = offered.find((one) => one.name === name);
      if (!verb && button === focused) there = false;
      button.hidden = !verb;
      mark(button, "aria-disabled", works && !verb?.always ? "true" : null);
    }
    this.element.hidden = offered.length === 0;
    return there;
  }
}

/** Puts other nodes into an element. Who had a button of it in focus has the one of the same name then, or the pane. */
export function refill(element: Element, nodes: Node[]): void {
  const focused = document.activeElement;
  const label = element.contains(focused) ? (focused?.getAttribute("aria-label") ?? "") : null;
  element.replaceChildren(...nodes);
  if (label === null) return;
  const same = element.querySelector<HTMLElement>(`[aria-label="${CSS.escape(label)}"]`);
  (same ?? element.closest(".pane")?.querySelector("h2"))?.focus();
}
