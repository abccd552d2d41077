// Virtual machines and media in a real browser: a machine of QEMU lives by the buttons of the page.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { browse, Lab, MARKUP, obstacles, overhang, send, until, visit } from "./lab.mjs";

const MIB = 1 << 20;
/** Whether machines can run here. */
const RUNS = spawnSync("qemu-system-x86_64", ["--version"]).status === 0;
/** The browser itself tells of answers that are errors. */
const REFUSALS = /net::ERR_|status of (40[0-9]|50[0-9])/;

let lab, browser, admin, operator, reader, limited, tree, odd;

before(async () => {
  lab = new Lab();
  // A guest that stands still: cli; hlt; and back to hlt.
  const idle = Buffer.alloc(4 * MIB);
  idle.set([0xfa, 0xf4, 0xeb, 0xfd]);
  idle.set([0x55, 0xaa], 510);
  const file = join(lab.dir, "idle.raw");
  writeFileSync(file, idle);
  lab.run("image", "import", file, "idle");
  tree = join(lab.dir, "tree");
  odd = join(lab.dir, MARKUP.replace(".raw", ""));
  for (const place of [tree, odd]) mkdirSync(place, { recursive: true });
  writeFileSync(join(tree, "file"), Buffer.alloc(100_000, 7));
  name([odd, tree, "nosuch"]);
  for (const disk of ["alice", "bob"]) lab.run("disk", "create", disk, "--from", "idle");
  describe("ghost", "nosuch");
  describe("quiet", "bob");
  writeFileSync(
    join(lab.home, "machines/quiet/console.log"),
    `${"\u001b"}[1;32mDebian${"\u001b"}[0m <img src=x onerror=document.title='owned'> login:\r\n`,
  );
  await lab.serve();
  browser = await browse();
  const made = (...how) => lab.run("token", "create", ...how).trim();
  [admin, operator, reader] = ["admin", "operate", "read"].map((right) => made(`one-${right}`, `--${right}`));
  limited = made("limited", "--operate", "--disk", "bob");
});

after(async () => {
  for (const vm of ["work", "play", "travels"]) {
    try {
      lab.run("vm", "stop", "--force", vm);
    } catch {
      // It does not run.
    }
  }
  await browser?.close();
  await lab?.end();
});

/** Names the sources of the configuration. */
function name(sources) {
  const file = join(lab.home, "sojourn.toml");
  const text = readFileSync(file, "utf8");
  assert.ok(text.includes("# sources = []"));
  writeFileSync(file, text.replace("# sources = []", `sources = ${JSON.stringify(sources)} #`));
}

/** Describes a machine in the home, as `vm create` does with QEMU's help. */
function describe(vm, disk) {
  const place = join(lab.home, "machines", vm);
  mkdirSync(place, { recursive: true });
  const described = {
    version: 1,
    name: vm,
    uuid: "01020304-0506-4708-890a-0b0c0d0e0f10",
    disk,
    memory: 1 << 30,
    cpus: 1,
    machine: "pc-q35-7.2",
    cpu: "qemu64",
    accelerator: "tcg",
    screen: false,
    mac: "52:54:00:12:34:56",
    arguments: [],
  };
  writeFileSync(join(place, "machine.json"), JSON.stringify(described));
}

/** A page at `hash` that shows this token, if any. */
async function open(hash, token, options = {}) {
  const page = await visit(browser, lab, "now", { excused: REFUSALS, ...options });
  if (token) await page.evaluate((text) => sessionStorage.setItem("sojourn-token", text), token);
  await page.goto(`${lab.url}/#${hash}`);
  await page.reload();
  return page;
}

async function close(page) {
  assert.deepEqual(page.wrong, []);
  await page.context().close();
}

const pane = (page) => page.getByRole("complementary", { name: "Virtual machine" });
const button = (page, label) => page.getByRole("button", { name: label, exact: true });
const dialog = (page) => page.getByRole("dialog");
/** What is told of what was done. */
const told = (page, text) => page.locator(".doing").filter({ hasText: text }).first().waitFor();
const state = (page, text) => pane(page).locator("dd").filter({ hasText: text }).first().waitFor();

