# SPDX-License-Identifier: Apache-2.0
"""Clients that leave, in every phase of their request: nothing runs for them any more, and their memory is back within
one plan.

usage: leave.py URL    (a server with --max-num-seqs 2 and at least 16 places in the line)
"""
import argparse
import json
import time

from harness import Server, check, run

parser = argparse.ArgumentParser()
parser.add_argument("url")
args = parser.parse_args()
server = Server(args.url)
LONG = "once upon a time there was " * 250
PIPELINED = 3    # plans that may be out when the last client is gone


def metrics():
    text = server.ask("GET", "/metrics")[2].decode()

    def total(name, **labels):
        found = 0.0
        for line in text.splitlines():
            if line.startswith(name + "{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
                found += float(line.rsplit(" ", 1)[1])
        return found

    return {
        "running": total("tare_requests", state="prefilling") + total("tare_requests", state="decoding"),
        "queued": total("tare_requests", state="queued"),
        "free": total("tare_kv_blocks", state="free"),
        "capacity": total("tare_kv_blocks_capacity"),
        "plans": total("tare_plans_total"),
        "gone": total("tare_requests_total", outcome="client_abort"),
        "heartbeat_age": total("tare_worker_heartbeat_age_seconds"),
    }


def wait_for(claim, condition, seconds=60):
    """Polls; the bound is only for a server that never gets there."""
    end = time.monotonic() + seconds
    now = metrics()
    while not condition(now) and time.monotonic() < end:
        time.sleep(0.01)
        now = metrics()
    check(condition(now), f"{claim}: {now}")
    return now


def begin(prompt, stream, tokens=2000):
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    data = json.dumps(body).encode()
    sock = server.dial()
    sock.sendall(server.head("POST", "/v1/completions", data) + data)
    return sock


def expect_all_back(count, before):
    seen = wait_for("nothing runs and nothing waits", lambda m: m["running"] + m["queued"] == 0)
    after = wait_for("every block is free", lambda m: m["free"] == m["capacity"])
    check(after["plans"] - seen["plans"] <= PIPELINED + 1,
          f"the memory is back with the next plan: {after['plans'] - seen['plans']} more")
    check(after["gone"] - before["gone"] == count, f"{count} sequences ended because their client left")
    # The worker has spoken twice since: whatever went on by itself would show.
    for _ in range(2):
        begin_s = time.monotonic()
        last = wait_for("the worker's heart beats", lambda m: m["heartbeat_age"] < time.monotonic() - begin_s)
    check(last["plans"] == after["plans"], "no plan is made for nobody")


def while_decoding():
    before = metrics()
    streams = [begin("a story", True) for _ in range(2)]
    for sock in streams:
        check(b"data:" in sock.recv(65536), "the stream has begun")
    for sock in streams:
        sock.close()
    expect_all_back(2, before)


def without_a_stream():
    before = metrics()
    sock = begin("a story", False)
    wait_for("it decodes", lambda m: m["running"] == 1)
    sock.close()
    expect_all_back(1, before)


def in_a_prompt():
    before = metrics()
    sock = begin(LONG, True)
    wait_for("its prompt is computed", lambda m: m["running"] == 1)
    sock.close()
    expect_all_back(1, before)


def in_the_line():
    before = metrics()
    streams = [begin("a story", True) for _ in range(2)]
    for sock in streams:
        sock.recv(65536)
    waiting = [begin(f"another story {i}", i % 2 == 0) for i in range(12)]
    wait_for("the others wait", lambda m: m["queued"] == 12)
    for sock in waiting:
        sock.close()
    seen = wait_for("the line is empty", lambda m: m["queued"] == 0)
    check(seen["running"] == 2, "those who run go on")
    for sock in streams:
        check(len(sock.recv(65536)) > 0, "and still get tokens")
        sock.close()
    expect_all_back(14, before)


def in_the_middle_of_everything():
    before = metrics()
    sockets = [begin(LONG if i % 3 == 0 else f"story {i}", i % 2 == 0) for i in range(14)]
    wait_for("all are there", lambda m: m["running"] + m["queued"] == 14)
    for sock in sockets:
        sock.close()
    expect_all_back(14, before)


run([while_decoding, without_a_stream, in_a_prompt, in_the_line, in_the_middle_of_everything])
