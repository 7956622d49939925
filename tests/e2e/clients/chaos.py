# SPDX-License-Identifier: Apache-2.0
"""Clients that come and vanish, and kills of the computing process, for a while.

usage: chaos.py URL SERVER_PID SECONDS

Eight threads stream seeded completions. Some read to the end and compare with what the same request gave
before anything was killed; some close their socket at a random moment. Meanwhile the computing process is
killed every few seconds. At the end nothing runs, no KV block is missing, and no stream was wrong.
"""
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

url, server, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
parts = urllib.parse.urlsplit(url)
REQUESTS = [dict(prompt=f"{i} bottles stand on the wall and", max_tokens=40 + 10 * (i % 8), temperature=0.9, seed=i,
                 ignore_eos=True, stream=True) for i in range(24)]
lock = threading.Lock()
count = dict(requests=0, complete=0, vanished=0, wrong=0, failed=0, kills=0)
longest_gap = [0.0]
stop = threading.Event()


def children(pid):
    text = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    return [int(word) for word in text.split()]


def compute_process():
    for daemon in children(server):
        if "tare-worker" in open(f"/proc/{daemon}/comm").read():
            for child in children(daemon):
                return child
    return None


def stream(request, leave_after=None):
    """What became of one stream: ("text", text), ("left", events), ("status", code) or ("error", why)."""
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        connection.close()
        return ("status", response.status)
    text, events, last, done = "", 0, time.monotonic(), False
    for line in response:
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            done = True
            break
        event = json.loads(line[6:])
        if "error" in event:
            connection.close()
            return ("error", event["error"]["code"])
        now = time.monotonic()
        longest_gap[0] = max(longest_gap[0], now - last)
        last = now
        text += "".join(choice["text"] for choice in event["choices"])
        events += 1
        if leave_after is not None and events >= leave_after:
            connection.close()
            return ("left", events)
    connection.close()
    return ("text", text) if done else ("error", "cut")


def client(number):
    chance = random.Random(number)
    while not stop.is_set():
        index = chance.randrange(len(REQUESTS))
        leave = chance.randrange(1, 30) if chance.random() < 0.4 else None
        kind, value = stream(REQUESTS[index], leave)
        with lock:
            count["requests"] += 1
            if kind == "text":
                count["complete"] += 1
                count["wrong"] += value != want[index]
            elif kind == "left":
                count["vanished"] += 1
            else:
                count["failed"] += 1
                print("failed:", kind, value, file=sys.stderr)


def metric(name, label=""):
    for line in urllib.request.urlopen(url + "/metrics").read().decode().splitlines():
        if line.startswith(name + "{") and label in line:
            return float(line.split()[-1])
    raise KeyError(f"/metrics has no {name} {label}")


want = []
for request in REQUESTS:
    kind, value = stream(request)
    assert kind == "text", (kind, value)
    want.append(value)
threads = [threading.Thread(target=client, args=(i,)) for i in range(8)]
for thread in threads:
    thread.start()
end = time.monotonic() + seconds
chance = random.Random(99)
while time.monotonic() < end:
    stop.wait(min(chance.uniform(4, 8), max(0.0, end - time.monotonic())))
    pid = compute_process()
    if pid is not None and time.monotonic() < end:
        os.kill(pid, signal.SIGKILL)
        count["kills"] += 1
stop.set()
for thread in threads:
    thread.join()
deadline = time.monotonic() + 30
free = total = None
while time.monotonic() < deadline:
    free, total = metric("tare_kv_blocks", 'state="free"'), metric("tare_kv_blocks_capacity")
    if free == total:
        break
    time.sleep(0.2)  # the condition is the equality; the pause only spaces the looks at it
count["blocks_missing"] = total - free
count["longest_gap_s"] = round(longest_gap[0], 3)
print(json.dumps(count))
sys.exit(1 if count["wrong"] + count["failed"] + count["blocks_missing"] or count["complete"] == 0 else 0)
