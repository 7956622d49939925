# SPDX-License-Identifier: Apache-2.0
"""Real clients (openai-python) that come, read and vanish, while processes of their group are killed.

usage: chaos.py URL SERVER_PID SERVER_LOG SECONDS

Eight threads stream seeded completions. Some read to the end and compare with what the same request gave before
anything was killed; some leave at a random moment. Meanwhile, as soon as the group is ready again and a random moment
has passed, somebody is killed: the computing process of a rank (child), the one that holds its memory (holder), both,
or the children of two ranks. At the end nothing runs, no KV block is missing, and no stream was lost or wrong.
The pause of a kill is told by phase, from the server's log: detect (until the controller knows), restart (until the
new process has joined), attach (until the group is ready), redo (until the next token of any client).
"""
import datetime
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import openai

url, server, log, seconds = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=120)
model = client.models.list().data[0].id
REQUESTS = [dict(model=model, prompt=f"{i} bottles stand on the wall and", max_tokens=60 + 15 * (i % 8), temperature=0.9,
                 seed=i, stream=True, extra_body=dict(ignore_eos=True)) for i in range(24)]
KINDS = ["child"] * 6 + ["holder", "both", "two"]
lock = threading.Lock()
count = dict(requests=0, complete=0, vanished=0, wrong=0, lost=0)
last_event = [0.0]
kills = []    # dict(kind, at, detect, joined, ready, redone)
stop = threading.Event()


def stream(request, leave_after=None):
    """("text", text), ("left", events) or ("lost", why)."""
    text, events, finished = "", 0, False
    try:
        with client.completions.create(**request) as answer:
            for event in answer:
                last_event[0] = time.time()
                for choice in event.choices:
                    text += choice.text
                    finished = finished or choice.finish_reason is not None
                events += 1
                if leave_after is not None and events >= leave_after:
                    return "left", events
    except openai.OpenAIError as error:
        return "lost", repr(error)
    return ("text", text) if finished else ("lost", "ended without a finish reason")


def run_client(number):
    chance = random.Random(number)
    while not stop.is_set():
        index = chance.randrange(len(REQUESTS))
        leave = chance.randrange(1, 30) if chance.random() < 0.3 else None
        kind, value = stream(REQUESTS[index], leave)
        with lock:
            count["requests"] += 1
            if kind == "text":
                count["complete"] += 1
                if value != want[index]:
                    count["wrong"] += 1
                    print("wrong:", index, repr(value), repr(want[index]), file=sys.stderr)
            elif kind == "left":
                count["vanished"] += 1
            else:
                count["lost"] += 1
                print("lost:", value, file=sys.stderr)
                if count["lost"] > 20:
                    stop.set()    # nothing works any more


# ---- the server's side -------------------------------------------------------------------------

def children(pid):
    text = subprocess.run(["pgrep", "-P", str(pid), "-x", "tare-worker"], capture_output=True, text=True).stdout
    return [int(word) for word in text.split()]


class Log:
    """What the server's log says after a place in it."""

    def __init__(self, name):
        self.file = open(name, "rb")
        self.rest = b""

    def lines(self):
        self.rest += self.file.read()
        *whole, self.rest = self.rest.split(b"\n")
        for line in whole:
            words = line.decode("utf-8", "replace")
            if words.startswith("ts="):
                stamp = datetime.datetime.fromisoformat(words[3:words.index("Z")]).replace(tzinfo=datetime.timezone.utc)
                yield stamp.timestamp(), words


def choose_victims(chance, kind):
    holders = children(server)
    if not holders:
        return []
    victim = chance.choice(holders)
    if kind == "holder":
        return [victim]
    if kind == "both":
        return children(victim) + [victim]
    if kind == "two":
        return [pid for holder in holders[:2] for pid in children(holder)]
    return children(victim)


HOLDER_GAP_S = 12    # `tare serve` gives a worker up whose holder dies more than six times within a minute
holder_killed = [0.0]


def choose_kind(chance):
    kind = chance.choice(KINDS)
    if kind in ("holder", "both"):
        if time.monotonic() - holder_killed[0] < HOLDER_GAP_S:
            return "child"
        holder_killed[0] = time.monotonic()
    return kind


def kill_once(chance, journal, end):
    kind = choose_kind(chance)
    victims = choose_victims(chance, kind)
    if not victims:
        return
    for _ in journal.lines():
        pass
    kill = dict(kind=kind, at=time.time())
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    kills.append(kill)
    while time.monotonic() < end and "ready" not in kill:
        for at, words in journal.lines():
            if 'msg="worker lost"' in words:
                kill.setdefault("detect", at)
            elif 'msg="worker joined"' in words:
                kill["joined"] = at
            elif 'src=controller msg="ready"' in words and "detect" in kill:
                kill["ready"] = at
                kill["kept"] = "kv_kept=1" in words
        stop.wait(0.005)
    while time.monotonic() < end and "redone" not in kill and "ready" in kill:
        if last_event[0] > kill["ready"]:
            kill["redone"] = last_event[0]
        stop.wait(0.002)


def quantiles(values):
    values = sorted(values)
    if not values:
        return None
    pick = lambda q: round(1000 * max(0.0, values[min(len(values) - 1, int(q * len(values)))]), 1)
    return dict(p50_ms=pick(0.5), p99_ms=pick(0.99), max_ms=pick(1.0))


def pauses(kept):
    done = [k for k in kills if "redone" in k and "joined" in k and k.get("kept") == kept]
    steps = ["at", "detect", "joined", "ready", "redone"]
    names = ["detect", "restart", "attach", "redo"]
    phases = {name: quantiles([k[b] - k[a] for k in done]) for name, a, b in zip(names, steps, steps[1:])}
    return dict(kills=len(done), phases=phases, pause=quantiles([k["redone"] - k["at"] for k in done]))


def metric(name, label=""):
    for line in urllib.request.urlopen(url + "/metrics").read().decode().splitlines():
        if line.startswith(name + "{") and label in line:
            return float(line.split()[-1])
    raise KeyError(f"/metrics has no {name} {label}")


# ---- the run -----------------------------------------------------------------------------------

want = []
for request in REQUESTS:
    kind, value = stream(request)
    assert kind == "text", (kind, value)
    want.append(value)
threads = [threading.Thread(target=run_client, args=(i,)) for i in range(8)]
for thread in threads:
    thread.start()
end = time.monotonic() + seconds
chance = random.Random(99)
journal = Log(log)
while time.monotonic() < end and not stop.is_set():
    stop.wait(chance.uniform(0.0, 0.5))
    kill_once(chance, journal, end)
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
result = dict(count, kills=len(kills), by_kind={k: sum(1 for x in kills if x["kind"] == k) for k in sorted(set(KINDS))},
              blocks_missing=total - free, kv_kept=pauses(True), kv_lost=pauses(False))
print(json.dumps(result))
sys.exit(1 if count["wrong"] + count["lost"] + result["blocks_missing"] or count["complete"] == 0 or not kills else 0)
