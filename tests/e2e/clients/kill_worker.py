# SPDX-License-Identifier: Apache-2.0
"""Kills the process that computes while streams run; they must pause and go on with the same text.

usage: kill_worker.py URL PID
"""
import argparse
import json
import os
import signal
import threading
import time

from harness import Server, check, events, read_answer, read_all, run

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("pid", type=int)
parser.add_argument("--streams", type=int, default=4)
args = parser.parse_args()
server = Server(args.url)


def body(index):
    prompt = f"Story number {index}: Once upon a time"
    return {"prompt": prompt, "max_tokens": 160, "temperature": 0.8, "seed": index, "ignore_eos": True}


def expected(index):
    status, _, answer = server.ask("POST", "/v1/completions", body(index), timeout=300)
    check(status == 200, f"the reference of stream {index} is answered")
    return json.loads(answer)["choices"][0]["text"]


def stream(index, started, results):
    data = json.dumps({**body(index), "stream": True}).encode()
    with server.dial(timeout=300) as sock:
        sock.sendall(server.head("POST", "/v1/completions", data, "Connection: close\r\n") + data)
        first = sock.recv(65536)
        started[index].set()
        results[index] = read_answer(first + read_all(sock))


def a_killed_child_costs_a_pause_and_no_token():
    texts = [expected(i) for i in range(args.streams)]
    started = [threading.Event() for _ in texts]
    results = [None] * len(texts)
    threads = [threading.Thread(target=stream, args=(i, started, results)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for event in started:
        check(event.wait(60), "every stream has begun before the kill")
    os.kill(args.pid, signal.SIGKILL)
    killed = time.monotonic()
    for thread in threads:
        thread.join()
    print(f"  all streams ended {time.monotonic() - killed:.1f} s after the kill")
    for want, (status, fields, answer) in zip(texts, results):
        found = events(answer)
        check(status == 200 and fields.get("complete") is True, "the stream ends as it should")
        check(found[-1] == "[DONE]", "with [DONE]")
        chunks = [json.loads(e) for e in found[:-1]]
        check(all("error" not in c for c in chunks), "without an error event")
        text = "".join(c["choices"][0]["text"] for c in chunks)
        check(text == want, "and with the text it would have had")


def answers_afterwards():
    status, _, _ = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2})
    check(status == 200, "a new request is served")
    check(server.ask("GET", "/health")[0] == 200, "health is fine again")


run([a_killed_child_costs_a_pause_and_no_token, answers_afterwards])
