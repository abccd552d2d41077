// The dashboard in a real browser, before a real server with two thousand disks.

import assert from "node:assert/strict";
import http from "node:http";
import { after, before, test } from "node:test";
import { Document } from "./document.mjs";
import { browse, get, Lab, MARKUP, obstacles, office, overhang, PATIENCE, send, until, visit } from "./lab.mjs";

const DISKS = 2000;
/** What a first visit may cost, in bytes as they are sent. */
const MOST_BYTES = 150 << 10;

/** A trace that is sent. */
const LOAD = Buffer.from(
  ["time_ms,op,offset,length", ...office(9, 2000).map((line, at) => [at, ...line].join(","))].join("\n"),
);
/** Writes more than a disk may have of its own. */
const FILL = Array.from({ length: 64 }, (_, at) => ["W", at * (1 << 20), 1 << 20]);

let lab, browser;

before(async () => {
  lab = new Lab();
  await lab.serve();
  [browser] = await Promise.all([browse("--host-resolver-rules=MAP rebound.example 127.0.0.1"), lab.disks(DISKS)]);
  lab.run("disk", "snapshot", "desk-3", "before-upgrade");
  lab.machines();
  lab.client("desk-1", office(1, 2000), 1);
  lab.client("desk-2", office(2, 2000), 2);
});

after(async () => {
  await browser?.close();
  await lab?.end();
});

/** A page at `hash` that hears from the server. */
async function open(hash, options = {}) {
  const page = await visit(browser, lab, hash, options);
  await page.waitForSelector('[data-state="live"]');
  return page;
}

async function close(page) {
  assert.deepEqual(page.wrong, []);
  await page.context().close();
}

const text = (page, selector) => page.locator(selector).first().textContent();

test("Now shows what the server does", async () => {
  const page = await open("now");
  await page.waitForFunction(() => document.querySelector(".figure dd").textContent === "2");
  await page.waitForFunction(() => /^(≥\s)?[\d,]+$/.test(document.querySelector(".big").textContent));
  await page
    .locator(".big-note", { hasText: /more clients? like the 2 of now/ })
    .first()
    .waitFor();
  await page.waitForSelector(".forecast .used");
  assert.match(await text(page, ".sentence"), /Hits would change: twice the memory/);
  for (const kind of ["read", "write"]) await page.getByRole("rowheader", { name: kind, exact: true }).waitFor();
  await page.getByRole("cell", { name: "desk-1", exact: true }).waitFor();
  for (const title of ["Time of reads and writes", "Requests per second", "Bytes per second"]) {
    await page.getByRole("img", { name: title }).waitFor();
  }
  await page.waitForFunction(() => /more/.test(document.title));
  await close(page);
});

test("trouble comes first, and in the title", async () => {
  lab.client("desk-4", FILL, 50);
  const page = await open("now");
  const trouble = page.locator(".troubles li.full");
  await trouble.filter({ hasText: "Disk desk-4 has been full for" }).waitFor();
  await page.waitForFunction(() => document.title.startsWith("("));
  await close(page);
});

