#!/usr/bin/env python3
"""bucket.py DIRECTORY PORT-FILE [--seek MS] [--rate MB/S]: buckets whose disk has one arm.

The directories in DIRECTORY are S3 buckets, their files the objects: as much of S3 as a store of ours needs, and no
signatures. Reads and writes of objects and lists wait for the arm of experiments/predict/slow-store, which also answers
GET /arm. Loopback only.
"""

import importlib.machinery
import importlib.util
import os
import re
import sys
import threading
import urllib.parse
from datetime import UTC, datetime
from xml.sax.saxutils import escape, unescape

PREDICT = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../predict")
_loader = importlib.machinery.SourceFileLoader("slow_store", os.path.join(PREDICT, "slow-store"))
slow = importlib.util.module_from_spec(importlib.util.spec_from_loader("slow_store", _loader))
_loader.exec_module(slow)

CREATING = threading.Lock()


class Handler(slow.Handler):
    """GET, HEAD, PUT and DELETE of objects, lists of them, and POST that deletes several."""

    def do_GET(self):
        """An object or a part of it, or a list."""
        url = urllib.parse.urlsplit(self.path)
        asked = dict(urllib.parse.parse_qsl(url.query))
        if "list-type" in asked:
            return self.list(url.path.strip("/"), asked)
        self.path = urllib.parse.unquote(url.path)
        return super().do_GET()

    def do_HEAD(self):
        """What a GET would say of an object, at once."""
        self.path = urllib.parse.unquote(self.path)
        super().do_HEAD()

    def do_POST(self):
        """Removes the objects that are named."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        bucket = urllib.parse.urlsplit(self.path).path
        keys = re.findall(r"<Key>(.*?)</Key>", body)
        for key in keys:
            self.remove(f"{bucket}/{unescape(key)}")
        gone = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self.say(200, f'<?xml version="1.0"?><DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{gone}'
                 "</DeleteResult>".encode())

    def do_PUT(self):
        """Creates an object; with If-None-Match only if there is none."""
        path = self.place(urllib.parse.unquote(urllib.parse.urlsplit(self.path).path))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if path is None:
            return self.say(400)
        self.server.arm.move(len(body))
        with CREATING:
            if self.headers.get("If-None-Match") == "*" and os.path.exists(path):
                return self.say(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path + ".part", "wb") as f:
                f.write(body)
            os.rename(path + ".part", path)
        return self.say(200, etag=True)

    def do_DELETE(self):
        """Removes an object, if it is there."""
        self.remove(urllib.parse.unquote(urllib.parse.urlsplit(self.path).path))
        return self.say(204)

    def remove(self, key):
        """Removes the file of an object."""
        path = self.place(key)
        if path and os.path.isfile(path):
            os.unlink(path)

    def place(self, key):
        """The file of an object; None for a key that leads elsewhere."""
        key = key.lstrip("/")
        path = os.path.normpath(os.path.join(self.server.directory, key))
        return path if path.startswith(self.server.directory + os.sep) else None

    def list(self, bucket, asked):
        """ListObjectsV2 in one answer, however many there are."""
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        top = os.path.join(self.server.directory, os.path.basename(bucket))
        self.server.arm.move(0)
        found, below = [], set()
        for folder, _, names in os.walk(os.path.join(top, os.path.dirname(prefix))):
            for name in names:
                path = os.path.join(folder, name)
                key = os.path.relpath(path, top)
                if not key.startswith(prefix) or key <= asked.get("start-after", "") or name.endswith(".part"):
                    continue
                if delimiter and delimiter in key[len(prefix):]:
                    below.add(prefix + key[len(prefix):].split(delimiter)[0] + delimiter)
                else:
                    found.append((key, os.stat(path)))
        parts = [f"<Contents><Key>{escape(key)}</Key><LastModified>"
                 f"{datetime.fromtimestamp(of.st_mtime, UTC):%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
                 f"<ETag>\"{of.st_mtime_ns:x}\"</ETag><Size>{of.st_size}</Size></Contents>"
                 for key, of in sorted(found, key=lambda one: one[0])]
        parts += [f"<CommonPrefixes><Prefix>{escape(p)}</Prefix></CommonPrefixes>" for p in sorted(below)]
        self.say(200, ('<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
                       f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(parts)}</KeyCount>"
                       f"<MaxKeys>1000000</MaxKeys><IsTruncated>false</IsTruncated>{''.join(parts)}"
                       "</ListBucketResult>").encode())

    def say(self, status, body=b"", *, etag=False):
        """A short answer."""
        self.send_response(status)
        if etag:
            self.send_header("ETag", '"1"')
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    slow.Handler = Handler
    sys.exit(slow.main())
