// The lab in a real browser: a trace that is dropped or was recorded, studied by a real server.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { browse, get, Lab, obstacles, office, overhang, until, visit } from "./lab.mjs";

/** A name that is text wherever it is shown. */
const ODD = "<img src=x onerror=document.title='owned'>.csv";

let lab, browser, token, reader, csv;

before(async () => {
  lab = new Lab();
  lab.run("disk", "create", "desk-1", "--from", "debian");
  await lab.serve();
  browser = await browse();
  token = lab.run("token", "create", "lab", "--operate").trim();
  reader = lab.run("token", "create", "reader", "--read").trim();
  lab.client("desk-1", office(1, 2000), 2);
  csv = ["time_ms,op,offset,length", ...office(3, 4000).map((line, at) => [at * 3, ...line].join(","))].join("\n");
});

after(async () => {
  await browser?.close();
  await lab?.end();
});

async function open(options = {}) {
  const page = await visit(browser, lab, "lab", { excused: /net::ERR_|40[0-9]/, ...options });
  await page.waitForSelector('[data-state="live"]');
  return page;
}

async function close(page) {
  assert.deepEqual(page.wrong, []);
  await page.context().close();
}

/** Gives the page a token in the form that asks for one. */
async function give(page, text) {
  await page.getByLabel("Token", { exact: true }).fill(text);
  await page.getByRole("button", { name: "Use it" }).click();
  await page.getByRole("button", { name: "Study it" }).waitFor();
}

const choose = (page, name, text) =>
  page.setInputFiles("#trace", { name, mimeType: "text/csv", buffer: Buffer.from(text) });

async function answered(page) {
  const plot = (name) => page.getByRole("img", { name });
  await plot(/^Hits by size of the cache; at .*opt \d/).waitFor();
  await page
    .getByText(/: leave the policy as it is|which is expected to miss/)
    .first()
    .waitFor();
  await plot(/^Response by number of clients; at /).waitFor();
  await page.getByRole("button", { name: "Stop" }).waitFor({ state: "hidden" });
}

test("a trace of one's own is studied, by whoever has the right", async () => {
  const page = await open();
  const study = page.getByRole("button", { name: "Study it" });
  assert.ok(await study.isDisabled());
  await choose(page, ODD, csv);
  await page.getByText(ODD).first().waitFor();
  await study.click();
  // Without a token one may look, and no more.
  await page.getByRole("alert").filter({ hasText: "this takes a token" }).waitFor();
  await page.getByRole("button", { name: "Use another token" }).click();
  await page.getByText("The lab takes a token with the right operate").waitFor();
  await give(page, reader);
  await study.click();
  await page.getByRole("alert").filter({ hasText: "takes operate" }).waitFor();
  await page.getByRole("button", { name: "Use another token" }).click();
  await give(page, token);
  // What was chosen is still chosen.
  await page.getByLabel("Sizes of the cache").fill("1MiB,16MiB");
  await study.focus();
  await page.keyboard.press("Enter");
  await answered(page);
  await page.getByRole("definition").filter({ hasText: "4,000" }).first().waitFor();
  for (const kind of ["read", "write"]) await page.getByRole("rowheader", { name: kind, exact: true }).waitFor();
  await page.getByRole("columnheader", { name: "16 MiB", exact: true }).first().waitFor();
  await page.getByText('size = "16 MiB"').waitFor();
  const drawn = await page.locator(".line-plot canvas").evaluateAll((all) =>
    all.every((canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return data.some((value) => value !== 0);
    }),
  );
  assert.ok(drawn);
  assert.equal(await page.locator("img").count(), 0);
  assert.doesNotMatch(await page.title(), /owned/);
  await close(page);
});

test("what is no trace, or too long, is said; and one may stop", async () => {
  const page = await open();
  await page.evaluate((text) => sessionStorage.setItem("sojourn-token", text), token);
  await page.reload();
  await choose(page, "letter.txt", "Dear Sir or Madam");
  await page.getByRole("button", { name: "Study it" }).click();
  await page.getByText("not a trace of a known format").first().waitFor();
  await page.getByRole("button", { name: "Stop" }).waitFor({ state: "hidden" });
  await choose(page, "again.csv", csv);
  await page.getByText("not a trace of a known format").first().waitFor({ state: "detached" });
  // Held up on its way, so that there is something to stop.
  await page.route("**/api/v1/lab/stats*", () => {});
  await page.getByRole("button", { name: "Study it" }).click();
  await page.getByRole("button", { name: "Stop" }).click();
  await page.getByText("Not asked any more.").waitFor();
  await page.unroute("**/api/v1/lab/stats*");
  // A drop, which a driver cannot make by hand.
  const dropped = async (size) => {
    const files = await page.evaluateHandle((size) => {
      const transfer = new DataTransfer();
      transfer.items.add(new File([new Uint8Array(size)], "dropped.bin"));
      return transfer;
    }, size);
    await page.dispatchEvent(".lab", "drop", { dataTransfer: files });
  };
  await dropped(2048);
  await page.getByText("dropped.bin, 2.0 KiB").waitFor();
  await dropped(65 * 2 ** 20);
  await page.getByRole("alert").filter({ hasText: "dropped.bin has 65 MiB, and the server takes 64 MiB" }).waitFor();
  assert.ok(await page.getByRole("button", { name: "Study it" }).isDisabled());
  await close(page);
});

test("a trace that the server recorded is studied there", async () => {
  const recorded = async () => {
    const { recordings } = JSON.parse((await get(`${lab.url}/api/v1/lab/recordings`)).text);
    return recordings.some(({ bytes }) => bytes > 10_000) && recordings;
  };
  const [{ name }] = await until("a recording", recorded);
  const page = await open();
  await page.evaluate((text) => sessionStorage.setItem("sojourn-token", text), token);
  await page.reload();
  const list = page.getByLabel("or one that the server recorded");
  await page.waitForFunction(() => document.querySelector("#recording").options.length > 1);
  await list.selectOption(name);
  await page.locator(".chosen-trace", { hasText: name }).waitFor();
  // Digits choose no page while one chooses a recording.
  await list.press("1");
  await page.locator("nav [aria-current=page]", { hasText: "Lab" }).waitFor();
  await page.getByLabel("Sizes of the cache").fill("4MiB-16MiB");
  await page.getByRole("button", { name: "Study it" }).click();
  await answered(page);
  await page.getByText("and the trace breaks off").waitFor();
  await close(page);
});

test("nothing of the lab keeps people out", async () => {
  for (const options of [
    { colorScheme: "light" },
    { colorScheme: "dark" },
    { viewport: { width: 390, height: 844 }, hasTouch: true },
  ]) {
    const page = await open(options);
    await page.evaluate((text) => sessionStorage.setItem("sojourn-token", text), token);
    await page.reload();
    await choose(page, "day.csv", csv);
    await page.getByRole("button", { name: "Study it" }).click();
    await answered(page);
    assert.deepEqual(await obstacles(page), [], JSON.stringify(options));
    const wider = await overhang(page);
    assert.ok(wider <= 0, `${wider} px wider than the window: ${JSON.stringify(options)}`);
    await close(page);
  }
});
