// A server that asks for tokens: the page asks for one, shows it with every request, and forgets it.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { browse, get, Lab, obstacles, overhang, visit } from "./lab.mjs";

/** The browser itself tells of answers that are errors, and while the server is away. */
const REFUSALS = /net::ERR_|status of 40[13]/;

let lab, browser, token;

before(async () => {
  lab = new Lab('http_access = "tokens"\nhttp_names = ["plain.example"]\n');
  await lab.serve();
  [browser] = await Promise.all([browse("--host-resolver-rules=MAP plain.example 127.0.0.1"), lab.disks(3)]);
  token = made("look", "--read");
});

after(async () => {
  await browser?.close();
  await lab?.end();
});

const made = (name, ...how) => lab.run("token", "create", name, ...how).trim();

/** A page whose requests to the API are noted, each with the token that it showed. */
async function open(hash, options = {}) {
  const page = await visit(browser, lab, hash, { excused: REFUSALS, ...options });
  page.shown = [];
  page.on("request", (request) => {
    if (!request.url().includes("/api/")) return;
    // What the page's own code set, known at once: to ask the browser would fail once the page is closed.
    const { authorization } = request.headers();
    page.shown.push([new URL(request.url()).pathname, authorization]);
  });
  return page;
}

async function close(page) {
  assert.deepEqual(page.wrong, []);
  await page.context().close();
}

const field = (page) => page.getByLabel("Token", { exact: true });
const alarm = (page, text) => page.getByRole("alert").filter({ hasText: text }).waitFor();
const live = (page) => page.waitForSelector('[data-state="live"]');

/** Gives the page a token by the keyboard. */
async function give(page, text) {
  await field(page).waitFor();
  await page.waitForFunction(() => document.activeElement.id === "token");
  await page.keyboard.insertText(text);
  await page.keyboard.press("Enter");
}

test("a page asks for a token, and shows it with whatever it asks", async () => {
  assert.equal((await get(`${lab.url}/api/v1/disks`)).status, 401);
  const page = await open("disks");
  await page.getByRole("heading", { name: "This server asks for a token" }).waitFor();
  assert.equal(await page.getByRole("searchbox").count(), 0, "nothing of the page is shown before");
  assert.equal(await page.getByRole("button", { name: "Forget the token" }).count(), 0);
  page.shown.length = 0;
  await give(page, ` ${token} `);
  await live(page);
  await page.getByRole("heading", { name: "This server asks for a token" }).waitFor({ state: "hidden" });
  assert.equal(await page.evaluate(() => document.activeElement.id), "content", "a screen reader goes on there");
  await page.getByRole("link", { name: "desk-1", exact: true }).click();
  await page.locator(".map summary").click();
  await page.locator(".map td", { hasText: "GiB" }).first().waitFor();
  await page.keyboard.press("3");
  await page.getByRole("link", { name: "debian:1" }).click();
  await page.locator(".lineage > summary").click();
  await page.locator(".tree li").first().waitFor();
  const asked = new Set(page.shown.map(([path]) => path));
  for (const path of ["live", "disks", "disks/desk-1/map", "images", "lineage"])
    assert.ok(asked.has(`/api/v1/${path}`), path);
  for (const [path, shown] of page.shown) assert.equal(shown, `Bearer ${token}`, path);

  // It is in no address, no cookie and no storage that outlives the tab.
  const kept = await page.evaluate(() => ({
    address: location.href,
    cookies: document.cookie,
    local: Object.values(localStorage),
    session: Object.values(sessionStorage),
    field: document.querySelector("#token").value,
  }));
  assert.deepEqual(
    { ...kept, address: kept.address.includes("sojourn_") },
    { address: false, cookies: "", local: [], session: [token], field: "" },
  );
  await page.reload();
  await live(page);
  const other = await page.context().newPage();
  await other.goto(`${lab.url}/#now`);
  await field(other).waitFor();
  await close(page);
});

