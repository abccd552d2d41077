// What is asked before something is done: what it needs to know, and where something is lost, the name, typed.

import { h, mark, say } from "./dom.ts";
import { token } from "./token.ts";

/** One thing that is asked. */
export interface Field {
  name: string;
  label: string;
  /** A line of text, one of some, or yes and no. */
  kind: "text" | "choice" | "check";
  value?: string;
  /** What there is to choose from, or what is proposed. */
  options?: string[];
  help?: string;
  /** It may be left out. */
  optional?: boolean;
}

/** What was answered, by the name of the field; of yes and no "yes" or nothing. */
export type Values = Record<string, string>;

export interface Question {
  title: string;
  /** What will be so then. */
  text: string;
  fields?: Field[];
  /** The name that is to be typed, as something is lost. */
  typed?: string;
  /** What is written on the button. */
  verb: string;
}

/** The one dialog of the page. */
class QuestionDialog {
  private readonly element = h("dialog", { class: "question-dialog", "aria-labelledby": "question-title" });
  private readonly inputs = new Map<string, HTMLInputElement | HTMLSelectElement>();
  private readonly failure = h("p", { class: "failure", role: "alert", id: "question-failure" });
  private readonly state = h("p", { class: "big-note", role: "status" });
  private readonly go = h("button", { type: "submit" });
  private readonly close = h("button", { type: "button", onclick: () => this.element.close() });
  private question: Question | null = null;
  private run: (values: Values) => Promise<unknown> = async () => {};
  private told: () => void = () => {};
  /** Counts what was asked: an answer to an earlier question says nothing about this one. */
  private asked = 0;
  private works = false;

  constructor() {
    // What had the focus before may be gone by then.
    this.element.addEventListener("close", () => {
      if (document.activeElement !== document.body) return;
      const heading = document.querySelector<HTMLElement>(".pane:not([hidden]) h2");
      (heading ?? document.getElementById("content"))?.focus();
    });
  }

  /** Asks, and does `run` with what is answered. A failure is shown here while the question is open, and `told`
   * called. */
  ask(question: Question, run: (values: Values) => Promise<unknown>, told: () => void): void {
    this.asked += 1;
    this.question = question;
    [this.run, this.told] = [run, told];
    this.works = false;
    this.inputs.clear();
    say(this.failure, "");
    this.element.replaceChildren(this.form(question));
    this.tell();
    if (!this.element.isConnected) document.body.append(this.element);
    if (!this.element.open) this.element.showModal();
  }

  private form(question: Question): HTMLFormElement {
    const fields = (question.fields ?? []).map((field) => this.field(field));
    if (question.typed !== undefined) {
      const label = `Type ${question.typed} to go on`;
      fields.push(this.field({ name: "typed", label, kind: "text" }));
    }
    mark(this.go, "class", question.typed === undefined ? "go" : "go destroys");
    return h(
      "form",
      { novalidate: true, onsubmit: (event) => void this.submit(event) },
      h("h2", { id: "question-title" }, question.title),
      h("p", {}, question.text),
      ...fields,
      this.failure,
      this.state,
      h("div", { class: "buttons" }, this.go, this.close),
    );
  }

  private field({ name, label, kind, value = "", options, help }: Field): HTMLElement {
    const id = `question-${name}`;
    const told = help === undefined ? null : h("small", { id: `${id}-help` }, help);
    const described = `${help === undefined ? "" : `${id}-help `}question-failure`;
    if (kind === "choice") {
      const select = h("select", { id, "aria-describedby": described });
      select.append(...(options ?? []).map((option) => h("option", { value: option }, option)));
      select.value = value;
      this.inputs.set(name, select);
      return h("div", { class: "field" }, h("label", { for: id }, label), select, told);
    }
    if (kind === "check") {
      const input = h("input", { type: "checkbox", id, "aria-describedby": described, checked: value === "yes" });
      this.inputs.set(name, input);
      return h("div", { class: "field check" }, input, h("label", { for: id }, label), told);
    }
    const input = h("input", {
      type: "text",
      id,
      value,
      autocomplete: "off",
      autocapitalize: "none",
      spellcheck: "false",
      "aria-describedby": described,
    });
    this.inputs.set(name, input);
    const list = h(
      "datalist",
      { id: `${id}-list` },
      ...(options ?? []).map((option) => h("option", { value: option })),
    );
    if (options !== undefined) input.setAttribute("list", list.id);
    return h("div", { class: "field" }, h("label", { for: id }, label), input, told, options ? list : null);
  }

  private async submit(event: Event): Promise<void> {
    event.preventDefault();
    const { question, asked } = this;
    if (question === null || this.works) return;
    const values: Values = {};
    for (const [name, input] of this.inputs) {
      const isCheck = input instanceof HTMLInputElement && input.type === "checkbox";
      values[name] = isCheck ? (input.checked ? "yes" : "") : input.value.trim();
    }
    const missing = this.missing(question, values);
    if (missing !== null) return this.fail(...missing);
    this.works = true;
    say(this.failure, "");
    this.tell();
    try {
      await this.run(values);
      if (asked === this.asked) this.element.close();
    } catch (error) {
      if (asked !== this.asked) return;
      this.works = false;
      this.tell();
      if (!this.element.open) return;
      this.fail((error as Error).message, null);
      this.told();
      // Another token is asked for, behind this.
      if (!token.held) this.element.close();
    }
  }

  /** What is wrong with what was answered, and with which field. */
  private missing({ fields = [], typed }: Question, values: Values): [string, string] | null {
    const empty = fields.find(({ name, kind, optional }) => kind !== "check" && !optional && values[name] === "");
    if (empty) return [`${empty.label} is missing.`, empty.name];
    if (typed !== undefined && values.typed !== typed) return [`Type ${typed} to go on.`, "typed"];
    return null;
  }

  private fail(why: string, field: string | null): void {
    say(this.failure, why);
    for (const [name, input] of this.inputs) mark(input, "aria-invalid", name === field ? "true" : null);
    if (field !== null) this.inputs.get(field)?.focus();
  }

  private tell(): void {
    say(this.go, this.question?.verb ?? "");
    mark(this.go, "aria-disabled", this.works ? "true" : null);
    say(this.close, this.works ? "Close" : "Cancel");
    say(this.state, this.works ? "The server works on it, also when this is closed …" : "");
  }
}

export const dialog = new QuestionDialog();
