# SPDX-License-Identifier: Apache-2.0
"""Makes the KV pool of a running server smaller and larger while streams run; their text must not change.

usage: resize_kv.py URL RUN_DIR CHILD    (the process that computes; a server with 91 blocks of 32 tokens, whose memory
comes and goes in chunks of twelve at most, and at least 5 sequences)
"""
import argparse
import json
import os
import re
import signal
import subprocess
import threading
import time

from harness import Server, check, events, read_answer, read_all, run

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("run_dir")
parser.add_argument("child", type=int)
parser.add_argument("--streams", type=int, default=4)
parser.add_argument("--tokens", type=int, default=200)
args = parser.parse_args()
server = Server(args.url)
BLOCK_TOKENS = 32
HOG_WORDS = 1400
SECOND_WORDS = 240


def body(index):
    prompt = f"Story number {index}: Once upon a time"
    return {"prompt": prompt, "max_tokens": args.tokens, "temperature": 0.8, "seed": index, "ignore_eos": True}


def expected(index):
    status, _, answer = server.ask("POST", "/v1/completions", body(index), timeout=300)
    check(status == 200, f"the reference of stream {index} is answered")
    return json.loads(answer)["choices"][0]["text"]


def begin(sock, data):
    data = json.dumps({**data, "stream": True}).encode()
    sock.sendall(server.head("POST", "/v1/completions", data, "Connection: close\r\n") + data)
    return sock.recv(65536)    # the first event has come, so its blocks are taken


def stream(index, started, results):
    with server.dial(timeout=300) as sock:
        first = begin(sock, body(index))
        started[index].set()
        results[index] = read_answer(first + read_all(sock))


