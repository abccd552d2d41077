// The page: its frame, which page of it is shown, and whether the server is there.

import "uplot/dist/uPlot.min.css";
import "./style.css";
import { BootsPage } from "./boots.ts";
import { BorrowPage } from "./borrow.ts";
import { DisksPage } from "./disks.ts";
import { h, mark, say } from "./dom.ts";
import { count, duration } from "./format.ts";
import { ImagesPage } from "./images.ts";
import { LabPage } from "./lab.ts";
import { Live } from "./live.ts";
import { MachinesPage } from "./machines.ts";
import { MediaPage } from "./media.ts";
import { NowPage } from "./now.ts";
import type { Page } from "./page.ts";
import { TokenForm, token } from "./token.ts";
import { VmsPage } from "./vms.ts";

/** Every page by its name in the address. To add one: its file, and a line here. */
const PAGES: Record<string, () => Page> = {
  now: () => new NowPage(),
  disks: () => new DisksPage(),
  images: () => new ImagesPage(),
  machines: () => new MachinesPage(),
  boots: () => new BootsPage(),
  borrow: () => new BorrowPage(),
  lab: () => new LabPage(),
  vms: () => new VmsPage(),
  media: () => new MediaPage(),
};

const live = new Live();
const made = new Map<string, Page>();
let shown: Page | null = null;
/** The form stands in place of the page until the server takes a token. */
let asking = false;
/** It is a page that wants a token, and not the server: whoever goes to another page goes on without. */
let optional = false;

const host = h("span", { class: "host" });
const links = new Map<string, HTMLAnchorElement>();
const pages = h("ul");
for (const [name, title] of Object.entries({
  now: "Now",
  disks: "Disks",
  images: "Images",
  machines: "Machines",
  boots: "Boots",
  borrow: "Borrow",
  lab: "Lab",
  vms: "Virtual machines",
  media: "Media",
})) {
  const link = h("a", { href: `#${name}` }, title);
  links.set(name, link);
  pages.append(h("li", {}, link));
}
const state = h("p", { class: "connection" });
const notice = h("p", { class: "notice", role: "status" });
const main = h("main", { id: "content", tabindex: "-1" });
const heading = h("h1", { class: "unseen" });
const form = new TokenForm(() => live.open());
const forget = h("button", { type: "button", class: "forget", onclick: forgetToken }, "Forget the token");

document.body.append(
  h("a", { class: "skip", href: "#content", onclick: skip }, "Skip to the content"),
  h(
    "header",
    {},
    h("p", { class: "name" }, "Sojourn"),
    host,
    h("nav", { "aria-label": "Pages" }, pages),
    state,
    forget,
  ),
  notice,
  main,
);
main.append(heading, form.element);

token.refused = (why) => {
  // An answer that was on its way says nothing new.
  if (asking && why === null) return;
  asking = true;
  optional = false;
  shown?.leave?.();
  live.stop();
  form.show(why);
};

token.wanted = (why) => {
  token.refused(why);
  optional = true;
};

/** Forgets the token, and with it whatever it had shown: the page begins anew. */
function forgetToken(): void {
  token.forget();
  location.reload();
}

/** The server has taken the token. */
function enter(): void {
  asking = false;
  optional = false;
  form.hide();
  main.focus();
  go();
}

function skip(event: Event): void {
  event.preventDefault();
  main.focus();
}

function go(): void {
  const [name, ...rest] = location.hash.slice(1).split("/");
  const known = name !== undefined && Object.hasOwn(PAGES, name) ? name : "now";
  const page = made.get(known) ?? (PAGES[known] as () => Page)();
  made.set(known, page);
  if (page !== shown) {
    if (!asking) shown?.leave?.();
    if (optional) live.open();
    optional = false;
    shown?.element.remove();
    main.append(page.element);
    shown = page;
    live.want(page.rows);
    say(heading, page.title);
    for (const [other, link] of links) mark(link, "aria-current", other === known ? "page" : null);
    window.scrollTo(0, 0);
  }
  if (!asking) page.enter?.(rest.length > 0 ? decoded(rest.join("/")) : null);
  show();
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function show(): void {
  const { now, lost, paused, outdated, limited, asked, failure } = live;
  if (asking && !asked && (lost === null || limited !== null)) {
    enter();
    return;
  }
  shown?.update(live);
  if (shown) shown.element.hidden = asking;
  forget.hidden = asking || !token.held;
  const server = now?.server;
  say(host, server ? server.host : "");
  const gone = lost !== null && !paused && !asked && limited === null;
  document.documentElement.classList.toggle("lost", now !== null && gone);
  const up = server ? `${server.version}, up ${duration(server.uptime_seconds)}` : "";
  const [mode, told] = asked
    ? ["asked", "token needed"]
    : paused
      ? ["paused", "paused"]
      : limited !== null
        ? ["limited", "lists only"]
        : gone
          ? ["lost", now ? "no connection" : "connecting"]
          : ["live", `live · ${up}`];
  say(state, told);
  mark(state, "data-state", mode);
  if (gone && failure !== null) say(notice, `The server answers with an error: ${failure}`);
  else if (gone && now)
    say(notice, "The server does not answer. What you see is as it was; the page connects again by itself.");
  else if (limited !== null) say(notice, `What happens now is not shown: ${limited}.`);
  else if (outdated) say(notice, "The server was updated: load this page again for its new one.");
  else say(notice, "");
  const room = now?.head_room?.more;
  const parts = [
    room === null || room === undefined ? null : `${count(room)} more`,
    shown?.title,
    server?.host,
    "Sojourn",
  ];
  const wrong = gone && now ? "(?) " : now && now.troubles_total > 0 ? `(${count(now.troubles_total)}!) ` : "";
  document.title = wrong + parts.filter((part) => part).join(" · ");
}

document.addEventListener("keydown", (event) => {
  // What is asked comes first; it closes by itself.
  if (document.querySelector("dialog[open]") !== null) return;
  const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
  if (event.key === "Escape" && /^#\w+\//.test(location.hash)) location.hash = location.hash.split("/")[0] ?? "";
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const at = ["1", "2", "3", "4", "5", "6", "7", "8", "9"].indexOf(event.key);
  if (at >= 0) location.hash = Object.keys(PAGES)[at] ?? "";
  else if (event.key === "/" && shown?.search) {
    event.preventDefault();
    shown.search();
  }
});

addEventListener("hashchange", go);
live.listen(show);
// The age of what is shown, while nothing comes.
setInterval(() => {
  if (live.lost !== null && live.now && !live.paused && !live.asked && live.limited === null)
    say(state, `no connection for ${duration((Date.now() - live.lost) / 1000)}`);
}, 1000);
go();