test("a token that was forgotten is gone, and what it showed", async () => {
  const page = await open("disks");
  await give(page, token);
  await page.getByRole("link", { name: "desk-1", exact: true }).waitFor();
  await page.getByRole("button", { name: "Forget the token" }).focus();
  await page.keyboard.press("Enter");
  await field(page).waitFor();
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  assert.ok(!(await page.content()).includes("desk-1"));
  await close(page);
});

test("what is no token, of another server, expired or revoked is told apart", async () => {
  const page = await open("now");
  await give(page, "sojourn_xyz");
  await alarm(page, "This is not a token");
  assert.equal(await field(page).getAttribute("aria-invalid"), "true");
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  await field(page).fill("");
  await give(page, `sojourn_${"0".repeat(64)}`);
  await alarm(page, "this token is not valid: it was revoked, or is of another server");
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);

  const short = made("short", "--read");
  await field(page).fill("");
  await give(page, short);
  await live(page);
  await page.keyboard.press("2");
  await page.getByRole("link", { name: "desk-1", exact: true }).waitFor();
  lab.run("token", "revoke", "short");
  // The list is asked for again when a disk is made.
  lab.run("disk", "create", "late", "--from", "debian", "--ephemeral");
  await alarm(page, "this token is not valid");
  await page.getByRole("link", { name: "desk-1", exact: true }).waitFor({ state: "hidden" });
  await field(page).fill("");
  await give(page, token);
  await page.getByRole("link", { name: "late", exact: true }).waitFor();
  await close(page);
});

test("a token for one disk shows that disk, and says what it does not show", async () => {
  const one = made("one", "--read", "--disk", "desk-2");
  const page = await open("disks");
  await give(page, one);
  await page.waitForSelector('[data-state="limited"]');
  await page.getByRole("status").filter({ hasText: "What happens now is not shown: the token one" }).waitFor();
  await page.getByRole("link", { name: "desk-2", exact: true }).click();
  const pane = page.getByRole("complementary", { name: "Disk" });
  await pane.getByText("not told").waitFor();
  await pane.locator(".map summary").click();
  await pane.locator(".map td", { hasText: "GiB" }).first().waitFor();
  assert.equal(await page.getByRole("link", { name: "desk-1", exact: true }).count(), 0);
  await close(page);
});

test("a page whose server restarts shows its token again", async () => {
  const page = await open("disks");
  await give(page, token);
  await live(page);
  await lab.kill();
  await page.getByText("The server does not answer.").waitFor();
  await lab.serve();
  await live(page);
  await page.getByText("The server does not answer.").waitFor({ state: "detached" });
  assert.equal(await field(page).isVisible(), false);
  await close(page);
});

test("no token is given to a page that came over plain HTTP from another machine", async () => {
  const url = lab.url.replace("127.0.0.1", "plain.example");
  // Such a page is told of by the browser, as its header for windows does not count there.
  const excused = new RegExp(`${REFUSALS.source}|Cross-Origin-Opener-Policy`);
  const page = await visit(browser, lab, "now", { url, excused });
  await page.getByText("This page came over plain HTTP from another machine").waitFor();
  assert.equal(await field(page).count(), 0);
  await close(page);
});

test("nothing keeps people out of the form, on any screen", async () => {
  for (const options of [
    { colorScheme: "light" },
    { colorScheme: "dark" },
    { viewport: { width: 390, height: 844 }, hasTouch: true },
  ]) {
    const page = await open("now", options);
    await give(page, "wrong");
    await alarm(page, "This is not a token");
    assert.deepEqual(await obstacles(page), [], JSON.stringify(options));
    await field(page).fill("");
    await give(page, token);
    await live(page);
    const wider = await overhang(page);
    assert.ok(wider <= 0, `${wider} px wider than the window: ${JSON.stringify(options)}`);
    await close(page);
  }
});
