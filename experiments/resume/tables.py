"""The tables and the plots of the results."""

import os

import desktop
import sizes
from labkit import plots

PAPER = {
    # Figure 7 of IRP-TR-03-10: resume latency in seconds, without and with a device.
    "100m": (14, 13),
    "10m": (39, 12),
    "1m": (317, 12),
    "100k": (4301, 12),
}
OPERATIONS_PAPER = {
    # Figure 8: total operation latency in seconds, without and with a DVD of the fresh system.
    "100m": (173, 161),
    "10m": (370, 212),
    "1m": (2688, 1032),
    "100k": (30531, 9530),
}
NAMES = {"100m": "100 Mb/s", "10m": "10 Mb/s", "1m": "1 Mb/s", "100k": "100 Kb/s"}
OTHERS = {"copied": "copied, as `virsh save` and `scp` do", "zstd": "the same, compressed by zstd",
          "stream": "straight into the QEMU that waits for it",
          "mapped-ram": "`mapped-ram` of QEMU 9 and newer, copied"}
BARS = {"paper": ("#888888", "paper"), "paper-key": ("#bbbbbb", "paper, with a key"),
        "copied": ("#b08fc7", "all copied"), "ours": ("#c4441c", "as it is touched"),
        "ours-key": ("#1f5fa8", "with a medium")}


def write(folder, results, links):
    """results.md, plot.svg and slowdown.svg."""
    cells, copied = results["cells"], results.get("others", [])
    desk = results.get("desktop_cells", [])
    text = "\n".join([*resumes(cells, links), "", *gateways(cells, links), "", facts(results), "",
                      *others(copied, cells, links), *stored(results.get("sizes", []), copied),
                      *suspensions(results.get("desktop")),
                      *operations(desk, links), *launches(desk, results.get("desktop"), links)])
    with open(os.path.join(folder, "results.md"), "w", encoding="utf-8") as f:
        f.write(text)
    with open(os.path.join(folder, "plot.svg"), "w", encoding="utf-8") as f:
        f.write(plot(cells, copied, links))
    if here_of(desk):
        with open(os.path.join(folder, "slowdown.svg"), "w", encoding="utf-8") as f:
            f.write(distribution(desk))
    print(text)


def resumes(cells, links):
    """A row for each link, without and with a medium."""
    yield ("| link | medium | paper, s | guest runs, s | first output, s | on the wire | requests | "
           "with a resume set: guest runs, s | first output, s | on the wire | requests | load |")
    yield "|" + "---|" * 12
    for link in links:
        for medium in (False, True):
            pair = [found(cells, link, medium, recorded) for recorded in (False, True)]
            if any(pair):
                loads = " ".join(f"{cell['load']:.1f}" for cell in pair if cell)
                figures = [figure for cell in pair for figure in figures_of(cell)]
                row = [NAMES[link], "yes" if medium else "no", f"{PAPER[link][medium]:,}", *figures, loads]
                yield "| " + " | ".join(row) + " |"


def gateways(cells, links):
    """A row for each link and medium: what comes by S3, and by a gateway."""
    yield ("| link | medium | paper, s | by S3: first output, s | on the wire | requests | "
           "by a gateway: guest runs, s | first output, s | on the wire | requests | load |")
    yield "|" + "---|" * 11
    for link in links:
        for medium in (False, True):
            s3, gateway = (found(cells, link, medium, True, by) for by in ("s3", "gateway"))
            if gateway:
                row = [NAMES[link], "yes" if medium else "no", f"{PAPER[link][medium]:,}", *figures_of(s3)[1:],
                       *figures_of(gateway), f"{gateway['load']:.1f}"]
                yield "| " + " | ".join(row) + " |"


def found(cells, link, medium, recorded, by="s3"):
    """A cell, or None."""
    wanted = (link, medium, recorded, by)
    return next((c for c in cells if (c["link"], c["medium"], c["resume_set"], c["by"]) == wanted), None)


def figures_of(cell):
    """Until the guest runs, until it says something, and the bytes and requests until then."""
    if cell is None:
        return ["-", "-", "-", "-"]
    if "failed" in cell:
        return ["-", f"failed after {seconds(cell['failed_after'])}", "-", "-"]
    return [seconds(cell["running_seconds"]), seconds(cell["output_seconds"]), mebibytes(cell["wire_bytes"]),
            str(cell.get("requests", "-"))]


def others(copied, cells, links):
    """Beside ours: all of the memory is copied, and then the machine goes on."""
    if not copied:
        return
    yield "| until the first output, s | bytes | " + " | ".join(NAMES[link] for link in links) + " |"
    yield "|" + "---|" * (2 + len(links))
    for way, name in OTHERS.items():
        of_way = {cell["link"]: cell for cell in copied if cell["way"] == way}
        if of_way:
            figures = [time_of(of_way.get(link)) for link in links]
            size = mebibytes(next(iter(of_way.values()))["bytes"])
            yield f"| {name} | {size} | " + " | ".join(figures) + " |"
    for medium, name in ((False, "ours, without a medium"), (True, "ours, with a medium")):
        figures = [time_of(found(cells, link, medium, True)) for link in links]
        yield f"| {name} | what is touched | " + " | ".join(figures) + " |"
    yield from ("", "With ~ the link's rate was reckoned with.", "")


