// The pictures of docs/dashboard.md: a server with two hundred disks on an ordinary morning.

import { writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { browse, Lab, office } from "./lab.mjs";

/** How long the clients work before the picture is taken, in milliseconds. */
const MORNING = 9 * 60_000;
const MOST_BYTES = 150 << 10;
const docs = fileURLToPath(new URL("../../docs/", import.meta.url));

/** Playwright itself makes PNG and JPEG; WebP is a third of that. */
async function picture(page, name) {
  const browser = await page.context().newCDPSession(page);
  const { data } = await browser.send("Page.captureScreenshot", { format: "webp", quality: 90 });
  const bytes = Buffer.from(data, "base64");
  if (bytes.length > MOST_BYTES) throw new Error(`the picture ${name} has ${bytes.length} bytes`);
  writeFileSync(`${docs}dashboard-${name}.webp`, bytes);
  console.log(`docs/dashboard-${name}.webp: ${(bytes.length / 1024).toFixed(0)} KiB`);
}

const lab = new Lab();
let browser;
try {
  await lab.serve();
  await lab.disks(200);
  browser = await browse();
  const size = { width: 1280, height: 1120 };
  const now = await browser.newPage({ viewport: size, colorScheme: "light" });
  await now.goto(`${lab.url}/#now`);
  for (let at = 1; at <= 14; at += 1) {
    lab.client(`desk-${at}`, office(at, 4000, 0.1 + at / 50), 2 + at);
    await now.waitForTimeout(MORNING / 40);
  }
  await now.waitForTimeout((MORNING * 26) / 40);
  await now.waitForSelector(".forecast .used");
  await picture(now, "now");
  const disks = await browser.newPage({ viewport: { width: 1280, height: 560 }, colorScheme: "dark" });
  await disks.goto(`${lab.url}/#disks/desk-7`);
  await disks.waitForSelector(".rows tbody .is-in-use");
  await disks.waitForTimeout(2000);
  await picture(disks, "disks");
} finally {
  await browser?.close();
  await lab.end();
}