/** Presses a button that asks for a name, and types that. */
async function lose(page, label, typed, go) {
  await button(page, label).click();
  await dialog(page).getByLabel(`Type ${typed} to go on`).fill(typed);
  await dialog(page).getByRole("button", { name: go, exact: true }).click();
  await dialog(page).waitFor({ state: "hidden" });
}

test("virtual machines take a token, and other pages go on without", async () => {
  const page = await open("vms");
  await page.getByText("Virtual machines take a token with the right read, operate or admin").waitFor();
  assert.equal(await page.getByRole("searchbox").isVisible(), false);
  await button(page, "Use a token").click();
  await page.getByRole("heading", { name: "This server asks for a token" }).waitFor();
  // Who does not have one goes elsewhere.
  await page.getByRole("link", { name: "Disks" }).click();
  await page.getByRole("link", { name: "alice", exact: true }).waitFor();
  await page.waitForSelector('[data-state="live"]');
  assert.equal(await page.getByLabel("Token", { exact: true }).isVisible(), false);
  await page.getByRole("link", { name: "Virtual machines" }).click();
  await button(page, "Use a token").click();
  await page.getByLabel("Token", { exact: true }).fill(reader);
  await button(page, "Use it").click();
  await page.getByRole("link", { name: "ghost", exact: true }).waitFor();
  await close(page);
});

test("who may only look is offered nothing else, and who may operate nothing that loses something", async () => {
  const page = await open("vms/quiet", reader);
  await state(page, "stopped");
  await page.getByText("The token one-read has the right read.").waitFor();
  await button(page, "Use another token").waitFor();
  assert.equal(await pane(page).locator(".verbs button").locator("visible=true").count(), 0);
  assert.equal(await button(page, "New machine…").count(), 0);
  await close(page);

  const other = await open("vms/quiet", operator);
  await button(other, "Start").waitFor();
  await button(other, "New machine…").waitFor();
  assert.equal(await button(other, "Remove…").count(), 0);
  await other.getByText("What loses something takes a token with the right admin").waitFor();
  await close(other);

  // A token for some disks has the machines of these, and no media.
  const few = await open("vms", limited);
  await few.getByRole("link", { name: "quiet", exact: true }).waitFor();
  assert.equal(await few.getByRole("link", { name: "ghost", exact: true }).count(), 0);
  await few.getByRole("link", { name: "Media" }).click();
  await few.locator(".failure").filter({ hasText: "is for some disks and images" }).first().waitFor();
  await close(few);
});

test("machines are searched and sorted, and one tells what it is", async () => {
  const page = await open("vms", admin);
  await page.getByRole("link", { name: "ghost", exact: true }).waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("bob stopped");
  await page.getByRole("link", { name: "ghost", exact: true }).waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Memory", exact: true }).click();
  await page.getByRole("link", { name: "quiet", exact: true }).focus();
  await page.keyboard.press("Enter");
  for (const fact of ["stopped", "bob", "1.0 GiB", "52:54:00:12:34:56"])
    await pane(page).getByText(fact, { exact: true }).waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "quiet", "a screen reader goes on there");
  assert.equal(await pane(page).getByText("Where its memory is").isVisible(), false, "it was never suspended");
  await page.keyboard.press("Escape");
  await pane(page).waitFor({ state: "hidden" });
  await page.goto(`${lab.url}/#vms/${encodeURIComponent("<b id=owned>x</b>")}`);
  await pane(page).getByRole("heading", { name: "<b id=owned>x</b>" }).waitFor();
  await pane(page).getByText("There is no such machine.").waitFor();
  assert.equal(await page.locator("#owned").count(), 0);
  await close(page);
});

