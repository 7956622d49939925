# SPDX-License-Identifier: Apache-2.0
"""What the client tests share: checks that are counted, raw sockets, small HTTP answers."""
import json
import socket
import sys
import time
import traceback
import urllib.parse

_failures = []
_passed = 0


def check(condition, claim):
    """Counts one claim; a broken one is printed and remembered."""
    global _passed
    if condition:
        _passed += 1
    else:
        _failures.append(claim)
        print(f"  FAILED: {claim}")


def run(tests):
    """Runs the functions one after the other; exits with 1 when a claim is broken."""
    for test in tests:
        before = len(_failures)
        start = time.monotonic()
        try:
            test()
        except Exception:
            _failures.append(f"{test.__name__} raised")
            traceback.print_exc()
        verdict = "ok" if len(_failures) == before else "FAILED"
        print(f"{verdict:6} {test.__name__} ({time.monotonic() - start:.2f} s)", flush=True)
    print(f"{_passed} claims hold, {len(_failures)} broken")
    sys.exit(1 if _failures or _passed == 0 else 0)


class Server:
    def __init__(self, url, key=None):
        parts = urllib.parse.urlsplit(url)
        self.host = parts.hostname
        self.port = parts.port or 80
        self.url = f"http://{self.host}:{self.port}"
        self.key = key

    def dial(self, timeout=20.0):
        sock = socket.create_connection((self.host, self.port), timeout=timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def head(self, method, path, body=b"", extra=""):
        text = f"{method} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
        if self.key:
            text += f"Authorization: Bearer {self.key}\r\n"
        if body:
            text += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return (text + extra + "\r\n").encode()

    def ask(self, method, path, body=None, extra="", timeout=60.0):
        """One request on its own connection: (status, fields, body bytes)."""
        data = b"" if body is None else json.dumps(body).encode()
        with self.dial(timeout) as sock:
            sock.sendall(self.head(method, path, data, extra + "Connection: close\r\n") + data)
            return read_answer(read_all(sock), method == "HEAD")

    def model(self):
        status, _, body = self.ask("GET", "/v1/models")
        assert status == 200, f"/v1/models answered {status}"
        return json.loads(body)["data"][0]


def read_all(sock):
    """Until the peer closes. A reset counts as an end."""
    data = b""
    try:
        while True:
            part = sock.recv(65536)
            if not part:
                return data
            data += part
    except (ConnectionResetError, socket.timeout):
        return data


def unchunk(data):
    """(content, complete) of a chunked body."""
    content = b""
    while True:
        line, sep, rest = data.partition(b"\r\n")
        if not sep:
            return content, False
        size = int(line, 16)
        if size == 0:
            return content, rest.startswith(b"\r\n")
        if len(rest) < size + 2:
            return content + rest[:size], False
        content += rest[:size]
        data = rest[size + 2 :]


def read_answer(data, bodiless=False):
    """(status, fields, body) of the first answer in `data`; status 0 when there is none."""
    head, sep, rest = data.partition(b"\r\n\r\n")
    if not sep or not head.startswith(b"HTTP/1.1 "):
        return 0, {}, b""
    lines = head.decode("latin-1").split("\r\n")
    fields = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        fields[name.strip().lower()] = value.strip()
    status = int(lines[0].split()[1])
    if bodiless:
        return status, fields, b""
    if fields.get("transfer-encoding") == "chunked":
        rest, fields["complete"] = unchunk(rest)
    elif "content-length" in fields:
        rest = rest[: int(fields["content-length"])]
    return status, fields, rest


def events(body):
    """The data of each event; raises when a line is neither an event nor blank."""
    found = []
    for line in body.split(b"\n"):
        if line == b"":
            continue
        assert line.startswith(b"data: "), f"not an event line: {line[:80]!r}"
        found.append(line[6:].decode("utf-8"))
    return found
