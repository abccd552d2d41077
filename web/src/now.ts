// Now: what is wrong first, then how much more the server holds, then what it does.

import type { Client, Now, Trouble } from "./api.ts";
import { BINARY, Chart, heatMap } from "./charts.ts";
import { h, mark, say } from "./dom.ts";
import { bytes, count, duration, NONE, percent, rate, some, time } from "./format.ts";
import type { Live } from "./live.ts";
import type { Page } from "./page.ts";

/** A number with its name. */
class Figure {
  readonly element: HTMLElement;
  private readonly value = h("dd");
  private readonly note = h("dd", { class: "note" });

  constructor(name: string) {
    this.element = h("div", { class: "figure" }, h("dt", {}, name), this.value, this.note);
  }

  show(value: string, note = ""): void {
    say(this.value, value);
    say(this.note, note);
  }
}

/** Rows of text below fixed titles. */
class Lines {
  readonly element: HTMLElement;
  private readonly body = h("tbody");

  constructor(
    title: string,
    columns: [string, string?][],
    private readonly empty: string,
  ) {
    const head = columns.map(([name, look]) => h("th", { scope: "col", class: look ?? "" }, name));
    const table = h("table", {}, h("caption", {}, title), h("thead", {}, h("tr", {}, ...head)), this.body);
    this.looks = columns.map(([, look]) => look ?? "");
    this.element = h("section", { class: "lines" }, table);
  }

  private readonly looks: string[];

  show(rows: string[][], classes: string[] = []): void {
    const wanted = rows.length === 0 ? [[this.empty]] : rows;
    while (this.body.rows.length > wanted.length) this.body.deleteRow(-1);
    wanted.forEach((texts, at) => {
      const old = this.body.rows[at];
      const line = old?.cells.length === texts.length ? old : h("tr");
      if (line !== old) {
        texts.forEach((_, column) => {
          line.append(
            column === 0
              ? h("th", { scope: "row", class: this.looks[0] ?? "" })
              : h("td", { class: this.looks[column] ?? "" }),
          );
        });
        if (old) old.replaceWith(line);
        else this.body.append(line);
        if (rows.length === 0) mark(line.cells[0] as Element, "colspan", String(this.looks.length));
      }
      line.className = classes[at] ?? "";
      texts.forEach((text, column) => say(line.cells[column] as Element, text));
    });
  }
}

/** What the cache does, and what another one would do. */
class Cache {
  readonly element: HTMLElement;
  private readonly sentence = h("p", { class: "sentence" });
  private readonly table = h("tbody");
  private readonly head = ["half", "same", "double"].map(() => h("th", { scope: "col", class: "number" }));
  private readonly forecast: HTMLTableElement;

  constructor() {
    this.forecast = h(
      "table",
      { class: "forecast" },
      h("caption", {}, "Hits that sizes and policies would give, of all look-ups of late"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Policy"), ...this.head)),
      this.table,
    );
    this.element = h("section", { class: "cache" }, h("h2", {}, "Cache"), this.sentence, this.forecast);
  }

  show({ cache, store, point }: Now): void {
    const forecast = cache.forecast;
    const hits = point.hit_percent ?? cache.hit_percent;
    const parts = [
      `${bytes(cache.bytes)} of ${bytes(cache.capacity_bytes)} in ${some(cache.entries, "chunk")}, ${cache.policy}`,
      hits === null
        ? "nothing was looked up yet"
        : `${percent(hits)} hits ${point.hit_percent === null ? "since the start" : "now"}`,
      `${bytes(store.read_bytes)}/s come from the store`,
    ];
    this.forecast.hidden = forecast === null;
    if (forecast === null) {
      say(
        this.sentence,
        `${parts.join("; ")}. What other sizes and policies would give is told when enough was asked.`,
      );
      return;
    }
    const { now, best, policies } = forecast;
    const sign = (value: number) => (value >= now.same ? "+" : "−");
    const gain = (value: number) => `${sign(value)}${Math.abs((value - now.same) * 100).toFixed(1)}`;
    const better = policies.find((row) => row.policy === best);
    const advice = [`twice the memory ${gain(now.double)} points`, `half of it ${gain(now.half)}`];
    if (better && best !== now.policy) advice.push(`${best} in place of ${now.policy} ${gain(better.same)}`);
    say(this.sentence, `${parts.join("; ")}. Hits would change: ${advice.join(", ")}.`);
    [0.5, 1, 2].forEach((factor, at) => say(this.head[at] as Element, bytes(cache.capacity_bytes * factor)));
    const first = (policy: string) => (policy === now.policy ? 0 : 1);
    const rows = [...policies].sort((a, b) => first(a.policy) - first(b.policy) || b.same - a.same);
    while (this.table.rows.length > rows.length) this.table.deleteRow(-1);
    rows.forEach((row, at) => {
      const line = this.table.rows[at] ?? this.line();
      const remark = row.policy === now.policy ? " in use" : row.policy === best ? " best here" : "";
      say(line.cells[0] as Element, `${row.policy}${remark}`);
      line.className = row.policy === now.policy ? "used" : row.policy === best ? "best" : "";
      [row.half, row.same, row.double].forEach((ratio, column) => {
        const cell = line.cells[column + 1] as HTMLElement;
        say(cell.lastElementChild as Element, percent(ratio * 100));
        (cell.firstElementChild as HTMLElement).style.width = `${(ratio * 100).toFixed(1)}%`;
      });
    });
  }

  private line(): HTMLTableRowElement {
    const cell = () => h("td", { class: "number" }, h("span", { class: "bar" }), h("span"));
    const line = h("tr", {}, h("th", { scope: "row" }), cell(), cell(), cell());
    this.table.append(line);
    return line;
  }
}

export class NowPage implements Page {
  readonly title = "Now";
  readonly rows = false;
  readonly element: HTMLElement;

