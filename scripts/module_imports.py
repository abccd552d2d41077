"""Imports between the top-level modules of a crate, and those of them that point up.

A module is a file or a folder right below `src`; what `lib.rs` or `main.rs` defines itself is the module
`crate`. One imports another where its code, without tests and comments, names it: by `crate::other`, by
`super::other` out of the top level, or by an item that `lib.rs` re-exports from it. Modules that import
each other in a circle have no order from top to bottom: of the imports of a circle, the fewest that a
simple search finds whose removal breaks it are called up.
"""

import os
import re

ROOTS = ("lib.rs", "main.rs")
ROOT = "crate"


def code(text):
    """The text without comments, strings and the modules of tests."""
    text = re.sub(r'r(#*)".*?"\1|"(?:\\.|[^"\\])*"', '""', text, flags=re.S)
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    out, at = [], 0
    for test in re.finditer(r"#\[cfg\((?:test|any\(test[^\]]*)\)\]\s*(?:pub(?:\([^)]*\))? )?mod \w+\s*\{", text):
        if test.start() < at:
            continue
        out.append(text[at : test.start()])
        depth, at = 1, test.end()
        while depth and at < len(text):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
    return "".join(out) + text[at:]


def uses(text):
    """The paths that a text imports or names, as lists of words."""
    for use in re.finditer(r"\buse\s+([^;]+);", text):
        yield from spread([], use.group(1))
    for path in re.finditer(r"(?<![\w:])(\w+(?:::\w+)+)", re.sub(r"\buse\s+[^;]+;", "", text)):
        yield path.group(1).split("::")


def spread(before, tree):
    """The paths of the tree of a `use`."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    if not brace:
        yield before + [word.split(" as ")[0].strip() for word in tree.split("::")]
        return
    before = before + [word.strip() for word in head.strip().rstrip(":").split("::") if word.strip()]
    depth, item = 0, ""
    for letter in rest.rstrip()[:-1] + ",":
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            if item.strip():
                yield from spread(before, item)
            item = ""
        else:
            item += letter


def sources(crate):
    """The files of a crate's modules: name of the module, its path in the crate, path."""
    top = os.path.join(crate, "src")
    for folder, _, files in sorted(os.walk(top)):
        for file in sorted(files):
            path = os.path.join(folder, file)
            words = os.path.relpath(path, top)[:-3].split(os.sep)
            if not file.endswith(".rs") or "tests" in words or words[0] == "bin":
                continue
            if words[-1] == "mod" or (len(words) == 1 and file in ROOTS):
                words.pop()
            yield words[0] if words else ROOT, words, path


def imports(crate):
    """The imports between modules: from, to, and the files in which they stand."""
    files = [(name, words, code(open(path, encoding="utf-8").read()), path) for name, words, path in sources(crate)]
    modules = {name for name, *_ in files}
    items = {}
    for name, _, text, _ in files:
        if name == ROOT:
            for use in re.finditer(r"\bpub(?:\(crate\))? use\s+([^;]+);", text):
                renamed = dict(re.findall(r"(\w+) as (\w+)", use.group(1)))
                for path in spread([], use.group(1)):
                    path = path[1:] if path[0] in ("crate", "self") else path
                    if path[0] in modules:
                        items[renamed.get(path[-1], path[-1])] = path[0]
    found = {}
    for name, words, text, path in files:
        if name == ROOT:
            text = re.sub(r"\bpub(?:\(crate\))? use\s+[^;]+;", "", text)
        for used in uses(text):
            if used[0] == "super":
                up = len([word for word in used if word == "super"])
                used = words[: max(len(words) - up, 0)] + used[up:]
            elif used[0] in ("crate", "self"):
                used = (words if used[0] == "self" else []) + used[1:]
            elif name != ROOT or used[0] not in modules:
                continue  # another crate, or something of the same module
            target = used[0] if used else ROOT
            target = target if target in modules else items.get(target, ROOT)
            if target != name and (target != ROOT or name != ROOT):
                found.setdefault((name, target), set()).add(path)
    return found


def up(edges):
    """The imports of circles whose removal breaks them: modules are put in an order, those that nobody
    in the circle imports first, and of the others that which imports most and is imported least."""
    edges, found = set(edges), []
    nodes = {node for edge in edges for node in edge}
    last = []
    first = []
    while nodes:
        inner = [(a, b) for a, b in edges if a in nodes and b in nodes]
        below = {node: sum(a == node for a, _ in inner) for node in nodes}
        above = {node: sum(b == node for _, b in inner) for node in nodes}
        sinks = sorted(node for node in nodes if not below[node])
        tops = sorted(node for node in nodes if not above[node])
        if sinks:
            last, taken = sinks + last, sinks
        elif tops:
            first, taken = first + tops, tops
        else:
            taken = [max(sorted(nodes), key=lambda node: below[node] - above[node])]
            first = first + taken
        nodes -= set(taken)
    rank = {node: at for at, node in enumerate(first + last)}
    found = sorted((a, b) for a, b in edges if rank[a] > rank[b])
    return found