test("what a guest said is text, whatever it is", async () => {
  const page = await open("vms/quiet", reader);
  await pane(page).locator("summary", { hasText: "What was said" }).click();
  const said = pane(page).getByRole("region", { name: "What was said" });
  await said.filter({ hasText: "Debian <img src=x onerror=document.title='owned'> login:" }).waitFor();
  assert.doesNotMatch(await said.textContent(), /\u001b|\r|\[1;32m/);
  assert.equal(await page.locator("img").count(), 0);
  await pane(page).getByLabel("What QEMU and its keeper said").check();
  await said.filter({ hasText: "Nothing was said." }).waitFor();
  assert.doesNotMatch(await page.title(), /owned/);
  await close(page);
});

test("what fails says why, in the server's words, and leaves the machine as it was", async () => {
  const page = await open("vms/ghost", admin);
  await button(page, "Start").click();
  const failure = pane(page)
    .getByRole("alert")
    .filter({ hasText: /nosuch|qemu/i });
  await failure.waitFor();
  await state(page, "stopped");
  // In the question itself, which stays.
  await button(page, "New machine…").click();
  const asked = dialog(page);
  await asked.getByLabel("Name", { exact: true }).fill("quiet");
  await asked.getByLabel("Disk", { exact: true }).fill("bob");
  await asked.getByLabel("Memory", { exact: true }).fill("plenty");
  await asked.getByRole("button", { name: "Make it" }).click();
  await asked.getByRole("alert").filter({ hasText: "Memory is a size such as 512MiB" }).waitFor();
  await asked.getByLabel("Memory", { exact: true }).fill("64MiB");
  await asked.getByRole("button", { name: "Make it" }).click();
  await asked.getByRole("alert").filter({ hasText: "quiet" }).waitFor();
  await asked.getByLabel("Name", { exact: true }).fill("");
  await asked.getByRole("button", { name: "Make it" }).click();
  await asked.getByRole("alert").filter({ hasText: "Name is missing." }).waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.id), "question-name");
  // What is typed there turns no page, and what closes it closes nothing else.
  await page.keyboard.type("2");
  await asked.getByRole("button", { name: "Cancel" }).focus();
  await page.keyboard.press("2");
  await page.keyboard.press("Escape");
  await asked.waitFor({ state: "hidden" });
  await pane(page).getByRole("heading", { name: "ghost" }).waitFor();
  await close(page);
});

test("what loses something takes the name, typed", async () => {
  describe("doomed", "bob");
  const page = await open("vms/doomed", admin);
  await button(page, "Remove…").click();
  const asked = dialog(page);
  await asked.getByText("cannot be had back").waitFor();
  await asked.getByRole("button", { name: "Remove", exact: true }).click();
  await asked.getByRole("alert").filter({ hasText: "Type doomed to go on." }).waitFor();
  await asked.getByLabel("Type doomed to go on").fill("domed");
  await page.keyboard.press("Enter");
  await asked.getByRole("alert").filter({ hasText: "Type doomed to go on." }).waitFor();
  assert.ok(lab.run("vm", "list").includes("doomed"));
  await asked.getByLabel("Type doomed to go on").fill("doomed");
  await page.keyboard.press("Enter");
  await asked.waitFor({ state: "hidden" });
  await told(page, "Removed doomed.");
  await pane(page).getByText("There is no such machine.").waitFor();
  assert.ok(!lab.run("vm", "list").includes("doomed"));
  assert.ok(lab.run("disk", "list").includes("bob"));
  await close(page);
});