test("two thousand disks are searched and sorted, and few are in the document", async () => {
  const page = await open("disks");
  const status = page.getByRole("status").filter({ hasText: "disks" });
  await page.waitForFunction((all) => document.querySelector(".found").textContent === all, "2,000 disks");
  const names = () => page.locator(".rows tbody th a").allTextContents();
  assert.deepEqual((await names()).slice(0, 3), ["desk-1", "desk-2", "desk-3"], "in natural order");
  assert.equal((await names())[9], "desk-10");
  assert.ok((await page.locator(".rows tbody tr").count()) < 100);
  const table = page.getByRole("table");
  assert.equal(await table.getAttribute("aria-rowcount"), String(DISKS + 1));

  // To the end, by the keyboard.
  await page.getByRole("region", { name: "Rows of disks" }).focus();
  await page.keyboard.press("End");
  await page.getByRole("link", { name: `desk-${DISKS}`, exact: true }).waitFor();
  assert.ok((await page.locator(".rows tbody tr").count()) < 100);
  const last = page.locator(".rows tbody tr", { has: page.getByRole("link", { name: `desk-${DISKS}`, exact: true }) });
  assert.equal(await last.getAttribute("aria-rowindex"), String(DISKS + 1));

  await page.keyboard.press("/");
  await page.keyboard.type("desk-199");
  await page.waitForFunction(() => document.querySelector(".found").textContent === "11 of 2,000 disks");
  assert.equal((await names())[0], "desk-199");
  await page.keyboard.type("x");
  await page.getByText("No disk has all of these words.").waitFor();
  await page.getByRole("searchbox").fill("in use");
  await page.waitForFunction(() =>
    ["desk-1", "desk-2"].every((name, at) => document.querySelectorAll(".rows tbody th a")[at]?.textContent === name),
  );

  await page.getByRole("searchbox").fill("");
  await page.getByRole("button", { name: "Private" }).focus();
  await page.keyboard.press("Enter");
  const privately = page.getByRole("columnheader", { name: "Private" });
  assert.equal(await privately.getAttribute("aria-sort"), "descending");
  await page.waitForFunction(() => document.querySelector(".rows tbody th a").textContent === "desk-4");
  await page.keyboard.press("Enter");
  assert.equal(await privately.getAttribute("aria-sort"), "ascending");
  await status.waitFor();

  await page.getByRole("searchbox").fill("desk-3");
  await page.getByRole("link", { name: "desk-3", exact: true }).click();
  const pane = page.getByRole("complementary", { name: "Disk" });
  await pane.getByText("before-upgrade").waitFor();
  await pane.getByText("debian:1").waitFor();
  await page.keyboard.press("Escape");
  await pane.waitFor({ state: "hidden" });
  await close(page);
});

test("a disk's map follows its guest while it is open, and is asked for no longer than that", async () => {
  const page = await open("disks/desk-6");
  let asked = 0;
  page.on("request", (request) => (asked += request.url().includes("/map?") ? 1 : 0));
  const pane = page.getByRole("complementary", { name: "Disk" });
  const summary = pane.locator("summary", { hasText: "Map" });
  await summary.focus();
  await page.keyboard.press("Enter");
  const row = (place) => pane.getByRole("row", { name: new RegExp(`^${place}`) });
  await row("zero").filter({ hasText: "GiB" }).waitFor();
  await row("private").filter({ hasText: "–" }).first().waitFor();
  lab.client("desk-6", [["W", 0, 1 << 20]], 50);
  await row("private").filter({ hasText: "1.0 MiB" }).waitFor();
  const picture = pane.getByRole("img", { name: /^Map of desk-6: 2,048 cells of 2.0 MiB.*private 1.0 MiB/ });
  await picture.waitFor();
  const colours = await picture.evaluate((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const seen = new Set();
    for (let at = 0; at < data.length; at += 4) seen.add(`${data.slice(at, at + 4).join(" ")}`);
    const probe = document.createElement("span");
    const style = getComputedStyle(document.documentElement);
    const of = (place) => {
      probe.style.color = style.getPropertyValue(`--at-${place}`);
      document.body.append(probe);
      return `${getComputedStyle(probe).color.match(/\d+/g).join(" ")} 255`;
    };
    const has = Object.fromEntries(
      ["private", "stored", "kept", "cached", "unread", "zero", "waiting"].map((place) => [place, seen.has(of(place))]),
    );
    probe.remove();
    return has;
  });
  // Whoever read the image before decides what of it the server knows, and still has in memory.
  const { stored, kept, cached, unread, ...colour } = colours;
  assert.ok(stored || kept || cached || unread, JSON.stringify(colours));
  assert.deepEqual(colour, { private: true, zero: true, waiting: false });
  // Asked at once: the picture moves from under a pointer that rests when a fact above it gets another line.
  const reading = () =>
    picture.evaluate((canvas) => {
      const { left, top } = canvas.getBoundingClientRect();
      canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: left + 2, clientY: top + 2 }));
      // Between a number and its unit no line breaks.
      return document.querySelector(".map .cell").textContent.replace(/\s/g, " ");
    });
  await until("the first cell", async () => (await reading()).startsWith("At 0 B: private 1.0 MiB"));

  await summary.click();
  await picture.waitFor({ state: "hidden" });
  const before = asked;
  const clock = async () => JSON.parse((await get(`${lab.url}/api/v1/status`)).text).point.at;
  const began = await clock();
  await until("three seconds", async () => (await clock()) > began + 3);
  assert.equal(asked, before);
  assert.ok(before > 1);
  await close(page);
});

