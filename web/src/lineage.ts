// The lineage of an image version: from what it was committed, and what came of it, as a tree. It is asked for
// while it is open.

import { ask, type LineageName, type LineageNode } from "./api.ts";
import { h, mark, say } from "./dom.ts";
import { byName, count, date, some } from "./format.ts";
import { Listing } from "./page.ts";

/** So many disks or snapshots of one parent are named. */
const NAMED = 50;
/** More than so many are folded. */
const FEW = 8;

const key = ({ kind, name }: LineageName): string => `${kind} ${name}`;

/** What stands on what. */
class Family {
  private readonly nodes = new Map<string, LineageNode>();
  private readonly children = new Map<string, LineageNode[]>();

  constructor(nodes: LineageNode[]) {
    for (const node of nodes) this.nodes.set(key(node), node);
    for (const node of nodes) {
      if (!node.on) continue;
      const list = this.children.get(key(node.on));
      if (list) list.push(node);
      else this.children.set(key(node.on), [node]);
    }
    for (const list of this.children.values()) list.sort((a, b) => byName(a.name, b.name));
  }

  of(name: LineageName): LineageNode | undefined {
    return this.nodes.get(key(name));
  }

  on(name: LineageName): LineageNode[] {
    return this.children.get(key(name)) ?? [];
  }

  /** The earliest that is known of those on which it stands. */
  root(name: LineageName): LineageName {
    const seen = new Set<string>();
    let at = name;
    for (;;) {
      const on = this.of(at)?.on;
      // What names itself by a detour was not made by commits.
      if (!on || seen.has(key(on))) return at;
      seen.add(key(on));
      at = on;
    }
  }
}

export class LineageTree {
  readonly element: HTMLDetailsElement;
  private readonly failure = h("p", { class: "failure" });
  private readonly tree = h("div", { class: "tree" });
  private readonly asking = new Listing(
    15,
    () => this.load(),
    (error) => say(this.failure, error ? `The lineage is not up to date: ${error.message}` : ""),
  );
  private version: string | null = null;
  private nodes: LineageNode[] = [];
  private drawn = "";

  constructor() {
    this.element = h(
      "details",
      { class: "lineage", ontoggle: () => this.turn() },
      h("summary", {}, "Lineage"),
      this.failure,
      this.tree,
    );
  }

  /** It is of this version from now on, or of none. */
  of(version: string | null): void {
    this.version = version;
    this.turn();
    this.draw();
  }

  private turn(): void {
    if (this.version !== null && this.element.open) this.asking.start();
    else this.asking.stop();
  }

  private async load(): Promise<void> {
    this.nodes = (await ask<{ nodes: LineageNode[] }>("lineage")).nodes;
    this.draw();
  }

  private draw(): void {
    if (this.version === null || this.nodes.length === 0) return;
    const family = new Family(this.nodes);
    const root = family.root({ kind: "image", name: this.version });
    const list = h("ul", {}, this.branch(family, root, new Set()));
    // What is the same is left alone: somebody may be reading it, or have opened a part.
    const text = `${this.version}\n${list.textContent}`;
    if (text === this.drawn) return;
    this.drawn = text;
    this.tree.replaceChildren(list);
  }

  /** A node with what stands on it. */
  private branch(family: Family, name: LineageName, above: Set<string>): HTMLElement {
    const node = family.of(name);
    const item = h("li", { class: `is-${name.kind}` }, this.label(name), h("small", {}, told(node)));
    if (above.has(key(name))) return item;
    const on = family.on(name);
    const below = new Set(above).add(key(name));
    const groups = (["image", "snapshot", "disk"] as const).map((kind) => on.filter((one) => one.kind === kind));
    const list = h("ul");
    for (const group of groups) {
      const branches = group.slice(0, NAMED).map((one) => this.branch(family, one, below));
      if (group.length > branches.length) branches.push(h("li", {}, `and ${count(group.length - NAMED)} more`));
      if (group.length <= FEW) list.append(...branches);
      else list.append(h("li", {}, folded(group, branches)));
    }
    if (list.childElementCount > 0) item.append(list);
    return item;
  }

  private label({ kind, name }: LineageName): HTMLElement {
    if (kind === "snapshot") return h("span", {}, `snapshot ${name}`);
    const page = kind === "image" ? "images" : "disks";
    const link = h("a", { href: `#${page}/${encodeURIComponent(name)}` }, kind === "disk" ? `disk ${name}` : name);
    if (kind === "image" && name === this.version) mark(link, "aria-current", "true");
    return link;
  }
}

function folded(group: LineageNode[], branches: HTMLElement[]): HTMLElement {
  return h("details", {}, h("summary", {}, some(group.length, group[0]?.kind ?? "")), h("ul", {}, ...branches));
}

/** What is said of a node beside its name. */
function told(node: LineageNode | undefined): string {
  if (!node) return " is gone";
  if (node.error !== null) return ` ${node.error}`;
  const by = node.by ? `, committed from disk ${node.by.name}` : "";
  return ` ${date(node.created)}${by}`;
}