test("a machine is made, runs, is suspended, resumed, cloned and removed by the page", { skip: !RUNS }, async () => {
  const page = await open("vms", admin);
  await button(page, "New machine…").click();
  await dialog(page).getByLabel("Name", { exact: true }).fill("work");
  await dialog(page).getByLabel("Disk", { exact: true }).fill("alice");
  await dialog(page).getByLabel("Memory", { exact: true }).fill("32 MiB");
  await dialog(page).getByRole("button", { name: "Make it" }).click();
  await dialog(page).waitFor({ state: "hidden" });
  await told(page, "Machine work is there, with disk alice.");
  assert.equal(new URL(page.url()).hash, "#vms/work");

  await button(page, "Start").click();
  await told(page, /^work runs after [\d.]+ s\.$/);
  for (const fact of ["all of it", "its disk, which it booted", "sojourn vm console work"])
    await pane(page).getByText(fact, { exact: true }).waitFor();
  const row = (vm) => page.locator(".rows tbody tr", { has: page.getByRole("link", { name: vm, exact: true }) });
  await row("work").filter({ hasText: "running" }).waitFor();
  assert.equal(await button(page, "Start").count(), 0);
  assert.equal(await button(page, "Remove…").count(), 0, "what runs is not removed");
  await button(page, "Checkpoint").click();
  await told(page, "work@1 is in the store");

  // What a machine is suspended as is safe here first, and then in the store.
  await button(page, "Suspend").click();
  await told(page, /work@2 is (safe on this host|in the store)/);
  await row("work").filter({ hasText: "in the store" }).waitFor();
  await button(page, "Where work@1 is").click();
  await pane(page)
    .getByRole("img", { name: /^Map of work@1: .* from the start of the memory of work@1 on; .*zero/ })
    .waitFor();
  await pane(page).getByRole("row", { name: /^zero/ }).filter({ hasText: "MiB" }).waitFor();
  await pane(page)
    .getByText(/of memory$/)
    .first()
    .waitFor();

  await button(page, "Resume").click();
  await told(page, /^work runs from work@2 after/);
  await pane(page).getByText("work@2", { exact: true }).first().waitFor();
  // It runs from that one.
  await button(page, "Remove work@2").waitFor({ state: "detached" });
  await lose(page, "Discard…", "work", "Discard");
  await told(page, "is as in work@2 again");
  await state(page, "suspended");

  await lose(page, "Roll back work@1", "work@1", "Roll back");
  await told(page, "is as in work@1");
  await button(page, "Resume work@1").click();
  await told(page, "work runs from work@1");
  await lose(page, "End at once…", "work", "End at once");
  await told(page, "has stopped");
  await lose(page, "Boot anew…", "work", "Boot anew");
  await told(page, /^work runs after/);

  await button(page, "Clone work@2").click();
  await dialog(page).getByLabel("Name of the new machine").fill("play");
  await dialog(page).getByRole("button", { name: "Clone" }).click();
  await dialog(page).waitFor({ state: "hidden" });
  await told(page, "Machine play is there, with disk play.");
  await row("play").filter({ hasText: "suspended" }).waitFor();
  await lose(page, "Remove work@2", "work@2", "Remove");
  await button(page, "Remove work@2").waitFor({ state: "detached" });

  // What somebody else does is there by itself, and nothing that is unchanged is drawn anew.
  await row("work").evaluate((line) => (line.dataset.kept = "yes"));
  lab.run("vm", "resume", "play");
  await row("play").filter({ hasText: "running" }).waitFor();
  assert.equal(await row("work").getAttribute("data-kept"), "yes");
  lab.run("vm", "stop", "--force", "play");
  // This guest does not heed the power button.
  await button(page, "Power off").click();
  await told(page, "work: powering off …");
  await page.locator('.verbs button[aria-disabled="true"]:visible').first().waitFor();
  await lose(page, "End at once…", "work", "End at once");
  await button(page, "Remove…").waitFor();
  await lose(page, "Remove…", "work", "Remove");
  await told(page, "Removed work");
  await row("work").waitFor({ state: "detached" });
  const names = JSON.parse((await send("GET", `${lab.url}/api/v1/vms`, admin)).text).vms.map(({ name }) => name);
  assert.ok(!names.includes("work") && names.includes("play"), `${names}`);
  await close(page);
});