test("a disk that a command makes or removes is there or gone by itself", async () => {
  const page = await open("disks");
  await page.waitForSelector(".rows tbody th a");
  lab.run("disk", "create", "visitor", "--from", "debian", "--ephemeral");
  await page.getByRole("searchbox").fill("visitor");
  await page.getByRole("link", { name: "visitor" }).waitFor();
  lab.run("disk", "remove", "visitor");
  await page.getByRole("link", { name: "visitor" }).waitFor({ state: "detached" });
  await close(page);
});

test("markup in a name is text", async () => {
  const page = await open("images");
  await page.getByRole("link", { name: "odd:1" }).click();
  const pane = page.getByRole("complementary", { name: "Image version" });
  await pane.getByText(MARKUP).waitFor();
  await page.getByRole("cell", { name: MARKUP }).waitFor();
  assert.equal(await page.locator("img").count(), 0);
  await page.goto(`${lab.url}/#disks/${encodeURIComponent("<b id=owned>x</b>")}`);
  await page.getByRole("heading", { name: "<b id=owned>x</b>" }).waitFor();
  assert.equal(await page.locator("#owned").count(), 0);
  assert.doesNotMatch(await page.title(), /owned/);
  await close(page);
});

test("a version tells what stands on it", async () => {
  const page = await open("images");
  await page.getByRole("cell", { name: "disk desk-1 and 2,000 more" }).waitFor();
  await page.getByRole("searchbox").fill("desk-1999");
  await page.getByRole("link", { name: "odd:1" }).waitFor({ state: "detached" });
  await page.getByRole("searchbox").fill("debian-12.raw");
  await page.getByRole("link", { name: "debian:1" }).click();
  const pane = page.getByRole("complementary", { name: "Image version" });
  await pane.getByText("snapshot desk-3@before-upgrade").or(pane.getByText("and 1,801 more")).first().waitFor();
  await pane.getByText("disk desk-10", { exact: true }).waitFor();
  await close(page);
});

test("a version's lineage is a tree of what it came from and what came of it", async () => {
  lab.run("disk", "commit", "desk-7", "debian:tools");
  lab.run("disk", "create", "tooled", "--from", "debian:tools");
  const page = await open("images");
  await page.getByRole("link", { name: "debian:tools" }).click();
  const pane = page.getByRole("complementary", { name: "Image version" });
  const summary = pane.locator("summary", { hasText: "Lineage" });
  await summary.focus();
  await page.keyboard.press("Enter");
  const item = (text) => pane.getByRole("listitem").filter({ hasText: text });
  await item(/^debian:1 /).waitFor();
  const tools = item(/^debian:tools .*committed from disk desk-7/);
  await tools.getByRole("link", { name: "disk tooled" }).waitFor();
  assert.equal(await tools.locator("> a").getAttribute("aria-current"), "true");
  await item(/^debian:1 /)
    .locator("summary", { hasText: "disks" })
    .click();
  await pane.getByText("and 1,", { exact: false }).first().waitFor();
  assert.ok((await pane.getByRole("listitem").count()) < 200, "few of two thousand are in the document");
  // A name in it leads there.
  await pane.getByRole("link", { name: "debian:1", exact: true }).click();
  await pane.getByRole("heading", { name: "debian:1" }).waitFor();
  lab.run("disk", "remove", "tooled", "--yes");
  lab.run("image", "remove", "debian:tools");
  await close(page);
});

test("Machines has those that wait first, and tells how to give them a disk", async () => {
  const page = await open("machines");
  await page.getByRole("link", { name: "52:54:00:00:00:02" }).waitFor();
  assert.deepEqual(await page.locator(".rows tbody th a").allTextContents(), ["52:54:00:00:00:02", "lab-1"]);
  await page.getByRole("cell", { name: "starts from desk-1" }).waitFor();
  await page.getByRole("searchbox").fill("waits disk");
  await page.getByRole("link", { name: "lab-1" }).waitFor({ state: "detached" });
  await page.getByRole("link", { name: "52:54:00:00:00:02" }).click();
  const pane = page.getByRole("complementary", { name: "Machine" });
  await pane.getByText("1,234 times").waitFor();
  await pane.getByText("sojourn machine assign 52:54:00:00:00:02 --from IMAGE --name NAME").waitFor();
  // Once it has one, it is another machine for the page.
  lab.run("machine", "assign", "52:54:00:00:00:02", "--disk", "desk-2", "--name", "lab-2");
  await pane.getByText("There is no such machine.").waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("searchbox").fill("");
  await page.getByRole("link", { name: "lab-2" }).click();
  await pane.getByText("by a person").waitFor();
  lab.run("machine", "forget", "lab-2");
  await page.getByRole("link", { name: "52:54:00:00:00:02" }).waitFor();
  await page.getByRole("link", { name: "lab-1" }).click();
  for (const fact of ["starts from desk-1", "console=ttyS0", "by a rule of netboot"])
    await pane.getByText(fact, { exact: true }).waitFor();
  await page.keyboard.press("1");
  await page.keyboard.press("4");
  await page.getByRole("link", { name: "lab-1" }).waitFor();
  await close(page);
});

