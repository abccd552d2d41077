"""What all steps share: the product's commands, the folders, tables, numbers as people read them."""

import json
import os
import subprocess

HERE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
TOP = os.path.dirname(os.path.dirname(HERE))
RESULTS = os.path.join(HERE, "results")
KIB, MIB = 1 << 10, 1 << 20


class Missing(Exception):
    """Something that a step needs is not there."""


class Sojourn:
    """The binary: everything that is computed here, it computes. `work` is a folder for what is made on the way."""

    def __init__(self, binary, work):
        if not os.access(binary, os.X_OK):
            raise Missing(f"{binary} is not there; run make build")
        self.binary, self.work = binary, work

    def __call__(self, *words):
        """What a command prints with --json."""
        line = [self.binary, "--json", *map(str, words)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Missing(f"{' '.join(line)} ended with {done.returncode}\n{done.stderr.strip()}")
        return json.loads(done.stdout)


def size(count):
    """Bytes in binary units."""
    for unit, scale in (("MiB", MIB), ("KiB", KIB)):
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count} B"


def percent(part, digits=1):
    """A share of 1."""
    return f"{part * 100:.{digits}f} %"


def table(titles, rows):
    """Markdown."""
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def keep(name, figures, page, plots=()):
    """Writes the results of a step: NAME.json, NAME.md, and its plots, (name, SVG) each."""
    os.makedirs(RESULTS, exist_ok=True)
    write(f"{name}.json", json.dumps(figures) + "\n")
    for plot, svg in plots:
        write(f"{plot}.svg", svg)
    images = "".join(f"\n![{plot}]({plot}.svg)\n" for plot, _ in plots)
    write(f"{name}.md", page.rstrip() + "\n" + images + f"\nMade by `experiments/transcom/run {name}`.\n")


def gathered(step, order, found):
    """What is known of each load, in this order: what was `found` now, else what an earlier run of the step kept,
    which is marked `kept`. So a run without some traces loses nothing."""
    path = os.path.join(RESULTS, f"{step}.json")
    earlier = kept(step).get("loads", {}) if os.path.exists(path) else {}
    known = {}
    for load in order:
        if load in found:
            # As it will be read again: the pages of this run and of a later one are made of the same.
            known[load] = json.loads(json.dumps(found[load]))
        elif load in earlier:
            known[load] = {**earlier[load], "kept": True}
    return known


def named(load, known):
    """The name of a load in a table."""
    return load + (" (kept)" if known[load].get("kept") else "")


def note(known):
    """What the marks in a page mean, if there are any."""
    if not any(of.get("kept") for of in known.values()):
        return ""
    return ("\n(kept): the traces of this load were not at hand in the last run; the figures are an earlier one's.\n")


def write(name, text):
    """A file of the results."""
    with open(os.path.join(RESULTS, name), "w", encoding="utf-8") as f:
        f.write(text)


def kept(name):
    """What another step has found."""
    path = os.path.join(RESULTS, f"{name}.json")
    if not os.path.exists(path):
        raise Missing(f"needs the results of {name}: experiments/transcom/run {name}")
    with open(path, encoding="utf-8") as f:
        return json.load(f)