def resize(size, *flags):
    command = ["bin/tare", "resize", "kv", "0", str(size), "--run-dir", args.run_dir, "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    answer = json.loads(done.stdout) if done.stdout else {}
    print(f"  resize {size}: {done.returncode} {answer.get('state')} {answer.get('blocks_before')} -> "
          f"{answer.get('blocks_after')} {answer.get('reason')}")
    return done.returncode, answer


def metrics():
    _, _, text = server.ask("GET", "/metrics")
    found = re.findall(r"^(tare_\w+)(\{[^}]*\})? ([0-9.e+-]+)$", text.decode(), re.M)
    values = {name: float(value) for name, labels, value in found if "state=" not in labels and "pool=" not in labels}
    values["kv pool bytes"] = sum(float(v) for n, l, v in found if n == "tare_mem_bytes" and 'pool="kv pool"' in l)
    values["running"] = sum(float(v) for n, l, v in found
                            if n == "tare_requests" and ("decoding" in l or "prefilling" in l))
    return values


def follows(answer, when):
    """The pool of the metrics is the one that the operator was told."""
    seen = metrics()
    blocks = answer["blocks_after"]
    check(seen["tare_kv_blocks_capacity"] == blocks, f"capacity in blocks follows {when}")
    check(seen["tare_kv_capacity_tokens"] == blocks * BLOCK_TOKENS, f"capacity in tokens follows {when}")
    check(seen["kv pool bytes"] >= answer["bytes_after"], f"the ledger's line holds the blocks {when}")
    return seen


def streams_keep_their_text_while_the_pool_changes():
    texts = [expected(i) for i in range(args.streams)]
    bytes_whole = metrics()["kv pool bytes"]
    started = [threading.Event() for _ in texts]
    results = [None] * len(texts)
    threads = [threading.Thread(target=stream, args=(i, started, results)) for i in range(len(texts))]
    # Somebody long takes the low blocks, another one those that the references still held then, the streams those
    # above; then the two leave.
    with server.dial(timeout=300) as hog, server.dial(timeout=300) as second:
        begin(hog, {"prompt": "word " * HOG_WORDS, "max_tokens": 270, "ignore_eos": True})
        begin(second, {"prompt": "word " * SECOND_WORDS, "max_tokens": 60, "ignore_eos": True})
        for thread in threads:
            thread.start()
        for event in started:
            check(event.wait(120), "every stream has begun")

    code, answer = resize(30)
    check(code == 0 and 30 <= answer["blocks_after"] < 43, "the pool shrinks under the streams")
    seen = follows(answer, "down")
    check(seen["kv pool bytes"] < bytes_whole, "memory was given back")
    check(seen["running"] == len(texts), "the streams were running all the time")

    code, answer = resize("+20")
    check(code == 0, "the pool grows under the streams")
    follows(answer, "up")

    code, answer = resize(1)
    check(code in (4, 8) and "accepted" in answer["reason"], "what they need is not taken from them")
    seen = follows(answer, "as far as it goes")
    check(seen["running"] == len(texts), "the streams were still running")
    check(seen["tare_kv_blocks_moved_total"] > 0, "live blocks moved")

    for thread in threads:
        thread.join()
    for want, (status, fields, reply) in zip(texts, results):
        found = events(reply)
        check(status == 200 and fields.get("complete") is True, "the stream ends as it should")
        check(found[-1] == "[DONE]", "with [DONE]")
        chunks = [json.loads(e) for e in found[:-1]]
        check("".join(c["choices"][0]["text"] for c in chunks) == want, "and with the text it would have had")


def admission_follows():
    resize(whole)
    code, answer = resize("10")
    check(code == 0, "an idle pool shrinks")
    tokens = answer["blocks_after"] * BLOCK_TOKENS
    status, _, reply = server.ask("POST", "/v1/completions", {"prompt": "word " * (tokens + 10), "max_tokens": 4})
    error = json.loads(reply)["error"]
    check(status == 400 and error["code"] == "context_length_exceeded", "what no longer fits is refused")
    check(str(tokens) in error["message"], "and told how much fits")
    status, _, reply = server.ask("POST", "/v1/completions", {"prompt": "word", "ignore_eos": True}, timeout=300)
    check(status == 200, "the rest of the context is the pool")
    check(json.loads(reply)["usage"]["total_tokens"] <= tokens, "and no more than it")
    code, answer = resize(whole)
    check(code == 0 and answer["blocks_after"] == whole, "it grows back to what it was")
    status, _, _ = server.ask("POST", "/v1/completions", {"prompt": "word " * (tokens + 10), "max_tokens": 4},
                              timeout=300)
    check(status == 200, "and serves it")


def what_cannot_be_is_told():
    code, answer = resize("100T")
    check(code in (2, 4), "more than there is")
    code, answer = resize("1000000")
    check(code == 4 and "missing" in answer["reason"], "the missing bytes are named")
    code, _ = resize(f"-{whole}")
    check(code == 2, "a pool of nothing is no pool")
    wrong = subprocess.run(["bin/tare", "resize", "kv", "7", "10", "--run-dir", args.run_dir], capture_output=True)
    check(wrong.returncode == 3, "an unknown group is not found")
    status = json.loads(subprocess.run(["bin/tare", "status", "--json", "--run-dir", args.run_dir],
                                       capture_output=True, text=True).stdout)
    check(status["worker"]["allocations_after_seal"] == 0, "the step thread allocated nothing")
    check(status["kv"]["blocks"] == whole and status["kv"]["state"] == "steady", "the pool is what it was")


def a_child_that_dies_tells_its_size_anew():
    code, _ = resize(20)
    check(code == 0, "the pool shrinks once more")
    want = expected(0)
    os.kill(args.child, signal.SIGKILL)
    status, _, answer = server.ask("POST", "/v1/completions", body(0), timeout=300)
    end = time.monotonic() + 120    # the bound is only for a child that never comes back
    while status == 503 and time.monotonic() < end:
        time.sleep(0.1)
        status, _, answer = server.ask("POST", "/v1/completions", body(0), timeout=300)
    check(status == 200 and json.loads(answer)["choices"][0]["text"] == want, "the same request, the same text")
    check(metrics()["tare_kv_blocks_capacity"] == whole, "the child's pool is what it was started with")
    code, answer = resize("-20")
    check(code == 0 and answer["blocks_before"] == whole, "and can be resized")


whole = int(metrics()["tare_kv_blocks_capacity"])
run([streams_keep_their_text_while_the_pool_changes, admission_follows, what_cannot_be_is_told,
     a_child_that_dies_tells_its_size_anew])