test("Boots shows who boots and what it waits for, and keeps the storm", async () => {
  const page = await open("boots");
  const names = ["desk-11", "desk-12", "desk-13"];
  // So slowly that they boot for longer than all the looks at that take.
  names.forEach((name, at) => lab.client(name, office(at + 11, 2000), 50));
  for (const name of names) await page.getByRole("link", { name, exact: true }).waitFor();
  // What it waits for, how far it is and where from: of a real guest, whatever these are at this moment.
  const row = page.locator(".rows tbody tr", { has: page.getByRole("link", { name: "desk-12", exact: true }) });
  await row.filter({ hasText: /store|turn|nearby|disk|nothing/ }).waitFor();
  await row.filter({ hasText: /[MK]iB/ }).waitFor();
  await row.filter({ hasText: "debian:1" }).waitFor();
  await page.waitForFunction(() => Number(document.querySelector(".booting .big").textContent) >= 3);
  await page.getByRole("img", { name: /store \d+, turn \d+, nearby \d+, disk \d+, nothing \d+/ }).waitFor();
  await page.getByRole("searchbox").fill("desk-13");
  await page.getByRole("link", { name: "desk-12", exact: true }).waitFor({ state: "detached" });
  await page.getByRole("searchbox").fill("");

  const storm = page.locator(".storms a").first();
  await storm.filter({ hasText: "going on" }).waitFor();
  await storm.focus();
  await page.keyboard.press("Enter");
  const pane = page.getByRole("complementary", { name: "Boot storm" });
  await pane.getByRole("heading", { name: /^Storm of \d+ boots$/ }).waitFor();
  const picture = pane.getByRole("img", { name: /boots in \d+ moments?, a lane each/ });
  await picture.waitFor();
  const drawn = () =>
    picture.evaluate((canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return data.some((value) => value !== 0);
    });
  await until("the lanes", drawn);
  const reading = () =>
    picture.evaluate((canvas) => {
      const { left, bottom } = canvas.getBoundingClientRect();
      canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: left + 2, clientY: bottom - 2 }));
      return document.querySelector(".storm .cell").textContent;
    });
  await until("a lane is told", async () => /^desk-\d+ (waits for|does not boot)/.test(await reading()));
  for (const wait of ["store", "turn", "nearby", "disk", "nothing"])
    await pane.getByRole("rowheader", { name: new RegExp(`^${wait}`) }).waitFor();
  // The guests have read all that they ever read: the storm is over, and stays.
  await storm.filter({ hasText: /\d\.\d s$/ }).waitFor();
  await pane.getByText(/^over after/).waitFor();
  await page.getByText("Nobody boots now.").waitFor();
  await page.keyboard.press("Escape");
  await pane.waitFor({ state: "hidden" });
  assert.equal(await page.evaluate(() => document.activeElement.closest(".storms") !== null), true);
  await page.keyboard.press("1");
  await page.keyboard.press("5");
  await storm.waitFor();
  await page.goto(`${lab.url}/#boots/99`);
  await page.getByText("boot storm 99 is not kept").waitFor();
  page.wrong = page.wrong.filter((wrong) => !wrong.includes("404"));
  await close(page);
});

test("a first visit is small, asks no other host, and a second one is smaller", async () => {
  const page = await open("now");
  const network = await page.context().newCDPSession(page);
  await network.send("Network.enable");
  let sent = 0;
  network.on("Network.loadingFinished", (loaded) => (sent += loaded.encodedDataLength));
  await network.send("Network.setCacheDisabled", { cacheDisabled: true });
  await page.reload();
  await page.waitForSelector('[data-state="live"]');
  assert.ok(sent > 10_000 && sent <= MOST_BYTES, `${sent} bytes`);
  const first = sent;
  sent = 0;
  await network.send("Network.setCacheDisabled", { cacheDisabled: false });
  await page.reload();
  await page.waitForSelector('[data-state="live"]');
  sent = 0;
  await page.reload();
  await page.waitForSelector('[data-state="live"]');
  assert.ok(sent < first / 10, `${sent} bytes again, ${first} at first`);
  await close(page);
});

