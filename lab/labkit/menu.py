"""A machine with a secret and a menu, and somebody who sits at it."""

import os
import shutil
import time

from . import LabError
from .guest import Card, Guest
from .netboot import HERE, Machine, Site, start, told_with_logs
from .shell import free_port, read_text, wait_until

LETTER = 0.2
"""Seconds between two keys: what reads them is emulated."""

PICTURE = "LAB_PICTURE"
"""The environment's name of the file that a picture of the menu is put into."""


def menu(server, golden):
    """Whoever knows the machine's secret chooses what it starts; an image forgets, and the disk is what nobody chooses."""
    machine = Machine("menu", 1, "nbd")
    with Site(server.sockets, [machine]) as site:
        server.start(f"{HERE}:{free_port()}", options=["--insecure"])
        server.command("machine", "assign", machine.mac, "--from", machine.image, "--name", "lab-menu", "--method", "nbd")
        secret = server.command("machine", "secret", "lab-menu")["secret"]
        process, log = start(server, "--menu", "--menu-image", machine.image, "--menu-seconds", "20")
        try:
            with _at(golden, machine, log) as person:
                person.gives("wrong")
                person.waits_for("gave a wrong secret, and")
                person.gives(secret)
                chosen = person.chooses("down", "down")
                first = person.system()
            with _at(golden, machine, log) as person:
                person.gives(secret)
                person.chooses("down", "down")
                second = person.system()
            with _at(golden, machine, log) as person:
                person.gives(secret)
                unasked = person.system()
        except LabError as e:
            raise told_with_logs(e, log, site) from e
        finally:
            process.terminate()
            process.wait(30)
            server.stop()
    return {"chosen": chosen, "image": first, "image_again": second, "nobody": unasked}


def _at(golden, machine, log):
    card = Card(machine.tap, machine.mac, machine.card, machine.ipxe)
    guest = Guest(golden, None, name=machine.name, memory=768, card=card)
    # A screen, for those who look at it, and for the picture.
    guest.command += ["-vga", "std"]
    return _Person(guest, log)


class _Person:
    """Somebody at a machine, which is switched on when he comes; what is on its screen he knows from netboot's log."""

    def __init__(self, guest, log):
        self.guest, self.log = guest, log
        self.read = len(read_text(log))

    def __enter__(self):
        self.guest.__enter__()
        self.guest.start()
        return self

    def __exit__(self, *why):
        return self.guest.__exit__(*why)

    def waits_for(self, what):
        """Until the log says this behind what he read of it."""
        def said():
            at = read_text(self.log).find(what, self.read)
            if at < 0:
                return False
            self.read = at + len(what)
            return True

        wait_until(f"{what!r} in the log", said, 120)

    def types(self, *keys):
        """Presses keys, by QEMU's names."""
        for key in keys:
            self.guest.monitor.command("send-key", keys=[{"type": "qcode", "data": key}])
            time.sleep(LETTER)

    def gives(self, secret):
        """Waits to be asked for the secret, and gives this one, without a name."""
        self.waits_for("asked for its secret")
        time.sleep(5)  # the script is there then, and its form on the screen
        letters = ["minus" if letter == "-" else letter for letter in secret]
        self.types("ret", *letters, "ret")

    def chooses(self, *keys):
        """Waits for the menu and chooses in it; what netboot says of that."""
        self.waits_for("is shown its menu")
        time.sleep(3)
        picture = os.environ.get(PICTURE)
        if picture:
            taken = os.path.join(self.guest.directory, "menu.png")
            self.guest.monitor.command("screendump", filename=taken, format="png")
            shutil.copy(taken, picture)
        self.types(*keys, "ret")
        self.waits_for(" starts")
        return read_text(self.log)[self.read:].splitlines()[0]

    def system(self):
        """What is found when the system is up, which is then marked and switched off."""
        self.guest.ready(timeout=400)
        disk = self.guest.execute("sed -n 's/.*sojourn.disk=[^ ]*\\/\\([^ ]*\\).*/\\1/p' /proc/cmdline")["note"]
        marked = self.guest.execute("test -e /var/marker", check=False)["rc"] == 0
        self.guest.execute("touch /var/marker && sync")
        self.guest.poweroff(timeout=120)
        return {"disk": disk, "marked": marked}
