// Lab: a trace, and what it tells of caches and servers. What answers are the commands that one runs by hand.

import { ask, type HitCurves, type Prediction, type RecordedTraces, type TraceFacts, type TunedCache } from "./api.ts";
import { h, say } from "./dom.ts";
import { byName, bytes, count, duration, NONE, percent, some } from "./format.ts";
import { LinePlot } from "./lines.ts";
import type { Page } from "./page.ts";
import { token, words } from "./token.ts";

/** The longest trace that the server takes. */
const LONGEST = 64 * 2 ** 20;
/** So many of the candidates of tune are shown. */
const CANDIDATES = 8;
/** So many points of a curve are drawn. */
const POINTS = 60;

/** A trace that questions are asked of. */
interface Chosen {
  name: string;
  recording: string | null;
  body: Blob;
}

/** A table of text. */
function table(title: string, columns: string[], rows: string[][]): HTMLTableElement {
  const look = (at: number): string => (at > 0 ? "number" : "");
  const head = columns.map((name, at) => h("th", { scope: "col", class: look(at) }, name));
  const lines = rows.map((row) =>
    h(
      "tr",
      {},
      ...row.map((text, at) => (at === 0 ? h("th", { scope: "row" }, text) : h("td", { class: look(at) }, text))),
    ),
  );
  return h("table", {}, h("caption", {}, title), h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...lines));
}

/** One question, and the place of its answer. */
class Question<T> {
  readonly element: HTMLElement;
  private readonly state = h("p", { class: "big-note", role: "status" });
  private readonly answer = h("div", { class: "answer" });

  constructor(
    title: string,
    command: string,
    private readonly path: string,
    private readonly show: (value: T) => (Node | null)[],
  ) {
    this.element = h("section", { class: "question" }, h("h2", {}, title, h("code", {}, command)), this.state);
    this.element.append(this.answer);
  }

  clear(): void {
    say(this.state, "");
    this.answer.replaceChildren();
  }

  /** Asks; fails with the server's own words. */
  async ask(chosen: Chosen, memory: string, signal: AbortSignal): Promise<void> {
    this.answer.replaceChildren();
    say(this.state, "The server works on it …");
    const query = new URLSearchParams();
    if (chosen.recording !== null) query.set("recording", chosen.recording);
    if (memory !== "" && this.path !== "stats") query.set("memory", memory);
    try {
      const answer = await token.post(`lab/${this.path}?${query}`, chosen.body, signal);
      if (!answer.ok) throw new Refusal(await words(answer), answer.status === 401 || answer.status === 403);
      const value = (await answer.json()) as T;
      say(this.state, "");
      this.answer.replaceChildren(...this.show(value).filter((node) => node !== null));
    } catch (error) {
      const why = signal.aborted ? "Not asked any more." : (error as Error).message;
      // What is asked instead says for itself how far it is.
      if (signal.reason !== ANEW) say(this.state, why);
      throw error;
    }
  }
}

/** Why a question is given up that is asked again, or of another trace. */
const ANEW = "anew";

/** What the server does not do; whether a token with the right would help. */
class Refusal extends Error {
  constructor(
    message: string,
    readonly denied: boolean,
  ) {
    super(message);
  }
}

export class LabPage implements Page {
  readonly title = "Lab";
  readonly rows = false;
  readonly element: HTMLElement;

  private readonly file = h("input", { type: "file", id: "trace", onchange: () => this.take(this.file.files?.[0]) });
  private readonly recordings = h("select", { id: "recording", onchange: () => this.pick() });
  private readonly memory = h("input", {
    type: "text",
    id: "memory",
    placeholder: "as the trace suggests",
    autocomplete: "off",
    spellcheck: "false",
    "aria-describedby": "memory-help",
  });
  private readonly study = h("button", { type: "submit", disabled: true }, "Study it");
  private readonly stop = h("button", { type: "button", onclick: () => this.abort() }, "Stop");
  private readonly other = h("button", { type: "button", onclick: () => token.askFor(NEEDS) }, "Use another token");
  private readonly chosenLine = h("p", { class: "chosen-trace", role: "status" });
  private readonly failure = h("p", { class: "failure", role: "alert" });
  private readonly drop: HTMLElement;
  private readonly questions: Question<never>[] = [
    new Question<TraceFacts>("What it is like", "sojourn trace stats", "stats", facts) as Question<never>,
    new Question<HitCurves>("Hits by size and policy", "sojourn simulate cache", "curves", curves) as Question<never>,
    new Question<TunedCache[]>("The best policy", "sojourn simulate tune", "tune", tuned) as Question<never>,
    new Question<Prediction>("How many clients", "sojourn predict", "predict", predicted) as Question<never>,
  ];
  private chosen: Chosen | null = null;
  private asking: AbortController | null = null;

