// A home with images and thousands of disks, a server on it, clients, and a browser.

import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, openSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import { randomFillSync } from "node:crypto";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const SOJOURN = process.env.SOJOURN ?? fileURLToPath(new URL("../../target/debug/sojourn", import.meta.url));
const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";
/** Longer than anything takes, on a slow machine that is busy. */
export const PATIENCE = 180_000;
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const MIB = 1 << 20;
/** What an image is imported from becomes its source, whatever is in the name. */
export const MARKUP = "<img src=x onerror=document.title='owned'>.raw";

/** Waits until `check` gives something. */
export async function until(what, check) {
  const end = Date.now() + PATIENCE;
  for (;;) {
    const found = await check();
    if (found) return found;
    if (Date.now() > end) throw new Error(`still waiting: ${what}`);
    await new Promise((ready) => setTimeout(ready, 50));
  }
}

/** A request; gives its status, headers and text. */
export function get(url, headers = {}) {
  return new Promise((ready, fail) => {
    const request = http.get(url, { headers }, (answer) => {
      let text = "";
      answer.setEncoding("utf8");
      answer.on("data", (part) => (text += part));
      answer.on("end", () => ready({ status: answer.statusCode, headers: answer.headers, text }));
    });
    request.on("error", fail);
  });
}

/** A request of a token's bearer, with a body if there is one, bytes or what becomes JSON; gives its status and text. */
export function send(method, url, token, body) {
  return new Promise((ready, fail) => {
    const bytes = Buffer.isBuffer(body);
    const sent = bytes ? body : body && JSON.stringify(body);
    const type = bytes ? "application/octet-stream" : "application/json";
    const headers = { authorization: `Bearer ${token}`, "content-type": type };
    const request = http.request(url, { method, headers }, (answer) => {
      let text = "";
      answer.setEncoding("utf8");
      answer.on("data", (part) => (text += part));
      answer.on("end", () => ready({ status: answer.statusCode, text }));
    });
    request.on("error", fail);
    request.end(sent);
  });
}

/** A home and its server. */
export class Lab {
  /** `settings` are lines of the section `serve` of its configuration. */
  constructor(settings = "") {
    this.dir = mkdtempSync(join(tmpdir(), "sj-web-"));
    this.home = join(this.dir, "home");
    this.clients = [];
    this.http = "127.0.0.1:0";
    this.run("init");
    // A small cache, so that a forecast is made soon, and little room, so that a disk can be full; what clients ask is
    // recorded.
    const file = join(this.home, "sojourn.toml");
    const text = readFileSync(file, "utf8")
      .replace('# size = "256MiB"', 'size = "16MiB"')
      .replace(/^# disk_space = .*$/m, 'disk_space = "24MiB"')
      .replace(/^# dir = "traces".*$/m, 'dir = "traces"');
    if (!['disk_space = "24MiB"', 'size = "16MiB"', 'dir = "traces"'].every((line) => text.includes(`\n${line}`)))
      throw new Error("sojourn.toml has other defaults");
    writeFileSync(file, text.replace(/^\[serve\]$/m, `[serve]\n${settings}`));
    const image = join(this.dir, "debian-12.raw");
    writeFileSync(image, randomFillSync(Buffer.alloc(32 * MIB)));
    truncateSync(image, 4096 * MIB);
    this.run("image", "import", image, "debian");
    const odd = join(this.dir, MARKUP);
    writeFileSync(odd, randomFillSync(Buffer.alloc(MIB)));
    this.run("image", "import", odd, "odd");
  }

  /** Runs a command that must succeed. */
  run(...args) {
    const done = spawnSync(SOJOURN, ["--home", this.home, ...args], { encoding: "utf8", cwd: this.dir });
    if (done.status !== 0)
      throw new Error(`sojourn ${args.join(" ")}: ${done.error ?? ""}${done.stdout}${done.stderr}`);
    return done.stdout;
  }

  /** Starts a server where the last one listened. */
  async serve(...more) {
    const log = openSync(join(this.dir, "log"), "a");
    const args = ["--home", this.home, "serve", "--http", this.http, ...more];
    this.server = spawn(SOJOURN, args, { stdio: ["ignore", log, log] });
    this.ended = once(this.server, "exit");
    const status = await until("the server", () => {
      if (this.server.exitCode !== null) throw new Error(readFileSync(join(this.dir, "log"), "utf8"));
      const told = JSON.parse(this.run("status", "--json"));
      return told.running && told.pid === this.server.pid && told.http && told;
    });
    this.http = status.http;
    this.url = `http://${this.http}`;
  }

  /** Kills the server as a crash would. */
  async kill() {
    this.server.kill("SIGKILL");
    await this.ended;
  }

  /** Stops the server; it must end well. */
  async stop() {
    this.server.kill("SIGTERM");
    const [code] = await this.ended;
    if (code !== 0) throw new Error(readFileSync(join(this.dir, "log"), "utf8"));
  }

  /** Makes the disks `desk-1` and so on, by the socket that `sojourn disk create` uses. */
  async disks(number) {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 8 });
    const make = (name) =>
      new Promise((ready, fail) => {
        const body = JSON.stringify({ verb: "create", name, from: "debian", ephemeral: false, size: null });
        const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(body) };
        const socketPath = join(this.home, "control.sock");
        const request = http.request({ socketPath, agent, method: "POST", path: "/v1/disk", headers }, (answer) => {
          answer.resume();
          answer.on("end", () =>
            answer.statusCode === 200 ? ready() : fail(new Error(`${name}: ${answer.statusCode}`)),
          );
        });
        request.on("error", fail);
        request.end(body);
      });
    await Promise.all(Array.from({ length: number }, (_, at) => make(`desk-${at + 1}`)));
    agent.destroy();
  }

  /** What netboot leaves: a machine that a rule gave a disk, and one that waits. */
  machines() {
    const machine = [
      '[[machine]]\nname = "lab-1"\nmac = "52:54:00:00:00:01"\nuuid = "0f0e0d0c-0b0a-0908-0706-050403020100"',
      'disk = "desk-1"\nmethod = "nbd"\nappend = ["console=ttyS0"]\nby_rule = true\n',
    ].join("\n");
    writeFileSync(join(this.home, "machines.toml"), machine);
    const waiting = {
      mac: "52:54:00:00:00:02",
      uuid: "1f0e0d0c-0b0a-0908-0706-050403020100",
      first_seen: 1_700_000_000,
      last_seen: 1_700_000_060,
      times: 1234,
    };
    writeFileSync(join(this.home, "machines-seen.json"), JSON.stringify([waiting]));
  }

  /** A client of its own, which asks for the lines `[op, offset, length]` again and again, each so many ms
   * after the one before, until the lab ends. */
  client(disk, lines, pause) {
    const file = join(this.dir, `load-${this.clients.length}.csv`);
    writeFileSync(
      file,
      ["time_ms,op,offset,length", ...lines.map((line, at) => [at * pause, ...line].join(","))].join("\n"),
    );
    const target = `nbd+unix:///${disk}?socket=${join(this.home, "nbd.sock")}`;
    const args = ["replay", "--allow-writes", "--wrap", "--repeat", "--speed", "1", "--for", "3600s", file, target];
    this.start(...args);
  }

  /** Starts a command that goes on until the lab ends. */
  start(...args) {
    this.clients.push(spawn(SOJOURN, ["--home", this.home, ...args], { stdio: "ignore" }));
  }

  /** Ends everything. */
  async end() {
    for (const client of this.clients) client.kill("SIGKILL");
    if (this.server?.exitCode === null) {
      this.server.kill("SIGKILL");
      await this.ended;
    }
    rmSync(this.dir, { recursive: true, force: true });
  }
}

