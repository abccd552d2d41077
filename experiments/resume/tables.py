"""The table of the results."""

import os

PAPER = {
    # Figure 7 of IRP-TR-03-10: resume latency in seconds, without and with a device.
    "100m": (14, 13),
    "10m": (39, 12),
    "1m": (317, 12),
    "100k": (4301, 12),
}
NAMES = {"100m": "100 Mb/s", "10m": "10 Mb/s", "1m": "1 Mb/s", "100k": "100 Kb/s"}


def write(folder, results, links):
    """results.md."""
    cells = results["cells"]
    text = "\n".join([*resumes(cells, links), "", *gateways(cells, links), "", facts(results), ""])
    with open(os.path.join(folder, "results.md"), "w", encoding="utf-8") as f:
        f.write(text)
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


def facts(results):
    """What else is known."""
    first, second = (mebibytes(results[f"{which}_suspension_bytes"]) for which in ("first", "second"))
    return (f"A {results['build']} build; a guest of {results['memory_mib']} MiB under {results['accelerator']}. Its "
            f"first suspension stored {first} of memory, the second one {second}.")


def seconds(number):
    """Seconds as a table has them."""
    return f"{number:.2f}" if number < 10 else f"{number:.1f}"


def mebibytes(number):
    """Bytes as a table has them."""
    return f"{number / 2**20:.2f} MiB" if number >= 2**20 else f"{number / 1024:.0f} KiB"