  constructor() {
    const form = h(
      "form",
      { class: "lab-form", onsubmit: (event) => this.submit(event) },
      h("div", {}, h("label", { for: "trace" }, "A trace from this machine"), this.file),
      h("div", {}, h("label", { for: "recording" }, "or one that the server recorded"), this.recordings),
      h(
        "div",
        {},
        h("label", { for: "memory" }, "Sizes of the cache"),
        this.memory,
        h("small", { id: "memory-help" }, "such as 64MiB,1GiB or 64M-1G"),
      ),
      h("div", { class: "buttons" }, this.study, this.stop, this.other),
    );
    this.stop.hidden = true;
    this.other.hidden = true;
    const intro =
      "Drop a trace here: a recording of sojourn, blkparse, fio, MSR, SPC, CSV and others, plain or compressed, " +
      `up to ${bytes(LONGEST)}. The server answers with the commands named below; that takes a token with the right operate.`;
    this.drop = h("section", { class: "drop", "aria-label": "A trace" }, h("p", {}, intro), form, this.chosenLine);
    this.drop.append(this.failure);
    this.element = h("div", { class: "lab" }, this.drop, ...this.questions.map(({ element }) => element));
    this.element.addEventListener("dragover", (event) => this.over(event, true));
    this.element.addEventListener("dragleave", (event) => this.over(event, false));
    this.element.addEventListener("drop", (event) => {
      this.over(event, false);
      this.take(event.dataTransfer?.files[0]);
    });
  }

  enter(): void {
    void this.list();
  }

  leave(): void {
    this.abort();
  }

  update(): void {
    // Nothing here follows the server.
  }

  private over(event: DragEvent, over: boolean): void {
    event.preventDefault();
    this.drop.classList.toggle("over", over);
  }

  private async list(): Promise<void> {
    let recordings: RecordedTraces["recordings"] = [];
    try {
      ({ recordings } = await ask<RecordedTraces>("lab/recordings"));
    } catch (error) {
      say(this.failure, `What the server recorded is not known: ${(error as Error).message}`);
    }
    const before = this.recordings.value;
    const none = recordings.length === 0 ? "it has recorded none" : "choose one";
    const option = (value: string, text: string): HTMLOptionElement => h("option", { value }, text);
    this.recordings.replaceChildren(
      option("", none),
      ...recordings.map(({ name, bytes: size, open }) =>
        option(name, `${name}, ${bytes(size)}${open ? ", being written" : ""}`),
      ),
    );
    this.recordings.value = recordings.some(({ name }) => name === before) ? before : "";
    this.recordings.disabled = recordings.length === 0;
  }

  private take(file: File | undefined): void {
    if (!file) return;
    this.recordings.value = "";
    if (file.size > LONGEST) {
      this.choose(null);
      say(this.failure, `${file.name} has ${bytes(file.size)}, and the server takes ${bytes(LONGEST)}.`);
      return;
    }
    this.choose({ name: file.name, recording: null, body: file });
    say(this.chosenLine, `${file.name}, ${bytes(file.size)}`);
  }

  private pick(): void {
    const name = this.recordings.value;
    this.file.value = "";
    this.choose(name === "" ? null : { name, recording: name, body: new Blob() });
    say(this.chosenLine, name);
  }

  private choose(chosen: Chosen | null): void {
    this.abort(ANEW);
    this.chosen = chosen;
    this.study.disabled = chosen === null;
    say(this.failure, "");
    say(this.chosenLine, "");
    for (const question of this.questions) question.clear();
  }

  private abort(reason?: string): void {
    this.asking?.abort(reason);
    this.asking = null;
    this.stop.hidden = true;
  }

  private submit(event: Event): void {
    event.preventDefault();
    if (this.chosen) void this.run(this.chosen);
  }

  /** Asks one question after the other. */
  private async run(chosen: Chosen): Promise<void> {
    this.abort(ANEW);
    const asking = new AbortController();
    this.asking = asking;
    this.stop.hidden = false;
    this.other.hidden = true;
    say(this.failure, "");
    for (const question of this.questions) question.clear();
    for (const question of this.questions) {
      try {
        await question.ask(chosen, this.memory.value.trim(), asking.signal);
      } catch (error) {
        if (asking.signal.aborted) break;
        if (error instanceof Refusal && error.denied) {
          question.clear();
          say(this.failure, error.message);
          this.other.hidden = false;
          break;
        }
      }
    }
    if (this.asking === asking) this.abort();
  }
}

const NEEDS = "The lab takes a token with the right operate: sojourn token create NAME --operate.";

const ratio = (value: number): string => percent(value * 100);

