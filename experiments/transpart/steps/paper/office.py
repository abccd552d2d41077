"""What a writer does in a quarter of an hour, by the programming interface of LibreOffice Writer.

Runs in the borrower's system. Starts the program, writes 450 words in fifteen paragraphs and saves after each, opens,
searches, formats and exports; prints the seconds of each operation, without time to think.
"""

import os
import random
import signal
import subprocess
import sys
import time

import uno
from com.sun.star.beans import PropertyValue

WORDS = (
    "disk",
    "borrowed",
    "machine",
    "owner",
    "system",
    "carried",
    "key",
    "block",
    "free",
    "session",
    "letter",
    "report",
)
PARAGRAPHS, EACH = 15, 30


def main():
    """The session."""
    began, seconds = time.monotonic(), {}

    def done(name):
        nonlocal began
        now = time.monotonic()
        seconds[name] = seconds.get(name, 0) + now - began
        print(name, file=sys.stderr, flush=True)
        began = now

    writer = subprocess.Popen(
        ["soffice", "--writer", "--norestore", "--nologo", "--nofirststartwizard", "--accept=pipe,name=bench;urp;"],
        start_new_session=True,
    )
    try:
        desktop = connect()
        done("start")
        document = desktop.loadComponentFromURL("private:factory/swriter", "_blank", 0, ())
        text, generator = document.Text, random.Random(1)
        document.storeAsURL("file:///root/report.odt", ())
        done("new document")
        for number in range(PARAGRAPHS):
            for _ in range(EACH):
                text.insertString(text.End, generator.choice(WORDS) + " ", False)
            text.insertControlCharacter(text.End, 0, False)
            if number % 3 == 0:
                format_last(document, text)
            done("type and format")
            document.store()
            done("save")
        search = document.createReplaceDescriptor()
        search.SearchString, search.ReplaceString = "borrowed", "lent"
        document.replaceAll(search)
        table = document.createInstance("com.sun.star.text.TextTable")
        table.initialize(5, 4)
        text.insertTextContent(text.End, table, False)
        done("replace, table")
        document.storeToURL("file:///root/report.pdf", (value("FilterName", "writer_pdf_Export"),))
        document.storeToURL("file:///root/report.doc", (value("FilterName", "MS Word 97"),))
        done("export")
        document.store()
        document.close(True)
        document = desktop.loadComponentFromURL("file:///root/report.doc", "_blank", 0, ())
        document.close(True)
        done("save, open")
    finally:
        os.killpg(writer.pid, signal.SIGKILL)
    for name, taken in seconds.items():
        print(f"= {name} {taken:.3f}", flush=True)
    # The bridge to a program that is gone may crash on the way out.
    os._exit(0)


def connect():
    """The desktop of the program, as soon as it answers."""
    local = uno.getComponentContext()
    resolver = local.ServiceManager.createInstanceWithContext("com.sun.star.bridge.UnoUrlResolver", local)
    end = time.monotonic() + 280
    while True:
        try:
            context = resolver.resolve("uno:pipe,name=bench;urp;StarOffice.ComponentContext")
            return context.ServiceManager.createInstanceWithContext("com.sun.star.frame.Desktop", context)
        except Exception:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def format_last(document, text):
    """Makes the text so far a little bolder."""
    cursor = text.createTextCursor()
    cursor.gotoEnd(False)
    cursor.gotoStartOfParagraph(True) if hasattr(cursor, "gotoStartOfParagraph") else None
    cursor.CharWeight = 150.0


def value(name, setting):
    """A property of a document's filter."""
    found = PropertyValue()
    found.Name, found.Value = name, setting
    return found


main()
