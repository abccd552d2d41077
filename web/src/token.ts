// The token that the page shows with whatever it asks, and the form that asks a person for it. It is kept for this
// tab alone, until the tab is closed or it is forgotten, and is in no address.

import { h, mark, say } from "./dom.ts";

/** Where the tab keeps it. */
const KEY = "sojourn-token";
/** What `sojourn token create` prints. */
const SHAPE = /^sojourn_[0-9a-f]{64}$/;

const NOT_ONE = "This is not a token: one is sojourn_ and 64 hexadecimal digits, as sojourn token create printed it.";
const UNSAFE =
  "This page came over plain HTTP from another machine: whoever is in between would read the token. " +
  "Open it by https, or through a tunnel: ssh -L 9180:127.0.0.1:9180 HOST.";

/** The token of this tab. A tab without storage keeps it until the page is loaded again. */
class TokenKeeper {
  private text: string | null = null;
  /** Counts what was given: what is known of one token says nothing about the next. */
  generation = 0;
  /** Called with the server's words for why it takes no request without another token. */
  refused: (why: string | null) => void = () => {};

  constructor() {
    try {
      this.text = sessionStorage.getItem(KEY);
    } catch {
      // This browser forbids it.
    }
  }

  get held(): boolean {
    return this.text !== null;
  }

  keep(text: string): void {
    this.text = text;
    this.generation += 1;
    try {
      sessionStorage.setItem(KEY, text);
    } catch {
      // In memory, then.
    }
  }

  forget(): void {
    this.text = null;
    this.generation += 1;
    try {
      sessionStorage.removeItem(KEY);
    } catch {
      // It was never there.
    }
  }

  /** Called when a page wants a token that may do more: the server goes on without. */
  wanted: (why: string) => void = () => {};

  /** Asks what takes a right, with bytes. An answer that it is missing is the caller's: the page goes on without. */
  post(path: string, body: Blob, signal: AbortSignal): Promise<Response> {
    const headers: Record<string, string> = { "content-type": "application/octet-stream" };
    if (this.text !== null) headers.authorization = `Bearer ${this.text}`;
    return fetch(`/api/v1/${path}`, { method: "POST", headers, body, signal, cache: "no-store" });
  }

  /** Has a person asked for another token, for these reasons. */
  askFor(why: string): void {
    this.wanted(why);
  }

  /** Asks the API, below `/api/v1/`. An answer that asks for another token is told to `refused`, too. */
  fetch(path: string, signal: AbortSignal | null = null): Promise<Response> {
    return this.send(path, {}, { signal });
  }

  /** Has something changed, by what a JSON object says if there is one. */
  change(method: "POST" | "DELETE", path: string, body: object | null): Promise<Response> {
    if (body === null) return this.send(path, {}, { method });
    return this.send(path, { "content-type": "application/json" }, { method, body: JSON.stringify(body) });
  }

  private async send(path: string, headers: Record<string, string>, request: RequestInit): Promise<Response> {
    const shown = this.text;
    if (shown !== null) headers.authorization = `Bearer ${shown}`;
    const answer = await fetch(`/api/v1/${path}`, { ...request, headers, cache: "no-store" });
    // An answer to a token that was replaced meanwhile says nothing about the new one.
    if (answer.status === 401 && shown === this.text) {
      const why = shown === null ? null : await words(answer.clone());
      this.forget();
      this.refused(why);
    }
    return answer;
  }
}

/** The one that the whole page shows. */
export const token = new TokenKeeper();

/** The server's own words for why it did not do what it was asked. */
export async function words(answer: Response): Promise<string> {
  const body = await answer.json().catch(() => null);
  return typeof body?.message === "string" ? body.message : `${answer.status} ${answer.statusText}`;
}

/** The form in which a person gives a token. */
export class TokenForm {
  readonly element: HTMLElement;
  private readonly input = h("input", {
    type: "password",
    id: "token",
    autocomplete: "off",
    autocapitalize: "none",
    spellcheck: "false",
    "aria-describedby": "token-help token-failure",
  });
  private readonly failure = h("p", { id: "token-failure", class: "failure", role: "alert" });

  /** `given` is called when a token is there to be tried. */
  constructor(private readonly given: () => void) {
    // The input has no name: nothing could put it into an address.
    const form = h(
      "form",
      { onsubmit: (event) => this.submit(event), novalidate: true },
      h("label", { for: "token" }, "Token"),
      h("div", { class: "line" }, this.input, h("button", { type: "submit" }, "Use it")),
    );
    const help =
      "On the server's machine, sojourn token create NAME --read makes one. " +
      "This tab keeps it until you close the tab or forget it here.";
    this.element = h(
      "section",
      { class: "ask", "aria-labelledby": "token-title" },
      h("h2", { id: "token-title" }, "This server asks for a token"),
      h("p", { id: "token-help" }, isSecureContext ? help : UNSAFE),
      isSecureContext ? form : null,
      this.failure,
    );
    this.element.hidden = true;
  }

  /** Asks, and says why the last one was refused. */
  show(why: string | null): void {
    const hidden = this.element.hidden;
    this.element.hidden = false;
    this.fail(why);
    if (hidden || why !== null) this.input.focus();
  }

  hide(): void {
    this.input.value = "";
    this.fail(null);
    this.element.hidden = true;
  }

  private fail(why: string | null): void {
    say(this.failure, why ?? "");
    mark(this.input, "aria-invalid", why === null ? null : "true");
  }

  private submit(event: Event): void {
    event.preventDefault();
    const text = this.input.value.trim();
    if (!SHAPE.test(text)) {
      this.fail(NOT_ONE);
      this.input.focus();
      return;
    }
    this.fail(null);
    token.keep(text);
    this.given();
  }
}
