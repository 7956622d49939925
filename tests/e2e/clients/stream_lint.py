# SPDX-License-Identifier: Apache-2.0
"""Reads raw bytes of many streams and checks every rule that real clients depend on.

usage: stream_lint.py URL [--key KEY] [--count N]
"""
import argparse
import json
import random

from harness import Server, check, read_all, read_answer, run

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("--key", default=None)
parser.add_argument("--count", type=int, default=60)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
server = Server(args.url, args.key)
PROMPTS = [
    "Write one line with three emoji:",
    "Count: one, two, three,",
    'Some JSON: {"a": [1, 2',
    "\u2028\u0085 odd separators",
    "日本語の文章を書いてください。",
]


def bench_parser(reads):
    """The way a common benchmark client reads: each read is stripped before it is joined."""
    joined = b"".join(read.strip() for read in reads)
    return joined.count(b"data: ")


def one(path, body):
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    with server.dial(timeout=120) as sock:
        sock.sendall(server.head("POST", path, data, "Connection: close\r\n") + data)
        raw = read_all(sock)
    status, fields, answer = read_answer(raw)
    check(status == 200, f"status {status}: {answer[:200]!r}")
    check(fields.get("content-type") == "text/event-stream; charset=utf-8", "content type")
    check(fields.get("cache-control") == "no-store", "no-store")
    check(fields.get("complete") is True, "the last chunk of the transfer coding came")
    return answer


def lint(answer, chat, max_tokens, n):
    text = answer.decode("utf-8", errors="strict")
    check("\r" not in text, "LF only")
    for bad in ("\u0085", "\u2028", "\u2029"):
        check(bad not in text, "line separators are escaped")
    blocks = [b for b in text.split("\n\n") if b.strip("\n")]
    for block in blocks:
        check(block.count("\n") == 0 and block.startswith("data: "), "one line per event")
    check(text.endswith("data: [DONE]\n\n"), "[DONE] is the last event")
    chunks = [json.loads(b[6:]) for b in blocks[:-1]]
    for name in ("id", "created", "model", "object"):
        check(len({c[name] for c in chunks}) == 1, f"{name} is the same in all chunks")
    check(chunks[-1]["choices"] == [], "the usage chunk has no choices")
    usage = chunks[-1]["usage"]
    for index in range(n):
        mine = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == index]
        check(len(mine) <= max_tokens + 1, "at most one chunk per step and the role")
        finishes = [c["finish_reason"] for c in mine]
        check(finishes[-1] in ("stop", "length"), "the finish reason is on the last chunk")
        check(all(f is None for f in finishes[:-1]), "and on no other")
        if chat:
            check(mine[0]["delta"] == {"role": "assistant", "content": ""}, "the role comes first")
            check(all("role" not in c["delta"] for c in mine[1:]), "and only once")
        else:
            check(all("text" in c for c in mine), "every chunk has text")
    check(0 < usage["completion_tokens"] <= max_tokens * n, "usage is within the limit")
    check(all("usage" not in c for c in chunks[:-1]), "usage is in one chunk only")


def streams_keep_every_rule():
    rng = random.Random(args.seed)
    for i in range(args.count):
        chat = rng.random() < 0.5
        n = rng.choice([1, 1, 1, 2])
        limit = rng.choice([1, 2, 5, 24])
        body = {"max_tokens": limit, "n": n, "seed": i, "temperature": rng.choice([0, 1, 1.5])}
        if rng.random() < 0.4:
            body["stop"] = rng.choice([["\n"], [" a", "e "], "the"])
        prompt = rng.choice(PROMPTS)
        if chat:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        path = "/v1/chat/completions" if chat else "/v1/completions"
        lint(one(path, body), chat, limit, n)


def first_chunk_and_first_token_share_a_read():
    data = json.dumps(
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "stream": True}
    ).encode()
    with server.dial() as sock:
        sock.sendall(server.head("POST", "/v1/chat/completions", data) + data)
        first = sock.recv(65536)
        check(first.count(b"data: ") >= 2, f"role and first token in one read: {first[-200:]!r}")
        reads = [first]
        while b"[DONE]" not in reads[-1]:
            reads.append(sock.recv(65536))
    check(bench_parser(reads) == b"".join(reads).count(b"data: "), "stripping reads loses nothing")


run([streams_keep_every_rule, first_chunk_and_first_token_share_a_read])