  private readonly troubles = h("ul", { class: "troubles" });
  private readonly calm = h("p", { class: "calm" });
  private readonly more = h("p", { class: "big" });
  private readonly moreNote = h("p", { class: "big-note" });
  private readonly ends = h("p", { class: "big-note" });
  private readonly room = h(
    "section",
    { class: "room" },
    h("h2", {}, "Head-room"),
    this.more,
    this.moreNote,
    this.ends,
  );
  private readonly clients = new Figure("Clients");
  private readonly requests = new Figure("Requests/s");
  private readonly read = new Figure("Read");
  private readonly written = new Figure("Written");
  private readonly hits = new Figure("Cache hits");
  private readonly p99 = new Figure("p99");
  private readonly heat = heatMap();
  private readonly load = new Chart({
    title: "Requests per second",
    height: 128,
    format: rate,
    lines: [
      { name: "reads", colour: "--read", value: (moment) => moment.point.reads, fill: true },
      { name: "writes", colour: "--write", value: (moment) => moment.point.writes },
    ],
  });
  private readonly flow = new Chart({
    title: "Bytes per second",
    height: 128,
    steps: BINARY,
    format: bytes,
    lines: [
      { name: "read", colour: "--read", value: (moment) => moment.point.read_bytes, fill: true },
      { name: "written", colour: "--write", value: (moment) => moment.point.written_bytes },
    ],
  });
  private readonly kinds = new Lines(
    "Time of requests in the last second",
    [
      ["Kind"],
      ["requests", "number"],
      ["mean", "number wide"],
      ["p50", "number"],
      ["p90", "number wide"],
      ["p99", "number"],
      ["p99.9", "number"],
    ],
    "Nothing was asked in the last second.",
  );
  private readonly cache = new Cache();
  private readonly busiest = new Lines(
    "Busiest clients",
    [
      ["Client"],
      ["uses"],
      ["requests/s", "number"],
      ["read/s", "number"],
      ["written/s", "number"],
      ["held back/s", "number wide"],
    ],
    "No client is connected.",
  );

  constructor() {
    const figures = [this.clients, this.requests, this.read, this.written, this.hits, this.p99];
    this.element = h(
      "div",
      { class: "now" },
      h("section", { class: "state", "aria-label": "Troubles" }, this.troubles, this.calm),
      this.room,
      h("dl", { class: "figures" }, ...figures.map((figure) => figure.element)),
      h("div", { class: "left" }, this.heat.element, this.busiest.element),
      h("div", { class: "right" }, this.load.element, this.flow.element, this.kinds.element, this.cache.element),
    );
  }

