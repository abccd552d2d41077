// What the token of the page may do, and what a page says that takes one.

import { ask, type Right, type TokenState } from "./api.ts";
import { h, say } from "./dom.ts";
import { token } from "./token.ts";

const RIGHTS: Right[] = ["read", "operate", "admin"];

/** Whether one right has another. */
const has = (held: Right, wanted: Right): boolean => RIGHTS.indexOf(held) >= RIGHTS.indexOf(wanted);

/** What a page that takes a token says of the one that there is, with a button to give another one. */
export class BearerNote {
  readonly element: HTMLElement;
  private readonly text = h("span");
  private readonly other = h("button", { type: "button", onclick: () => token.askFor(this.wanted) });
  private wanted = "";
  private state: TokenState | null = null;
  /** Of which token that is. */
  private generation = -1;

  /** `what` takes a token: `Virtual machines take one with the right`. */
  constructor(private readonly what: string) {
    this.element = h("p", { class: "bearer" }, this.text, this.other);
    this.element.hidden = true;
  }

  /** Whether the token has this right, as far as that is known. */
  may(right: Right): boolean {
    return this.state !== null && this.generation === token.generation && has(this.state.right, right);
  }

  /** Learns what the token may do; false when there is none, and it says so. */
  async learn(): Promise<boolean> {
    const { generation } = token;
    if (this.generation !== generation) {
      this.state = token.held ? await ask<TokenState>("token") : null;
      this.generation = generation;
    }
    this.tell();
    return this.state !== null;
  }

  private tell(): void {
    const { state, what } = this;
    const command = "sojourn token create NAME";
    this.element.hidden = state?.right === "admin";
    if (state === null) {
      this.wanted = `${what} read, operate or admin: ${command} --operate.`;
      say(this.text, this.wanted);
      say(this.other, "Use a token");
      return;
    }
    const more = state.right === "read" ? "To change anything takes" : "What loses something takes";
    const next = state.right === "read" ? "operate" : "admin";
    this.wanted = `${more} a token with the right ${next}: ${command} --${next}.`;
    say(this.text, `The token ${state.name} has the right ${state.right}. ${this.wanted}`);
    say(this.other, "Use another token");
  }
}
