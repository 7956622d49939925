# SPDX-License-Identifier: Apache-2.0
"""Clients that misbehave, on raw sockets: smuggled heads, slow ones, half-closed and vanishing ones.

usage: hostile.py URL [--key KEY] [--vanish N] [--slow]

--slow also waits for the limits in seconds (head 10 s). The server must answer normally afterwards.
"""
import argparse
import json
import random
import re
import socket
import struct
import threading
import time

from harness import Server, check, read_all, read_answer, run

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("--key", default=None)
parser.add_argument("--vanish", type=int, default=200)
parser.add_argument("--slow", action="store_true")
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
server = Server(args.url, args.key)
HOST = f"Host: {server.host}:{server.port}\r\n"
ANSWER = re.compile(rb"HTTP/1\.1 \d{3} ")
SECOND = f"GET /health HTTP/1.1\r\n{HOST}\r\n"

# Each must be refused, the connection closed, and nothing behind it read as a second request.
SMUGGLED = [
    f"POST /tokenize HTTP/1.1\r\n{HOST}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    f"POST /tokenize HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    f"POST /tokenize HTTP/1.1\r\n{HOST}Content-Length: 0\r\nContent-Length: 44\r\n\r\n",
    f"POST /tokenize HTTP/1.1\r\n{HOST}Content-Length: 0, 0\r\n\r\n",
    f"POST /tokenize HTTP/1.1\r\n{HOST}Content-Length: +0\r\n\r\n",
    f"POST /tokenize HTTP/1.1\r\n{HOST}Content-Length : 0\r\n\r\n",
    f"POST /tokenize HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    f"POST /tokenize HTTP/1.1\r\n{HOST}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    f"POST /tokenize HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
    f"POST /tokenize HTTP/1.1\r\n{HOST}Transfer-Encodin: chunked\r\n g\r\n\r\n0\r\n\r\n",
    f"POST /tokenize HTTP/1.1\r\n{HOST}X-Abc:\rxTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    f"POST /tokenize HTTP/1.1\n{HOST}Content-Length: 0\n\n",
    f"GET /health HTTP/1.1\r\n{HOST}X: a\nY: b\r\n\r\n",
    f"GET /health HTTP/1.1\r\n{HOST}X: a\0b\r\n\r\n",
    f"GET /health HTTP/1.1\r\n{HOST}{HOST}\r\n",
    "GET /health HTTP/1.1\r\n\r\n",
    f"GET /health HTTP/1.1 \r\n{HOST}\r\n",
    f"GET  /health HTTP/1.1\r\n{HOST}\r\n",
    f"GET /health HTTP/2.0\r\n{HOST}\r\n",
    f"GET http://elsewhere/health HTTP/1.1\r\n{HOST}\r\n",
    f"POST /tokenize HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n0 \r\n\r\n",
    f"POST /tokenize HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n",
    f"POST /tokenize HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n0\r\n\r\n",
    f"POST /tokenize HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n0\r\nGET /health HTTP/1.1\r\n\r\n",
    f"POST /tokenize HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
]


def smuggling():
    for text in SMUGGLED:
        if server.key:
            text = text.replace(HOST, HOST + f"Authorization: Bearer {server.key}\r\n", 1)
        with server.dial() as sock:
            sock.sendall((text + SECOND).encode("latin-1"))
            data = read_all(sock)
        status, fields, _ = read_answer(data)
        check(status >= 400, f"refused: {text[:120]!r} got {status}")
        check(fields.get("connection") == "close", f"closed: {text[:120]!r}")
        check(len(ANSWER.findall(data)) == 1, f"one answer only: {text[:120]!r}")


def sizes():
    with server.dial() as sock:
        sock.sendall(f"GET /health HTTP/1.1\r\n{HOST}X: ".encode() + b"x" * 70000)
        status, _, body = read_answer(read_all(sock))
    check(status == 431 and json.loads(body)["error"]["code"] == "headers_too_large", "head: 431")
    with server.dial() as sock:
        sock.sendall(f"GET /health HTTP/1.1\r\n{HOST}".encode() + b"A: b\r\n" * 128 + b"\r\n")
        check(read_answer(read_all(sock))[0] == 431, "129 fields: 431")
    with server.dial() as sock:
        sock.sendall(server.head("POST", "/v1/completions", b"", "Content-Length: 99999999\r\n"))
        status, _, body = read_answer(read_all(sock))
    check(status == 413 and json.loads(body)["error"]["code"] == "request_too_large", "body: 413")


def expectation():
    body = json.dumps({"prompt": "hello"}).encode()
    with server.dial() as sock:
        sock.sendall(server.head("POST", "/tokenize", body, "Expect: 100-continue\r\n"))
        first = sock.recv(1024)
        check(first == b"HTTP/1.1 100 Continue\r\n\r\n", f"100 comes before the body: {first!r}")
        sock.sendall(body)
        sock.shutdown(socket.SHUT_WR)
        check(read_answer(read_all(sock))[0] == 200, "and 200 after it")