test("every answer is what openapi.json says", async () => {
  lab.machines();
  const told = await get(`${lab.url}/api/v1/openapi.json`);
  const document = new Document(JSON.parse(told.text));
  assert.deepEqual(document.loose(), []);
  // What a server without borrowed room does not tell, borrow.test.mjs has seen; virtual machines and media, the
  // tests of the commands.
  const unseen = () => document.unseen().filter((name) => !/^(Borrowed.|Lent|Vm|Medi)/.test(name));
  // Somebody boots.
  lab.client("desk-14", office(14, 2000), 25);
  await until("a boot", async () => JSON.parse((await get(`${lab.url}/api/v1/boots`)).text).booting > 0);
  const asked = async (path, name, status = 200, headers = {}) => {
    const answer = await get(`${lab.url}${path}`, headers);
    assert.equal(answer.status, status, path);
    assert.equal(answer.headers["content-type"], "application/json");
    document.check(name, JSON.parse(answer.text));
  };
  for (const [path, { get: operation }] of Object.entries(document.document.paths)) {
    if (!operation || path.includes("{")) continue;
    const schema = operation.responses["200"].content["application/json"]?.schema.$ref;
    const isOpen = operation.security?.some((one) => Object.keys(one).length === 0);
    if (schema && isOpen) await asked(path, schema.split("/").pop());
    await asked(path, "Problem", 421, { host: "rebound.example" });
    await asked(path, "Problem", 403, { "sec-fetch-site": "cross-site" });
  }
  await asked("/api/v1/live?disks=yes", "Problem", 400);
  const { storms } = JSON.parse((await get(`${lab.url}/api/v1/boots`)).text);
  const storm = `/api/v1/boots/${storms[0].storm}`;
  await until("a moment", async () => JSON.parse((await get(`${lab.url}${storm}`)).text).moments.length > 0);
  await asked(storm, "Storm");
  await asked("/api/v1/boots/99", "Problem", 404);
  await asked("/api/v1/boots/first", "Problem", 400);
  // What a token has done, each by the schema that its operation names.
  const token = lab.run("token", "create", "web", "--admin").trim();
  for (const [method, path, names, body] of [
    ["post", "/api/v1/disks", {}, { name: "api", from: "debian" }],
    ["get", "/api/v1/disks/{disk}", { disk: "api" }],
    ["get", "/api/v1/disks/{disk}/map", { disk: "api" }],
    ["post", "/api/v1/disks/{disk}/snapshots", { disk: "api" }, { snapshot: "monday" }],
    ["post", "/api/v1/disks/{disk}/rollback", { disk: "api" }, { snapshot: "monday" }],
    ["post", "/api/v1/disks/{disk}/commit", { disk: "api" }, { image: "debian:api" }],
    ["get", "/api/v1/images/{image}", { image: "debian:api" }],
    ["post", "/api/v1/disks/{disk}/rebase", { disk: "api" }, { image: "debian:api", keep_mine: true }],
    ["get", "/api/v1/disks/{disk}", { disk: "api" }],
    ["post", "/api/v1/disks/{disk}/reset", { disk: "api" }, {}],
    ["post", "/api/v1/disks/{disk}/publish", { disk: "api" }, {}],
    ["post", "/api/v1/disks/{disk}/release", { disk: "api" }, {}],
    ["get", "/api/v1/elsewhere", {}],
    ["post", "/api/v1/disks/{disk}/take", { disk: "api" }, {}],
    ["post", "/api/v1/disks/{disk}/grow", { disk: "api" }, { size: 8 * 2 ** 30 }],
    ["delete", "/api/v1/disks/{disk}/snapshots/{snapshot}", { disk: "api", snapshot: "monday" }],
    ["delete", "/api/v1/disks/{disk}", { disk: "api" }],
    ["delete", "/api/v1/images/{image}", { image: "debian:api" }],
    ["post", "/api/v1/images/{image}/import", { image: "sent" }, Buffer.alloc(1 << 20)],
    ["delete", "/api/v1/images/{image}", { image: "sent:1" }],
    ["post", "/api/v1/images/{image}/restore", { image: "debian:api" }, {}],
    ["delete", "/api/v1/images/{image}", { image: "debian:api" }],
    ["post", "/api/v1/machines/{machine}/assign", { machine: "lab-1" }, { method: "iscsi" }],
    ["get", "/api/v1/machines/{machine}", { machine: "lab-1" }],
    ["delete", "/api/v1/machines/{machine}", { machine: "lab-1" }],
    ...["stats", "curves", "tune", "predict"].map((question) => ["post", `/api/v1/lab/${question}`, {}, LOAD]),
    ["get", "/api/v1/token", {}],
    ["post", "/api/v1/cache", {}, { policy: "fmpq" }],
    ["post", "/api/v1/reload", {}, {}],
  ]) {
    const filled = path.replace(/\{(\w+)\}/g, (_, name) => names[name]);
    const answer = await send(method.toUpperCase(), `${lab.url}${filled}`, token, body);
    const { responses } = document.document.paths[path][method];
    const [success] = Object.keys(responses).filter((status) => status < 300);
    assert.equal(answer.status, Number(success), `${method} ${filled}: ${answer.text}`);
    const { schema } = responses[success].content["application/json"];
    const value = JSON.parse(answer.text);
    if (schema.type === "array") value.forEach((one) => document.check(schema.items.$ref.split("/").pop(), one));
    else document.check(schema.$ref.split("/").pop(), value);
  }
  // Every kind of event, and everything that one may hold.
  const { "x-events": events } =
    document.document.paths["/api/v1/live"].get.responses["200"].content["text/event-stream"];
  await new Promise((ready, fail) => {
    const end = setTimeout(() => fail(new Error(`never seen: ${unseen()}`)), PATIENCE);
    const request = http.get(`${lab.url}/api/v1/live?disks=true`, (answer) => {
      let rest = "";
      answer.setEncoding("utf8");
      answer.on("data", (part) => {
        const whole = (rest + part).split("\n\n");
        rest = whole.pop();
        try {
          for (const event of whole) {
            const [, name, data] = /^event: (\w+)\ndata: (.*)$/.exec(event);
            document.check(events[name].$ref.split("/").pop(), JSON.parse(data));
          }
        } catch (error) {
          clearTimeout(end);
          request.destroy();
          fail(error);
          return;
        }
        if (unseen().length > 0) return;
        clearTimeout(end);
        request.destroy();
        ready();
      });
    });
    request.on("error", () => {});
  });
  assert.deepEqual(unseen(), []);
});

