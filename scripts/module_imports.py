"""Imports between the modules of a crate, and those of them that point up.

Every folder is looked at by itself: its modules are the files and folders right below it, and what is in a
folder counts as the folder. Right below `src`, what `lib.rs` or `main.rs` defines itself is a module, too,
called `crate`; further down a folder's own file (`mod.rs`, or the file of the folder's name) is above its
modules, which may use what it defines. One module imports another where its code, without tests and
comments, names it: by `crate::other`, by `super::other`, or by an item that the file above brings into scope
from it. Modules that import each other in a circle have no order from top to bottom: of the imports of a
circle, the fewest that a simple search finds whose removal breaks it are called up.
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
    """The files of a crate's modules: the module's path in the crate, as words, and the file's path."""
    top = os.path.join(crate, "src")
    for folder, _, files in sorted(os.walk(top)):
        for file in sorted(files):
            path = os.path.join(folder, file)
            words = os.path.relpath(path, top)[:-3].split(os.sep)
            if not file.endswith(".rs") or "tests" in words or words[0] == "bin":
                continue
            if words[-1] == "mod" or (len(words) == 1 and file in ROOTS):
                words.pop()
            yield tuple(words), path


def absolute(words, used, modules):
    """A path that the module `words` names, from the crate's top; None for that of another crate."""
    if used[0] == "crate":
        return tuple(used[1:])
    if used[0] == "super":
        up = len([word for word in used if word == "super"])
        return words[: max(len(words) - up, 0)] + tuple(used[up:])
    if used[0] == "self":
        return words + tuple(used[1:])
    return words + tuple(used) if words + (used[0],) in modules else None


def brought(files, modules):
    """The items that modules bring into their scope from modules below them: module, item, its path."""
    found = {}
    for words, text, _ in files:
        for use in re.finditer(r"\buse\s+([^;]+);", text):
            renamed = dict(re.findall(r"(\w+) as (\w+)", use.group(1)))
            for used in spread([], use.group(1)):
                path = absolute(words, used, modules)
                if path and path[: len(words)] == words and len(path) > len(words) + 1:
                    found[words, renamed.get(path[-1], path[-1])] = path
    return found


def resolved(path, modules, items):
    """The module in which that which the path names is defined."""
    for _ in range(len(path) + 8):
        at = next(end for end in range(len(path), -1, -1) if path[:end] in modules or not end)
        below = items.get((path[:at], path[at])) if at < len(path) else None
        if not below or below[:at] != path[:at]:
            break
        path = below + path[at + 1 :]
    return path[:at]


def imports(crate):
    """The imports between the modules of each folder: (folder, from, to), and the files in which they stand."""
    files = [(words, code(open(path, encoding="utf-8").read()), path) for words, path in sources(crate)]
    modules = {words[:end] for words, *_ in files for end in range(len(words) + 1)}
    items = brought(files, modules)
    found = {}
    for words, text, path in files:
        if not words:
            text = re.sub(r"\bpub(?:\(crate\))? use\s+[^;]+;", "", text)
        for used in uses(text):
            target = absolute(words, used, modules)
            if target is None:
                continue
            target = resolved(target, modules, items)
            same = 0
            while same < min(len(words), len(target)) and words[same] == target[same]:
                same += 1
            ends = [names[same] if same < len(names) else ROOT for names in (words, target)]
            if ends[0] != ends[1] and (same == 0 or ROOT not in ends):
                found.setdefault((words[:same], *ends), set()).add(path)
    return found


def ups(found):
    """Those of the imports that point up."""
    for folder in sorted({folder for folder, *_ in found}):
        for edge in up({(a, b) for at, a, b in found if at == folder}):
            yield (folder, *edge)


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