test("what is offered follows the state of a machine, and is what the server is asked for", async () => {
  const parcels = [1, 2].map((number) => ({
    parcel: `some@${number}`,
    created: 1_700_000_000 + number,
    snapshot: `vm-some-${number}`,
  }));
  const running = {
    ...{ name: "some", state: "running", parcel: "some@2", accelerator: "kvm", keeper: 7, qemu: 8, console: "c" },
    ...{ screen: "/run/s<b>", memory_on_demand: true, memory_here: false, memory_written: 3 * MIB, started_seconds: 0 },
  };
  const pending = { parcel: "some@3", created: 1_700_000_009, left_bytes: 48 * MIB, keeper: 9 };
  const states = {
    stopped: [{ state: "stopped" }, ["Start", "Remove…"], "stopped"],
    booted: [
      { state: "running", running: { ...running, parcel: null } },
      ["Suspend", "Checkpoint", "Power off", "End at once…"],
      "all of it",
    ],
    running: [
      { state: "running", parcels, running },
      ["Suspend", "Checkpoint", "Power off", "End at once…", "Discard…"],
      "what its guest touched, and what has come behind it",
    ],
    filled: [
      { state: "running", parcels, running: { ...running, memory_here: true, clock: { failed: "no <i>agent</i>" } } },
      ["Suspend", "Checkpoint", "Power off", "End at once…", "Discard…"],
      "all of it is on this host",
    ],
    starting: [{ state: "starting", parcels }, ["End at once…"], "starting"],
    busy: [
      { state: "busy", parcels, running: { ...running, state: "storing" } },
      ["End at once…", "Discard…"],
      "storing",
    ],
    stored: [{ state: "suspended", parcels }, ["Resume", "Boot anew…", "Remove…"], "suspended"],
    sent: [
      { state: "suspended", parcels, pending },
      ["Resume", "Stop sending", "Discard…", "Remove…"],
      "suspended, 48 MiB to go up",
    ],
    unsent: [
      { state: "suspended", pending: { ...pending, keeper: null, error: "the store is <u>full</u>" } },
      ["Resume", "Send it up", "Discard…", "Remove…"],
      "the store is <u>full</u>",
    ],
    kept: [
      { state: "suspended", parcels, pending: { ...pending, keeper: null, stopped: true } },
      ["Resume", "Send it up", "Discard…", "Remove…"],
      "suspended, 48 MiB stopped",
    ],
    elsewhere: [
      { state: "elsewhere", here: false, host: "<s>laptop</s>", parcels },
      ["Go on here…", "Remove…"],
      "is on <s>laptop</s>",
    ],
    damaged: [
      { state: "damaged", error: "machine.json is <b>broken</b>" },
      ["Remove…"],
      "machine.json is <b>broken</b>",
    ],
    newer: [{ state: "newer", error: "a newer build made it" }, [], "a newer build made it"],
  };
  const page = await open("now", admin);
  const vms = Object.entries(states).map(([name, [of]]) => ({
    ...{ name, here: true, disk: "alice", memory: 1 << 30, cpus: 2, mac: "52:54:00:00:00:09", parcels: [] },
    ...of,
  }));
  const asked = [];
  await page.route("**/api/v1/vms", (route) => route.fulfill({ json: { vms } }));
  await page.route("**/api/v1/vms/**", (route) => {
    const request = route.request();
    if (request.method() === "GET") return route.fallback();
    asked.push([request.method(), request.url().split("/api/v1/vms/")[1], request.postDataJSON()]);
    return route.fulfill({ json: { done: "it <b>is</b> done" } });
  });
  const offered = () =>
    pane(page).getByRole("group", { name: "What can be done" }).locator("button:visible").allTextContents();
  for (const [name, [, verbs, fact]] of Object.entries(states)) {
    await page.goto(`${lab.url}/#vms/${name}`);
    await pane(page).getByRole("heading", { name, exact: true }).waitFor();
    await pane(page).getByText(fact, { exact: true }).first().waitFor();
    await until(`what ${name} offers`, async () => JSON.stringify(await offered()) === JSON.stringify(verbs));
    assert.equal(await pane(page).locator("dd b, dd i, dd u, dd s").count(), 0, "markup is text");
  }
  // Each of those that no machine of this test can be asked for.
  const press = async (name, label, go) => {
    await page.goto(`${lab.url}/#vms/${name}`);
    await pane(page).getByRole("heading", { name, exact: true }).waitFor();
    if (go) await lose(page, label, name, go);
    else await button(page, label).click();
    await told(page, "It <b>is</b> done.");
  };
  await press("sent", "Stop sending");
  await press("unsent", "Send it up");
  await press("kept", "Resume");
  await press("sent", "Discard…", "Discard");
  await press("running", "Power off");
  await press("starting", "End at once…", "End at once");
  await press("elsewhere", "Go on here…", "Go on here");
  await press("elsewhere", "Remove…", "Remove");
  assert.deepEqual(asked, [
    ["POST", "sent/stop", { sending: true }],
    ["POST", "unsent/suspend", {}],
    ["POST", "kept/resume", {}],
    ["POST", "sent/discard", {}],
    ["POST", "running/stop", {}],
    ["POST", "starting/stop", { force: true }],
    ["POST", "elsewhere/resume", { lost: true }],
    ["DELETE", "elsewhere?lost=true", null],
  ]);
  await close(page);
});

