"""Programs with a window: the six that Figure 5 starts, and the session of a writer."""

import os
import shutil
import time

HERE = os.path.dirname(os.path.realpath(__file__))

PROGRAMS = {
    "spreadsheet": ("soffice --calc --norestore --nologo --nofirststartwizard", "libreoffice"),
    "Firefox": ("firefox-esr --new-instance --no-remote about:blank", "firefox"),
    "GIMP": ("gimp --no-splash", "gimp"),
    "photographs": ("dbus-run-session shotwell", "shotwell"),
    "Evince": ("dbus-run-session evince /root/first.pdf", "evince"),
    "Totem": ("dbus-run-session totem", "totem"),
}
"""What starts a program, and the class of its window. Shotwell is for F-Spot, which is no more."""
LAUNCH = (
    "setsid {0} >/dev/null 2>&1 & p=$!; timeout 120 xdotool search --sync --onlyvisible --class '{1}' >/dev/null; "
    "r=$?; date +%s%N; kill -9 -$p; exit $r"
)


def launch(system):
    """Figure 5: seconds until a program's window is visible, each from a cold cache."""
    system.begin_screen()
    figures = {}
    for name in PROGRAMS:
        system.drop()
        figures[name] = start(system, name)
    return figures


def start(system, name):
    """Seconds until one program's window is there."""
    began = time.time_ns()
    return (int(system.sh(LAUNCH.format(*PROGRAMS[name])).split()[-1]) - began) / 1e9


def first_use(system):
    """Starts everything once, for what programs make in their first run, and writes a document to open."""
    session(system)
    system.begin_screen()
    system.sh("python3 /tmp/office.py && cp report.pdf first.pdf && rm report*")
    for name in PROGRAMS:
        start(system, name)


def session(system):
    """Lays the writer's session ready, in memory."""
    shutil.copy(os.path.join(HERE, "office.py"), f"{system.root}/tmp/office.py")