def byte_by_byte():
    body = json.dumps({"prompt": "hello"}).encode()
    data = server.head("POST", "/tokenize", body, "Connection: close\r\n") + body
    with server.dial() as sock:
        for i in range(len(data)):
            sock.sendall(data[i : i + 1])
        status, _, answer = read_answer(read_all(sock))
    check(status == 200 and json.loads(answer)["count"] > 0, "a request in single bytes is served")


def pipelining():
    one = server.head("GET", "/version")
    with server.dial() as sock:
        sock.sendall(one * 20 + server.head("GET", "/health", b"", "Connection: close\r\n"))
        data = read_all(sock)
    check(len(ANSWER.findall(data)) == 21, "21 pipelined requests get 21 answers")


def long_body(**more):
    return json.dumps({"prompt": "Once", "max_tokens": 100000, "ignore_eos": True, **more}).encode()


def open_request(stream):
    body = long_body(stream=stream)
    sock = server.dial()
    sock.sendall(server.head("POST", "/v1/completions", body) + body)
    return sock


def running():
    _, _, body = server.ask("GET", "/metrics")
    total = 0
    for line in body.decode().split("\n"):
        if line.startswith("tare_requests{"):
            total += float(line.rsplit(" ", 1)[1])
    return total


def wait_idle(claim, limit=10.0):
    end = time.monotonic() + limit
    left = running()
    while left > 0 and time.monotonic() < end:
        threading.Event().wait(0.05)
        left = running()
    check(left == 0, f"{claim}: {left} sequences are left")


def half_close():
    for stream in (False, True):
        sock = open_request(stream)
        if stream:
            sock.recv(10)
        sock.shutdown(socket.SHUT_WR)
        check(b"[DONE]" not in read_all(sock), "a half-closed stream never looks finished")
        sock.close()
        wait_idle("a half-close cancels")


def resets():
    for stream in (False, True):
        sock = open_request(stream)
        sock.recv(10) if stream else None
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        wait_idle("a reset cancels")


def readahead():
    sock = open_request(True)
    sock.recv(10)
    try:
        sock.sendall(b"x" * 200000)
    except OSError:
        pass
    check(b"[DONE]" not in read_all(sock), "too much read ahead ends the stream")
    sock.close()
    wait_idle("and cancels it")


def vanish():
    rng = random.Random(args.seed)
    threads = []

    def one(kind, delay):
        try:
            body = long_body(stream=rng.random() < 0.7, n=rng.choice([1, 1, 2]))
            data = server.head("POST", "/v1/completions", body) + body
            with server.dial() as sock:
                if kind == "head":
                    sock.sendall(data[: rng.randrange(1, len(data))])
                else:
                    sock.sendall(data)
                end = time.monotonic() + delay
                while time.monotonic() < end:
                    sock.settimeout(max(end - time.monotonic(), 0.001))
                    if kind == "reads" and sock.recv(65536):
                        continue
                    threading.Event().wait(end - time.monotonic())
                if rng.random() < 0.5:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass

    for _ in range(args.vanish):
        kind = rng.choice(["head", "waits", "reads"])
        thread = threading.Thread(target=one, args=(kind, rng.random() * 1.5))
        thread.start()
        threads.append(thread)
        threading.Event().wait(rng.random() * 0.01)
    for thread in threads:
        thread.join()
    wait_idle(f"{args.vanish} vanished clients leave nothing behind")
    _, _, body = server.ask("GET", "/metrics")
    blocks = {}
    for line in body.decode().split("\n"):
        if line.startswith("tare_kv_blocks{"):
            blocks[line.split('state="')[1].split('"')[0]] = float(line.rsplit(" ", 1)[1])
    check(blocks["held"] == 0, f"no KV block is held: {blocks}")


def answers_afterwards():
    body = {"prompt": "Once", "max_tokens": 4}
    status, _, answer = server.ask("POST", "/v1/completions", body)
    check(status == 200 and json.loads(answer)["usage"]["completion_tokens"] == 4, "a normal answer")
    check(server.ask("GET", "/health")[0] == 200, "health is fine")


def slow_head():
    start = time.monotonic()
    with server.dial(timeout=30) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nX: ")
        sock.settimeout(0.5)
        data = b""
        while time.monotonic() - start < 20 and not data:
            try:
                sock.sendall(b"y")
                data = sock.recv(65536)
            except socket.timeout:
                continue
            except OSError:
                break
    check(read_answer(data)[0] == 408, "a head in drops is ended with 408")
    check(8 < time.monotonic() - start < 14, "after 10 s")


tests = [
    smuggling,
    sizes,
    expectation,
    byte_by_byte,
    pipelining,
    half_close,
    resets,
    readahead,
    vanish,
    answers_afterwards,
]
if args.slow:
    tests.insert(0, slow_head)
run(tests)