test("media are shown, written, verified and cleared, and a name of theirs is text", async () => {
  const page = await open("media", admin);
  const link = page.getByRole("link", { name: odd, exact: true });
  await link.waitFor();
  await page.getByRole("cell", { name: "a directory tree" }).first().waitFor();
  await link.click();
  const medium = page.getByRole("complementary", { name: "Medium" });
  await medium.getByRole("heading", { name: odd }).waitFor();
  assert.equal(await page.locator("img").count(), 0);
  const asked = dialog(page);
  const write = async (names, size, make = true) => {
    await button(page, "Write…").click();
    await asked.getByLabel("Images, disks and machines").fill(names);
    await asked.getByLabel("Room").fill(size);
    if (make) await asked.getByLabel("Make a medium of this directory").check();
    await asked.getByRole("button", { name: "Write", exact: true }).click();
  };
  const refused = async (why) => {
    await asked.getByRole("alert").filter({ hasText: why }).waitFor();
    await page.keyboard.press("Escape");
    await asked.waitFor({ state: "hidden" });
  };
  // A directory is made a medium by who says so: it may be the place of one that is not mounted.
  await write("idle odd", "64MiB", false);
  await refused("mount the medium there");
  await write("idle nosuch", "");
  await refused("nosuch");
  await write("idle", "1MiB");
  await refused("Room is 16 MiB at the least.");
  await write("idle odd", "64MiB");
  await asked.waitFor({ state: "hidden" });
  await medium.locator(".doing").filter({ hasText: "idle:1: all of it." }).waitFor();
  await medium.getByRole("rowheader", { name: /^idle/ }).waitFor();
  await medium
    .getByText(/all of it, \d+ chunks?;/)
    .first()
    .waitFor();

  await button(page, "Verify").click();
  await medium.locator(".doing").filter({ hasText: "nothing is damaged." }).waitFor();
  await button(page, "Refresh").click();
  await medium
    .locator(".doing")
    .filter({ hasText: /written, .* were there/ })
    .waitFor();
  await lose(page, "Drop what is damaged…", odd, "Drop what is damaged");
  await medium.locator(".doing").filter({ hasText: "nothing is damaged." }).waitFor();
  await lose(page, "Take off odd", "odd", "Take off");
  await medium.getByRole("rowheader", { name: /^odd/ }).waitFor({ state: "detached" });
  await page.keyboard.press("Escape");

  await page.getByRole("link", { name: tree, exact: true }).click();
  await button(page, "Index").click();
  await medium.locator(".doing").filter({ hasText: "in 1 file read" }).waitFor();
  await page.goto(`${lab.url}/#media/nosuch`);
  await medium.getByRole("heading", { name: "nosuch" }).waitFor();
  assert.equal(await medium.locator(".verbs button").locator("visible=true").count(), 0);
  assert.doesNotMatch(await page.title(), /owned/);
  await close(page);

  // Who may operate verifies and indexes, and writes nothing.
  const other = await open(`media/${encodeURIComponent(odd)}`, operator);
  await button(other, "Verify").waitFor();
  assert.equal(await button(other, "Write…").count(), 0);
  await close(other);
});