def stored(rows, copied):
    """What the suspensions of one guest stored, beside other forms of its memory."""
    if not rows:
        return
    yield f"| suspension of a guest of {sizes.MEMORY} MiB | stored | the guest stood still for, s |"
    yield "|---|---|---|"
    by_step = {row["step"]: row for row in rows}
    for step, name, _ in sizes.STEPS:
        if step in by_step:
            row = by_step[step]
            yield f"| {name} | {mebibytes(row['memory_bytes'])} | {seconds(row['paused_seconds'])} |"
    forms = {cell["way"]: cell for cell in copied}
    for way, name in (("copied", "QEMU's own file, once"), ("zstd", "the same, compressed by zstd")):
        if way in forms:
            yield f"| {name} | {mebibytes(forms[way]['bytes'])} | - |"
    if "chunked_bytes" in forms.get("mapped-ram", {}):
        yield f"| in chunks of 256 KiB, each compressed | {mebibytes(forms['mapped-ram']['chunked_bytes'])} | - |"
    yield ""


def time_of(cell):
    """Until the first output, or a dash."""
    if cell is None or "output_seconds" not in cell:
        return "-"
    return ("~" if cell.get("reckoned") else "") + seconds(cell["output_seconds"])


def suspensions(facts_of_desktop):
    """What it took to suspend the desktop."""
    if not facts_of_desktop:
        return
    yield "| the desktop's suspension | memory in use | the command returned after, s | stored |"
    yield "|---|---|---|---|"
    for which in ("first", "second"):
        one = facts_of_desktop[which]
        yield (f"| {which} | {one['used_mib']} MiB of {facts_of_desktop['memory_mib']} | "
               f"{seconds(one['returned_seconds'])} | {mebibytes(one['memory_bytes'])} |")
    yield ""


def here_of(cells):
    """The cell without a link."""
    return next((cell for cell in cells if cell["link"] == desktop.HERE), None)


def of_link(cells, link, medium):
    """The desktop's cell of a link, or None."""
    return next((cell for cell in cells if (cell["link"], cell["medium"]) == (link, medium)), None)


def operations(cells, links):
    """The desktop's operations together, beside the paper's Figure 8."""
    here = here_of(cells)
    if not here:
        return
    yield (f"{len(here['operations'])} operations of a resumed desktop together; where all of it is they take "
           f"{seconds(sum(here['operations'].values()))} s (load {here['load']:.1f}).")
    yield ""
    yield ("| link | medium | guest runs, s | answers, s | operations, s | longer than here | "
           "the paper's Figure 8, s | load |")
    yield "|" + "---|" * 8
    for link in links:
        for medium in (False, True):
            cell = of_link(cells, link, medium)
            if cell:
                whole = sum(cell["operations"].values())
                longer = whole / sum(here["operations"].values()) - 1
                yield (f"| {NAMES[link]} | {'yesterday' if medium else 'no'} | {seconds(cell['running_seconds'])} | "
                       f"{seconds(cell['answer_seconds'])} | {seconds(whole)} | {100 * longer:.0f} % | "
                       f"{OPERATIONS_PAPER[link][medium]:,} | {cell['load']:.1f} |")
    yield ""


def launches(cells, facts_of_desktop, links):
    """The launch of a program that was in memory."""
    here = here_of(cells)
    if not here:
        return
    base = here["operations"][desktop.IN_MEMORY]
    yield (f"The launch of a program that was in memory: {seconds(facts_of_desktop['launch_before_suspension'])} s "
           f"before the machine was suspended, {seconds(base)} s after a resume where all of it is.")
    yield ""
    yield "| link | medium | launch, s | of that where all of it is |"
    yield "|---|---|---|---|"
    for link in links:
        for medium in (False, True):
            cell = of_link(cells, link, medium)
            if cell:
                launch = cell["operations"][desktop.IN_MEMORY]
                yield (f"| {NAMES[link]} | {'yesterday' if medium else 'no'} | {seconds(launch)} | "
                       f"{launch / base:.2f} |")
    yield ""


def distribution(cells):
    """For each link and medium, which part of the operations was slowed down by so much or less."""
    here = here_of(cells)["operations"]
    colours = {"100m": ("#1f5fa8", NAMES["100m"]), "10m": ("#3a7d44", NAMES["10m"]), "1m": ("#d9a400", NAMES["1m"]),
               "100k": ("#c4441c", NAMES["100k"])}
    dashes = {False: ("", "no medium"), True: (' stroke-dasharray="6 3"', "yesterday's on it")}
    curves = [(cell["link"], cell["medium"], [took / here[name] - 1 for name, took in cell["operations"].items()])
              for cell in cells if cell["link"] != desktop.HERE]
    colours = {link: colours[link] for link, *_ in curves}
    axis = (-2, 2, "slowdown: what it takes longer, as a multiple of its time where all of the machine is")
    return plots.distribution(curves, colours, dashes, axis)


def plot(cells, copied, links):
    """The first output by link: the paper's Figure 7, what else there is, and ours."""
    def output(cell):
        return cell.get("output_seconds") if cell else None

    groups = []
    for link in links:
        of_link_copied = (cell for cell in copied if (cell["way"], cell["link"]) == ("copied", link))
        groups.append((NAMES[link], {
            "paper": PAPER[link][0], "paper-key": PAPER[link][1], "copied": output(next(of_link_copied, None)),
            "ours": output(found(cells, link, False, True)), "ours-key": output(found(cells, link, True, True))}))
    return plots.bars(groups, BARS, (-1, 5), 136)


def facts(results):
    """What else is known."""
    first, second = (mebibytes(results[f"{which}_suspension_bytes"]) for which in ("first", "second"))
    return (f"A {results['build']} build; a guest of {results['memory_mib']} MiB under {results['accelerator']}. Its "
            f"first suspension stored {first} of memory, the second one {second}.")


def seconds(number):
    """Seconds as a table has them."""
    if number >= 1000:
        return f"{number:,.0f}"
    return f"{number:.2f}" if number < 10 else f"{number:.1f}"


def mebibytes(number):
    """Bytes as a table has them."""
    return f"{number / 2**20:.2f} MiB" if number >= 2**20 else f"{number / 1024:.0f} KiB"
