// Builds the page into crates/server/assets, from where it goes into the binary; or with --check compares
// it with what is there, and changes nothing.

import * as esbuild from "esbuild";
import { readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL(".", import.meta.url));
const target = fileURLToPath(new URL("../crates/server/assets/", import.meta.url));

const built = await esbuild.build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.ts" },
  outdir: "out",
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  // uPlot's licence wants to be told.
  legalComments: "eof",
  banner: { js: "/* Built by web/build.mjs: do not edit. uPlot: (c) Leon Sorokin, MIT licence. */" },
  write: false,
  logLevel: "warning",
});

const files = new Map(built.outputFiles.map((file) => [file.path.split("/").pop(), file.text]));
for (const name of ["index.html", "icon.svg"]) {
  files.set(name, await readFile(`${here}src/${name}`, "utf8"));
}

let stale = [];
for (const [name, text] of files) {
  const present = await readFile(target + name, "utf8").catch(() => null);
  if (present === text) continue;
  stale.push(name);
  if (!process.argv.includes("--check")) await writeFile(target + name, text);
}
if (process.argv.includes("--check") && stale.length > 0) {
  console.error(`web: crates/server/assets is not what web/src builds (${stale.join(", ")}): scripts/web build`);
  process.exit(1);
}