test("a machine tells what media hold of it, and is written onto one", { skip: !RUNS }, async () => {
  lab.run("disk", "create", "dora", "--from", "idle");
  lab.run("vm", "create", "travels", "--disk", "dora", "--memory", "32M");
  lab.run("vm", "start", "travels");
  lab.run("vm", "suspend", "--wait", "travels");
  const page = await open("vms/travels", admin);
  await pane(page).locator("summary", { hasText: "On media" }).click();
  await pane(page).getByText("nothing of it").first().waitFor();
  await button(page, `Write travels onto ${odd}`).click();
  await dialog(page).getByRole("button", { name: "Write", exact: true }).click();
  await dialog(page).waitFor({ state: "hidden" });
  await told(page, "travels@1: all of it.");
  await pane(page)
    .getByText(/^travels@1, .*: all of it, \d+ chunks/)
    .waitFor();
  lab.run("vm", "resume", "travels");
  lab.run("vm", "suspend", "--wait", "travels");
  await pane(page)
    .getByText(/; the newest is travels@2$/)
    .waitFor();
  await close(page);
});

test("nothing keeps people out of machines, media and questions, on any screen", async () => {
  for (const options of [
    { colorScheme: "light" },
    { colorScheme: "dark", reducedMotion: "reduce" },
    { viewport: { width: 390, height: 844 }, hasTouch: true },
  ]) {
    for (const hash of ["vms", "vms/quiet", "media", `media/${encodeURIComponent(odd)}`]) {
      const page = await open(hash, admin, options);
      await page.locator(".rows tbody th a").first().waitFor();
      if (hash.includes("/")) await page.locator(".pane .verbs button").locator("visible=true").first().waitFor();
      for (const summary of ["What was said", "On media"]) {
        const part = page.locator(".pane summary", { hasText: summary });
        if ((await part.count()) > 0 && (await part.isVisible())) await part.click();
      }
      const what = `${hash} ${JSON.stringify(options)}`;
      assert.deepEqual(await obstacles(page), [], what);
      const wider = await overhang(page);
      assert.ok(wider <= 0, `${what} is ${wider} px wider than the window`);
      const ask = hash.startsWith("vms") ? "New machine…" : "Write…";
      if (await button(page, ask).isVisible()) {
        await button(page, ask).click();
        await dialog(page).waitFor();
        assert.deepEqual(await obstacles(page), [], `the question of ${what}`);
        assert.ok((await overhang(page)) <= 0, `the question of ${what}`);
        await page.keyboard.press("Escape");
      }
      await close(page);
    }
  }
});

test("all is reached by the keyboard", async () => {
  const page = await open("now", admin);
  await page.waitForSelector('[data-state="live"]');
  for (const [key, title] of [
    ["8", "Virtual machines"],
    ["9", "Media"],
    ["8", "Virtual machines"],
  ]) {
    await page.keyboard.press(key);
    await page.locator("nav [aria-current=page]", { hasText: title }).waitFor();
  }
  await page.getByRole("link", { name: "quiet", exact: true }).focus();
  await page.keyboard.press("Enter");
  await button(page, "Remove…").focus();
  await page.keyboard.press("Enter");
  await dialog(page).waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.id), "question-typed");
  await page.keyboard.press("Escape");
  await dialog(page).waitFor({ state: "hidden" });
  await until("the button has the focus again", () =>
    page.evaluate(() => document.activeElement.textContent === "Remove…"),
  );
  await pane(page).getByRole("heading", { name: "quiet" }).waitFor();
  await close(page);
});
