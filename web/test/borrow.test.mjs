// Borrowed room in a real browser: a server that keeps what ephemeral disks write on the free blocks of another disk.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Document } from "./document.mjs";
import { browse, get, Lab, obstacles, overhang, until, visit } from "./lab.mjs";

const MIB = 1 << 20;
/** A name that is text wherever it is shown. */
const ODD = "<b id=owned>.img";

let lab, browser, lender;

/** Makes an image of a disk with free blocks. */
function lend(path) {
  writeFileSync(path, "");
  truncateSync(path, 256 * MIB);
  const env = { ...process.env, PATH: `${process.env.PATH}:/usr/sbin:/sbin` };
  const made = spawnSync("mke2fs", ["-q", "-F", "-t", "ext4", path], { encoding: "utf8", env });
  if (made.status !== 0) throw new Error(`mke2fs: ${made.error ?? made.stderr}`);
}

before(async () => {
  lab = new Lab();
  lender = join(lab.dir, ODD);
  lend(lender);
  lab.run("disk", "create", "guest", "--from", "debian", "--ephemeral");
  browser = await browse();
});

after(async () => {
  await browser?.close();
  await lab?.end();
});

async function open(options = {}) {
  const page = await visit(browser, lab, "borrow", options);
  await page.waitForSelector('[data-state="live"]');
  return page;
}

async function close(page) {
  assert.deepEqual(page.wrong, []);
  await page.context().close();
}

const borrowed = async () => JSON.parse((await get(`${lab.url}/api/v1/borrowed`)).text);

test("a server that borrows nothing says so", async () => {
  await lab.serve();
  assert.deepEqual((await borrowed()).room, null);
  const page = await open();
  await page.getByText("Nothing is borrowed: sojourn serve --shadow borrowed").waitFor();
  await close(page);
  await lab.stop();
});

test("borrowed room is shown where it lies, and how much of it is used", async () => {
  await lab.serve("--shadow", "borrowed", "--borrow", lender, "--borrow-size", "64M");
  const page = await open();
  await page.getByRole("heading", { name: "Room for the ephemeral disks of this server" }).waitFor();
  await page
    .getByRole("definition")
    .filter({ hasText: /^64\sMiB$/ })
    .waitFor();
  await page.getByRole("heading", { name: ODD }).waitFor();
  assert.equal(await page.locator("#owned").count(), 0);
  const picture = page.getByRole("img", { name: /^Map of .*: 64\sMiB in \d+ ranges?, 25\.0\s% of 256\sMiB$/ });
  await picture.waitFor();
  // Cells that are lent, and cells that are not.
  const colours = () =>
    picture.evaluate((canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const seen = new Set();
      for (let at = 0; at < data.length; at += 4) seen.add(`${data.slice(at, at + 4).join(" ")}`);
      return seen.size;
    });
  await until("the map", async () => (await colours()) >= 2);
  lab.client("guest", [["W", 0, 4 * MIB]], 50);
  await page
    .getByRole("definition")
    .filter({ hasText: /^4\.\d\sMiB, 6\.\d\s%$/ })
    .waitFor();
  await page.keyboard.press("1");
  await page.keyboard.press("6");
  await picture.waitFor();
  await close(page);
});

test("a borrowed disk of this home is there while it is up", async () => {
  const state = join(lab.dir, "state.img");
  writeFileSync(state, Buffer.alloc(MIB, 7));
  const second = join(lab.dir, "second.img");
  lend(second);
  lab.start("borrow", "up", second, "--size", "32M", "--as", "nbd", "--name", "scratch", "--state", state);
  const page = await open();
  const heading = page.getByRole("heading", { name: "Borrowed disk scratch" });
  await heading.waitFor();
  await page.getByRole("heading", { name: second }).waitFor();
  await page.getByText("written back at the end").waitFor();
  const document = new Document(JSON.parse((await get(`${lab.url}/api/v1/openapi.json`)).text));
  document.check("Borrowed", await borrowed());
  const of = /^(Borrowed|Lent)/;
  assert.deepEqual(
    document.unseen().filter((name) => of.test(name)),
    [],
  );
  lab.run("borrow", "down", "scratch");
  await heading.waitFor({ state: "detached" });
  await close(page);
});

test("what is told of borrowed room is what openapi.json says", async () => {
  const document = new Document(JSON.parse((await get(`${lab.url}/api/v1/openapi.json`)).text));
  const told = await borrowed();
  document.check("Borrowed", told);
  const [{ map, bytes }] = told.room.lent;
  assert.equal(
    map.cells.reduce((sum, cell) => sum + cell, 0),
    bytes,
  );
  assert.ok(map.cells.length <= 512 && map.size === 256 * MIB);
});

test("nothing of it keeps people out", async () => {
  for (const options of [
    { colorScheme: "light" },
    { colorScheme: "dark" },
    { viewport: { width: 390, height: 844 }, hasTouch: true },
  ]) {
    const page = await open(options);
    await page.getByRole("img", { name: /^Map of/ }).waitFor();
    assert.deepEqual(await obstacles(page), [], JSON.stringify(options));
    const wider = await overhang(page);
    assert.ok(wider <= 0, `${wider} px wider than the window: ${JSON.stringify(options)}`);
    await close(page);
  }
});