test("a page says that the server is gone, and goes on when it is back", async () => {
  const page = await open("disks");
  const heard = async () => page.waitForSelector('[data-state="live"]');
  await page.waitForSelector(".rows tbody th a");
  await lab.kill();
  await page.getByText("The server does not answer.").waitFor();
  assert.match(await page.title(), /^\(\?\)/);
  assert.ok((await page.locator(".rows tbody th a").count()) > 10, "what was known is still shown");
  await lab.serve();
  await heard();
  await page.getByText("The server does not answer.").waitFor({ state: "detached" });
  await page.waitForFunction(() => !document.title.startsWith("(?)"));
  // Its clients went with the first server.
  lab.client("desk-5", office(5, 2000), 4);
  await page.getByRole("searchbox").fill("desk-5");
  await page.locator(".rows tbody tr", { hasText: "in use" }).first().waitFor();
  await close(page);
});

test("a page of another origin reads nothing", async () => {
  const attack = http.createServer((_, answer) => {
    answer.setHeader("content-type", "text/html");
    answer.end("<!doctype html><title>attack</title><body>");
  });
  await new Promise((ready) => attack.listen(0, "127.0.0.1", ready));
  const { port } = attack.address();
  const page = await (await browser.newContext()).newPage();
  // Of the same site as 127.0.0.1, and of another one.
  for (const origin of [`http://127.0.0.1:${port}`, `http://localhost:${port}`]) {
    await page.goto(origin);
    const read = await page.evaluate(async (url) => {
      const got = [];
      const readable = async (mode) => {
        const answer = await fetch(`${url}/api/v1/disks`, { mode });
        const body = await answer.text();
        if (body !== "") got.push(`${mode}: ${body.slice(0, 40)}`);
      };
      for (const mode of ["cors", "no-cors"]) await readable(mode).catch(() => {});
      await new Promise((ready) => {
        const events = new EventSource(`${url}/api/v1/live`);
        events.addEventListener("hello", () => (got.push("events"), ready()));
        events.onerror = () => (events.close(), ready());
      });
      for (const [name, source] of [
        ["script", `${url}/api/v1/disks`],
        ["iframe", url],
      ]) {
        await new Promise((ready) => {
          const element = document.createElement(name);
          element.onload = () => {
            try {
              if (name === "iframe" && element.contentDocument.body.textContent !== "") got.push("a frame");
            } catch {}
            if (name === "script") got.push("a script");
            ready();
          };
          element.onerror = ready;
          element.src = source;
          document.body.append(element);
        });
      }
      return got;
    }, lab.url);
    assert.deepEqual(read, [], origin);
  }
  await page.context().close();
  attack.close();
});