/** A sequence that is the same every time: numbers from 0 to below 1. */
export function dice(seed) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

/** Reads all over the image, and writes here and there. */
export function office(seed, number, writes = 0.2) {
  const random = dice(seed);
  return Array.from({ length: number }, () => {
    const hot = random() < 0.7;
    const offset = Math.floor((hot ? random() ** 2 * 12 : random() * 32) * 256) * 4096;
    const write = random() < writes;
    return [write ? "W" : "R", write ? offset % (4 * MIB) : offset, random() < 0.8 ? 4096 : 16_384];
  });
}

/** A page of a lab at `hash`; its `wrong` gathers what must not happen on any, but for what `excused` says. */
export async function visit(browser, lab, hash, { url = lab.url, excused = /net::ERR_/, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  page.wrong = [];
  page.on("pageerror", (error) => page.wrong.push(error.message));
  page.on("console", (message) => {
    // What it says while the server is away is the browser's own.
    if (message.type() === "error" && !excused.test(message.text())) page.wrong.push(message.text());
  });
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== url) page.wrong.push(`asks ${request.url()}`);
  });
  await page.goto(`${url}/#${hash}`);
  return page;
}

/** What keeps people out of a page as it stands, as axe finds it; an empty list when nothing does. */
export async function obstacles(page) {
  // A server that says nothing for a while dims the page.
  await page.evaluate(() => document.querySelector("main").style.setProperty("opacity", "1", "important"));
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document));
  const where = (node) => `${node.target} ${node.failureSummary}`;
  return violations.map((one) => `${one.impact} ${one.id}: ${one.nodes.map(where).join("; ")}`);
}

/** By how many pixels a page is wider than the window. */
export const overhang = (page) =>
  page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);

/** A browser without a window. */
export function browse(...args) {
  // In a container, or as root, its sandbox cannot be; the pages are our own.
  const sandbox = process.getuid() === 0 ? ["--no-sandbox"] : [];
  return chromium.launch({ executablePath: CHROMIUM, args: [...sandbox, "--disable-gpu", ...args] });
}