  update(live: Live): void {
    const now = live.now;
    if (!now) return;
    const { point } = now;
    this.showTroubles(now);
    this.showRoom(now);
    this.clients.show(
      count(point.clients),
      `${some(now.connections, "connection")}, ${some(now.open_disks, "open disk")}`,
    );
    this.requests.show(
      rate(point.reads + point.writes + point.flushes),
      `${rate(point.reads)} reads, ${rate(point.writes)} writes`,
    );
    this.read.show(`${bytes(point.read_bytes)}/s`, `${bytes(now.store.read_bytes)}/s of the store`);
    this.written.show(
      `${bytes(point.written_bytes)}/s`,
      point.held_back > 0 ? `held back ${rate(point.held_back)}/s` : `${rate(point.flushes)} flushes/s`,
    );
    const hits = point.hit_percent;
    this.hits.show(
      hits === null ? NONE : percent(hits),
      now.cache.hit_percent === null ? "" : `${percent(now.cache.hit_percent)} since the start`,
    );
    this.p99.show(
      point.latency ? time(point.latency.p99_us) : NONE,
      point.latency ? `median ${time(point.latency.p50_us)}` : "of reads and writes",
    );
    this.kinds.show(
      Object.entries(now.latency).map(([kind, times]) => [
        kind,
        count(times.requests),
        time(times.mean_us),
        time(times.p50_us),
        time(times.p90_us),
        time(times.p99_us),
        time(times.p999_us),
      ]),
    );
    this.cache.show(now);
    this.busiest.show(now.busiest.map(client));
    for (const chart of [this.heat, this.load, this.flow]) chart.draw(live);
  }

  private showTroubles({
    troubles,
    troubles_total: total,
    panics,
    connection_faults: faults,
    connections_refused: refused,
    store,
    server,
  }: Now): void {
    const lines = troubles.map(trouble);
    if (total > troubles.length) lines.push(["slow", `and ${some(total - troubles.length, "more disk")}: see Disks`]);
    if (panics > 0)
      lines.push(["full", `${some(panics, "connection")} lost by a fault of the program: its log has the rest`]);
    if (store.failures > 0)
      lines.push(["full", `${some(store.failures, "chunk")} could not be had since the start: run sojourn verify`]);
    while (this.troubles.children.length > lines.length) this.troubles.lastElementChild?.remove();
    lines.forEach(([look, text], at) => {
      const line = this.troubles.children[at] ?? this.troubles.appendChild(h("li"));
      line.className = look;
      say(line, text);
    });
    const since = `up ${duration(server.uptime_seconds)}`;
    const turned = [
      faults > 0 ? some(faults, "broken connection") : "",
      refused > 0 ? `${count(refused)} turned away` : "",
    ];
    const told = turned.filter((text) => text !== "").join(", ");
    say(this.calm, lines.length > 0 ? "" : `Nothing is full or slow; ${since}${told && `; since the start ${told}`}.`);
  }

  private showRoom({ head_room: room, head_room_text: text }: Now): void {
    if (!room || room.more === null) {
      say(this.more, NONE);
      say(this.moreNote, text ?? "The server has just started.");
      say(this.ends, "");
      mark(this.room, "data-room", null);
      return;
    }
    const busy = { cpu: room.cpu_percent, backend: room.backend_percent }[room.bottleneck ?? ""];
    const what = room.bottleneck === "cpu" ? "the processors are" : "the store is";
    const limit = room.limit === "response" ? "answers take too long" : `${what} 80 % busy`;
    say(this.more, `${room.limit === "none" ? "≥ " : ""}${count(room.more)}`);
    say(this.moreNote, `more ${room.more === 1 ? "client" : "clients"} like the ${count(room.clients)} of now`);
    const first = room.limit === "none" ? `Nothing gives out before; ${what} busiest` : `Then ${limit}`;
    const today = busy === null || busy === undefined ? "" : `, now ${busy.toFixed(0)} %`;
    const answer =
      room.response_us === null || room.response_then_us === null
        ? ""
        : `; an answer takes ${time(room.response_us)} now, ${time(room.response_then_us)} then`;
    say(this.ends, `${first}${today}${answer}.`);
    mark(this.room, "data-room", room.more === 0 ? "none" : room.more < room.clients / 4 ? "little" : "some");
  }
}

function trouble({ disk, state, seconds, why }: Trouble): [string, string] {
  return [state, `${disk === null ? "The store" : `Disk ${disk}`} has been ${state} for ${duration(seconds)}: ${why}`];
}

function client(row: Client): string[] {
  const uses =
    row.export === null ? NONE : row.exports > 1 ? `${row.export} and ${count(row.exports - 1)} more` : row.export;
  return [
    row.client,
    uses,
    rate(row.requests),
    bytes(row.read_bytes),
    bytes(row.written_bytes),
    row.held_back > 0 ? rate(row.held_back) : NONE,
  ];
}