test("a name that was rebound to this machine reads nothing", async () => {
  const { port } = new URL(lab.url);
  const page = await (await browser.newContext()).newPage();
  for (const path of ["/", "/app.js", "/api/v1/disks", "/api/v1/live", "/metrics", "/v1/status"]) {
    const answer = await page.goto(`http://rebound.example:${port}${path}`);
    assert.equal(answer.status(), 421, path);
    assert.doesNotMatch(await answer.text(), /desk-1/);
  }
  await page.context().close();
});

test("nothing keeps people out: axe finds no fault on any page", async () => {
  lab.machines();
  lab.client("desk-15", office(15, 2000), 25);
  const storms = async () => JSON.parse((await get(`${lab.url}/api/v1/boots`)).text).storms;
  const [{ storm }] = await until("a storm", async () => (await storms()).length > 0 && storms());
  for (const [options, hashes] of [
    [
      { colorScheme: "light" },
      ["now", "disks", "disks/desk-3", "images", "images/debian%3A1", "machines", "boots", "lab", "borrow"],
    ],
    [{ colorScheme: "dark", reducedMotion: "reduce" }, ["now", "disks/desk-3", "boots/STORM", "lab", "borrow"]],
    [
      { viewport: { width: 390, height: 844 }, hasTouch: true },
      ["now", "disks/desk-3", "images/debian%3A1", "machines/lab-1", "boots/STORM", "lab"],
    ],
  ]) {
    const page = await open("now", options);
    for (const name of hashes) {
      const hash = name.replace("STORM", storm);
      await page.goto(`${lab.url}/#${hash}`);
      const there =
        { now: ".figure dd", boots: ".storms a", lab: ".lab-form", borrow: ".nothing" }[hash.split("/")[0]] ??
        ".rows tbody th a";
      await page.waitForSelector(there);
      if (hash.startsWith("boots/")) await page.locator(".storm tbody tr").first().waitFor();
      if (hash.startsWith("images/")) {
        await page.locator(".lineage > summary").click();
        await page.locator(".tree li").first().waitFor();
      }
      if (hash.startsWith("disks/")) {
        await page.locator(".map summary").click();
        await page.locator(".map td", { hasText: "GiB" }).first().waitFor();
      }
      assert.deepEqual(await obstacles(page), [], `${hash} ${JSON.stringify(options)}`);
      const wider = await overhang(page);
      assert.ok(wider <= 0, `${hash} is ${wider} px wider than the window: ${JSON.stringify(options)}`);
    }
    await close(page);
  }
});

test("all is reached by the keyboard", async () => {
  const page = await open("now");
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "content");
  for (const [key, title] of [
    ["2", "Disks"],
    ["3", "Images"],
    ["5", "Boots"],
    ["6", "Borrow"],
    ["7", "Lab"],
    ["1", "Now"],
  ]) {
    await page.keyboard.press(key);
    await page.locator("nav [aria-current=page]", { hasText: title }).waitFor();
  }
  await page.keyboard.press("2");
  await page.waitForSelector(".rows tbody th a");
  await page.getByRole("link", { name: "desk-2", exact: true }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("complementary", { name: "Disk" }).waitFor();
  assert.equal(
    await page.evaluate(() => document.activeElement.textContent),
    "desk-2",
    "a screen reader goes on there",
  );
  await page.keyboard.press("Escape");
  await page.waitForFunction(
    () => document.activeElement.textContent === "desk-2" && document.activeElement.tagName === "A",
  );
  await close(page);
});

test("the server ends well while pages watch", async () => {
  const page = await open("disks");
  await lab.stop();
  await page.getByText("The server does not answer.").waitFor();
  await page.context().close();
});