function facts(value: TraceFacts): (Node | null)[] {
  const { working_set: set, order } = value;
  const all = Math.max(1, order.sequential + order.near + order.random);
  const lines: [string, string][] = [
    ["Requests", count(value.requests) + (value.complete ? "" : ", and the trace breaks off")],
    ["Duration", value.times ? duration(value.duration / 1e9) : "it has no times"],
    ["Clients, disks", `${count(value.clients.length)}, ${count(value.disks.length)}`],
    [
      "Working set",
      `${bytes(set.blocks * set.block)}: ${bytes(set.only_read * set.block)} only read, ` +
        `${bytes(set.only_written * set.block)} only written`,
    ],
    [
      "Order",
      `${percent((order.sequential * 100) / all)} in order, ${percent((order.near * 100) / all)} near, ` +
        `${percent((order.random * 100) / all)} elsewhere`,
    ],
  ];
  const list = h("dl", { class: "facts" }, ...lines.flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
  const sizes = { read: value.read_sizes, write: value.write_sizes };
  const size = (number: number | null | undefined): string => (number ? bytes(number) : NONE);
  const rows = value.operations
    .filter(([, { requests }]) => requests > 0)
    .map(([kind, traffic]) => {
      const of = kind === "read" || kind === "write" ? sizes[kind] : null;
      return [kind, count(traffic.requests), bytes(traffic.bytes), size(of?.mean), size(of?.median), size(of?.largest)];
    });
  return [list, table("Requests by kind", ["Kind", "Requests", "Bytes", "Mean", "Median", "Largest"], rows)];
}

function curves(value: HitCurves): (Node | null)[] {
  const policies = [...new Set(value.rows.map(({ policy }) => policy))].sort(byName);
  const sizes = [...new Set(value.rows.map(({ bytes }) => bytes))].sort((a, b) => a - b);
  const hits = new Map(value.rows.map((row) => [`${row.policy} ${row.bytes}`, row.hit_ratio]));
  const hit = (policy: string, size: number): number => hits.get(`${policy} ${size}`) ?? 0;
  // Ten lines over each other tell nothing: the best possible, what is usual, and the best of the others.
  const last = (policy: string): number => sizes.reduce((sum, size) => sum + hit(policy, size), 0);
  const shown = [...policies].sort((a, b) => last(b) - last(a));
  const drawn = shown.filter((policy, at) => at < 4 || policy === "lru" || policy === "duel");
  const plot = new LinePlot({ title: "Hits by size of the cache", x: bytes, y: ratio, most: 1 });
  plot.show(drawn.map((name) => ({ name, points: sizes.map((size) => [size, hit(name, size)]) })));
  const rows = shown.map((policy) => [policy, ...sizes.map((size) => ratio(hit(policy, size)))]);
  const told = `${some(value.references, "look-up")} of ${some(value.distinct_blocks, "block")} of ${bytes(value.block)}; opt is the best that any policy could do`;
  const wide = h("div", { class: "scrolls", tabindex: 0, role: "region", "aria-label": "Hits of every policy" });
  wide.append(table("Hits", ["Policy", ...sizes.map((size) => bytes(size))], rows));
  return [h("p", { class: "big-note" }, told), plot.element, wide];
}

function tuned(value: TunedCache[]): (Node | null)[] {
  return value.flatMap(({ bytes: size, policy, saved, saved_error, config, candidates, usual }) => {
    const verdict =
      policy === null
        ? `${bytes(size)}: leave the policy as it is. None is expected to hit more often than ${usual.policy} by more than chance.`
        : `${bytes(size)}: ${policy}, which is expected to miss ${ratio(saved)} (± ${ratio(saved_error)}) less often than lru.`;
    const rows = candidates
      .slice(0, CANDIDATES)
      .map((one) => [one.policy, ratio(one.hit_ratio), `± ${ratio(one.error)}`]);
    return [
      h("p", { class: "verdict" }, verdict),
      h("pre", {}, config.trim()),
      table(`The best of ${count(candidates.length)}, with ${bytes(size)}`, ["Policy", "Hits", "Of chance"], rows),
    ];
  });
}

function predicted(value: Prediction): (Node | null)[] {
  const rows = value.cases.map((one) => [
    bytes(one.memory),
    ratio(one.hit),
    `${count(one.clients)}${one.at_least ? " or more" : ""}`,
    `${one.response_ms.toFixed(1)} ms`,
    one.bottleneck ?? NONE,
    one.next.map(({ twice, clients }) => `${twice} ${count(clients)}`).join(", ") || NONE,
  ]);
  const plot = new LinePlot({
    title: "Response by number of clients",
    x: count,
    y: (ms) => `${ms.toFixed(ms < 10 ? 1 : 0)} ms`,
    most: value.target_ms * 2,
  });
  plot.show(
    value.cases.map(({ memory, curve }) => {
      const step = Math.max(1, Math.ceil(curve.length / POINTS));
      const points = curve.filter((_, at) => at % step === 0 || at < 8 || at === curve.length - 1);
      return { name: bytes(memory), points: points.map((one): [number, number] => [one.clients, one.response_ms]) };
    }),
  );
  const told =
    `A server with the demands of ${value.profile}: clients that ask for ${bytes(value.block)} and pause ` +
    `${value.think_ms.toFixed(1)} ms, with answers in ${value.target_ms} ms at the most.`;
  const columns = ["Memory", "Without the store", "Clients held", "Response then", "Gives out", "Twice as much of it"];
  const wide = h("div", { class: "scrolls", tabindex: 0, role: "region", "aria-label": "Clients by memory" });
  wide.append(table("Clients by memory", columns, rows));
  return [
    h("p", { class: "big-note" }, told),
    wide,
    plot.element,
    ...value.notes.map((note) => h("p", { class: "big-note" }, `Note: ${note}.`)),
  ];
}
