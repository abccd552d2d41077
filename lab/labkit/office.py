"""A desktop with office programs, and what its user does there.

The seed's benchmark (IRP-TR-03-10, section 5.2) scripted the programs of an office under Windows, 113 operations. Here
a Debian guest does what theirs did: it starts programs, opens, sorts, converts and searches documents. A program has
started when its window is there.
"""

import hashlib

from .golden import packages

PROGRAMS = (*packages.BASE, "abiword", "gnumeric", "evince", "mousepad", "galculator", "xvfb", "xdotool", "imagemagick",
            "ghostscript", "python3", "zip", "unzip", "file")
DISPLAYED = (*(p for p in PROGRAMS if p not in ("linux-image-cloud-amd64", "xvfb")), "linux-image-amd64",
             "xserver-xorg-core", "xserver-xorg-input-libinput", "icewm", "x11-xserver-utils", "fonts-dejavu-core")
"""The same on a graphics card, which the kernel for clouds knows none of."""


def _named(name, programs, **more):
    return packages.Recipe(f"{name}-{hashlib.sha256(' '.join(programs).encode()).hexdigest()[:8]}", programs,
                           documents=True, **more)


DESKTOP = _named("desktop", PROGRAMS)
SCREEN = _named("screen", DISPLAYED, size=3 << 30)

VIRTUAL_SCREEN = "Xvfb :9 -screen 0 1024x768x24 >/dev/null 2>&1 & sleep 5"
"""Starts the screen of DESKTOP, which nobody sees."""
XORG_CONFIGURATION = (
    "mkdir -p /etc/X11/xorg.conf.d",
    # Drawn by the processor: what draws in three dimensions would be emulated twice.
    "printf '%s\\n' 'Section \"Device\"' 'Identifier \"card\"' 'Driver \"modesetting\"' "
    "'Option \"AccelMethod\" \"none\"' EndSection >/etc/X11/xorg.conf.d/lab.conf",
)
"""Commands that set SCREEN's Xorg up."""
CARD_SCREEN = ("Xorg :9 -nolisten tcp -noreset >/run/xorg.log 2>&1 & "
               "for n in $(seq 120); do [ -S /tmp/.X11-unix/X9 ] && break; sleep 1; done; "
               "export DISPLAY=:9; icewm >/dev/null 2>&1 & sleep 8; export DISPLAY=:9; "
               "xset s off; xsetroot -solid '#35618e'; xdotool getdisplaygeometry")
"""Starts the screen of SCREEN, on its graphics card, with a window manager."""
LAUNCH = ("launch() { $1 $3 >/dev/null 2>&1 & p=$!; "
          "timeout 300 xdotool search --sync --onlyvisible --class $2 >/dev/null; "
          "r=$?; kill $p; wait $p; return $r; }; export DISPLAY=:9; cd /root; ")
"""To be put before what follows."""
WINDOWS = (
    "gnumeric book0.gnumeric >/dev/null 2>&1 & "
    "timeout 300 xdotool search --sync --onlyvisible --class Gnumeric windowsize 640 480 windowmove 20 40",
    "galculator >/dev/null 2>&1 & "
    "timeout 300 xdotool search --sync --onlyvisible --class Galculator windowmove 640 300",
)
"""Programs that stay open, side by side."""
CLOSE = "pkill gnumeric; pkill galculator; sleep 1"
"""Ends them."""

CUSTOM = (
    # What a user has made of a fresh system: documents of all kinds.
    "python3 -c \"import random; random.seed(1); [open(f'sheet{n}.csv','w').writelines("
    "','.join(str(random.randrange(10**6)) for _ in range(12))+chr(10) for _ in range(1500)) for n in range(6)]\"",
    "python3 -c \"import random; random.seed(2); "
    "w=[''.join(random.choices('abcdefghijklmnop',k=random.randrange(2,9))) for _ in range(3000)]; "
    "[open(f'text{n}.html','w').write('<html><body>'+''.join('<p>'+' '.join(random.choices(w,k=90))+'</p>' "
    "for _ in range(120))+'</body></html>') for n in range(6)]\"",
    "for n in 0 1 2 3; do convert -size 900x700 -seed $n plasma:fractal pic$n.png; done",
    "mkdir mine && cp -r /usr/share/doc/[a-c]* /usr/share/doc/gnumeric* mine/",
    "ssconvert sheet0.csv book0.gnumeric && ssconvert sheet1.csv book1.gnumeric",
    "abiword --to=pdf --to-name=text0.pdf text0.html",
)

OPERATIONS = (
    ("launch the spreadsheet", "launch gnumeric Gnumeric"),
    ("open a sheet", "launch gnumeric Gnumeric book0.gnumeric"),
    ("import a table", "ssconvert sheet2.csv /tmp/two.gnumeric"),
    ("sort a table", "sort -t, -k3 -n sheet3.csv -o /tmp/three.csv && ssconvert /tmp/three.csv /tmp/three.gnumeric"),
    ("recalculate a sheet", "ssconvert --recalc book1.gnumeric /tmp/one.csv"),
    ("export a sheet to a spreadsheet of another kind", "ssconvert book0.gnumeric /tmp/zero.xlsx"),
    ("print a sheet", "ssconvert book1.gnumeric /tmp/one.pdf"),
    ("launch the word processor", "launch abiword Abiword"),
    ("open a text", "launch abiword Abiword text1.html"),
    ("convert a text", "abiword --to=rtf --to-name=/tmp/two.rtf text2.html"),
    ("find and replace in a text",
     "sed s/ab/ba/g text3.html >/tmp/three.html && abiword --to=txt --to-name=/tmp/3.txt /tmp/three.html"),
    ("print a text", "abiword --to=pdf --to-name=/tmp/four.pdf text4.html"),
    ("launch the viewer", "launch evince Evince text0.pdf"),
    ("show a page", "gs -q -dNOPAUSE -dBATCH -sDEVICE=png16m -r60 -dLastPage=2 -sOutputFile=/tmp/page%d.png text0.pdf"),
    ("launch the editor", "launch mousepad Mousepad text5.html"),
    ("launch the calculator", "launch galculator Galculator"),
    ("turn a picture", "convert pic0.png -rotate 90 /tmp/pic0.png"),
    ("shrink a picture", "convert pic1.png -resize 30% /tmp/pic1.jpg"),
    ("compare two pictures", "compare -metric RMSE pic2.png pic3.png null: ; true"),
    ("what kinds of files", "file * mine/*/*"),
    ("search one's documents", "grep -rl copyright mine | wc -l"),
    ("search the system's documents", "grep -l the /usr/share/doc/[d-k]*/copyright | wc -l"),
    ("count words", "cat text*.html | wc"),
    ("archive one's documents", "zip -qr /tmp/mine.zip mine"),
    ("unpack an archive", "rm -rf /tmp/out; unzip -q /tmp/mine.zip -d /tmp/out"),
    ("a program of one's own", "python3 -c 'import json,sqlite3,xml.dom.minidom,email,http.client,decimal'"),
    ("copy a folder", "cp -r mine /tmp/copy"),
    ("list all files", "find /usr/share -name '*.png' | wc -l"),
)
