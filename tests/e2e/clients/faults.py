# SPDX-License-Identifier: Apache-2.0
"""Ranks of a group die, stop, hang and lie while streams run; the streams must pause and go on with the same tokens.

usage: faults.py URL SERVER_PID RUN_DIR LOG FAULTS_DIR KIND...

The server is one group of the program built from tests/e2e/faulty_worker.c. Each kind of fault runs under four streams
with what they gave undisturbed; afterwards the group is ready in a later epoch, ranks that were not hit have their
processes, and whoever had only lost its child attached to its weights. Where the pause is long enough to be seen,
/health must have said 503 before the next token. Prints one JSON object a kind.
"""
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse

from harness import check, run

url, server, run_dir, log, faults = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]
kinds = sys.argv[6:]
parts = urllib.parse.urlsplit(url)
STREAMS = 4
BEGUN = 8  # tokens of every stream before the fault
ABOUT_S = 0.3  # a fault is met in the next step
LONG = "once more and again and again, " * 12


def request(index):
    prompt = LONG if index == STREAMS else f"{index} bottles stand on the wall and"
    return dict(prompt=prompt, max_tokens=60 if index == STREAMS else 300 - 40 * index, temperature=0.9, seed=index,
                ignore_eos=True, stream=True)


class Stream(threading.Thread):
    """One stream: what it gave, and when each token came."""

    def __init__(self, index):
        super().__init__()
        self.request, self.text, self.times, self.end = request(index), "", [], "cut"
        self.begun = threading.Event()
        self.start()

    def run(self):
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(self.request), {"Content-Type": "application/json"})
        response = connection.getresponse()
        for line in response:
            if line.strip() == b"data: [DONE]":
                self.end = "done"
            elif line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    self.end = event["error"]["code"]
                    break
                self.text += "".join(choice["text"] for choice in event["choices"])
                self.times.append(time.monotonic())
                if len(self.times) == BEGUN:
                    self.begun.set()
        connection.close()
        self.begun.set()

    def resumed_after(self, when):
        """Seconds from `when` to the end of the longest pause that began about then: a busy machine makes others."""
        gaps = [(b - a, b) for a, b in zip(self.times, self.times[1:]) if b > when and a < when + ABOUT_S]
        return max(gaps)[1] - when if gaps else None


class Health(threading.Thread):
    """Asks /health and /ready by turns, on one connection, until it is told to stop."""

    def __init__(self):
        super().__init__()
        self.seen, self.stopped = [], threading.Event()
        self.start()

    def run(self):
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
        while not self.stopped.is_set():
            for path in "/health", "/ready":
                connection.request("GET", path)
                response = connection.getresponse()
                body = json.loads(response.read())
                self.seen.append((time.monotonic(), path, response.status, body))
            self.stopped.wait(0.005)
        connection.close()

    def stop(self):
        self.stopped.set()
        self.join()

    def first(self, path, status, after):
        return next((t for t, p, s, _ in self.seen if p == path and s == status and t > after), None)


def workers():
    """The group's ranks as the operator sees them; None while there is no answer."""
    out = subprocess.run(["bin/tare", "status", "--run-dir", run_dir, "--json"], capture_output=True, text=True).stdout
    return json.loads(out)["groups"][0]["workers"] if out else None


def until(what, condition):
    """Looks until it holds; the pause only spaces the looks."""
    for _ in range(1200):
        found = condition()
        if found:
            return found
        time.sleep(0.025)
    check(False, what)
    return None


def ready_above(epoch):
    found = workers()
    return found if found and all(w["state"] == "ready" and w["epoch"] > epoch for w in found) else None


def holder_of(pid):
    return int(re.search(r"^PPid:\s*(\d+)", open(f"/proc/{pid}/status").read(), re.M).group(1))


def state_of(pid):
    try:
        return re.search(r"^State:\s*(\w)", open(f"/proc/{pid}/status").read(), re.M).group(1)
    except FileNotFoundError:
        return None


def log_from(offset):
    with open(log) as file:
        file.seek(offset)
        return file.read()


def arm(rank, word):
    """The rank's file, whole at once."""
    with open(f"{faults}/new", "w") as file:
        file.write(word)
    os.rename(f"{faults}/new", f"{faults}/g0r{rank}")


def armed(rank):
    return os.path.exists(f"{faults}/g0r{rank}")


# ---- what is done, and what must have happened by then ----------------------------------------------

class Fault:
    """do(pids, holders) hits; `hit` are the ranks whose process is another one afterwards."""

    def __init__(self, do, hit=(), attaches=True, visible=False, says=()):
        self.do, self.hit, self.attaches, self.visible, self.says = do, hit, attaches, visible, says


def kill(*ranks, half="child"):
    def do(pids, holders):
        for rank in ranks:
            victims = {"child": [pids[rank]], "holder": [holders[rank]], "both": [holders[rank], pids[rank]]}[half]
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
    return do


def stop_child(pids, holders):
    os.kill(pids[1], signal.SIGSTOP)


def stop_holder_and_kill(pids, holders):
    """Nobody starts another child until the holder goes on."""
    os.kill(holders[1], signal.SIGSTOP)
    os.kill(pids[1], signal.SIGKILL)
    until("the group is lost", lambda: workers()[1]["state"] == "away")
    check(state_of(pids[1]) == "Z", "a stopped holder starts nobody")
    os.kill(holders[1], signal.SIGCONT)


def stop_both(pids, holders):
    """The child goes on in its own process: its holder was stopped too, and saw nothing."""
    os.kill(holders[1], signal.SIGSTOP)
    os.kill(pids[1], signal.SIGSTOP)
    until("the group is lost", lambda: workers()[1]["state"] == "away")
    os.kill(pids[1], signal.SIGCONT)
    os.kill(holders[1], signal.SIGCONT)


def fail(rank, word):
    """In the running process."""
    return lambda pids, holders: arm(rank, word)


def fail_start(rank, word, half="child"):
    """In the next one: the child is killed, and so is the one that follows."""
    def do(pids, holders):
        arm(rank, word)
        kill(rank, half=half)(pids, holders)
    return do


FAULTS = {
    "kill-child": Fault(kill(1), [1], says=["signal=9 code=0"]),
    "kill-child-0": Fault(kill(0), [0]),
    "kill-holder": Fault(kill(1, half="holder"), [1], attaches=False, visible=True),
    "kill-both": Fault(kill(1, half="both"), [1], attaches=False, visible=True),
    "kill-two": Fault(kill(0, 1), [0, 1]),
    "stop-child": Fault(stop_child, [1], visible=True, says=["child stands still: killed", "signal=9 code=0"]),
    "stop-holder": Fault(stop_holder_and_kill, [1], visible=True),
    "stop-both": Fault(stop_both, visible=True),
    "hang": Fault(fail(1, "hang"), [1], visible=True, says=["the step thread hangs", "signal=0 code=1"]),
    "digest": Fault(fail(1, "digest"), says=["epoch given up"]),
    "token": Fault(fail(0, "token"), says=["epoch given up"]),
    "noise": Fault(fail(1, "noise"), says=["bad message"]),
    "in-message": Fault(fail(0, "message"), [0]),
    "in-decode": Fault(fail(1, "decode"), [1]),
    "in-prefill": Fault(fail(1, "prefill"), [1]),
    "in-start": Fault(fail_start(1, "start"), [1]),
    "in-load": Fault(fail_start(0, "load", "holder"), [0], attaches=False, visible=True),
    "once-started": Fault(fail_start(1, "started"), [1]),
    "in-attach": Fault(fail_start(0, "attach"), [0]),
    "once-attached": Fault(fail_start(1, "attached"), [1]),
}


def begun_streams(kind):
    """Streams that have begun and of which none has ended: on a busy machine the client may come too late to see it."""
    for _ in range(20):
        streams = [Stream(i) for i in range(STREAMS)]
        for stream in streams:
            check(stream.begun.wait(60), f"{kind}: the stream has begun")
        if all(stream.end != "done" for stream in streams):
            return streams
        for stream in streams:
            stream.join()
    sys.exit(f"{kind}: streams are still running when they are looked at: not once in 20 times")


def one(kind):
    fault = FAULTS[kind]
    before = workers()
    pids = [w["pid"] for w in before]
    holders = [holder_of(pid) for pid in pids]
    epoch = max(w["epoch"] for w in before)
    offset = os.path.getsize(log)
    health = Health()
    streams = begun_streams(kind)
    hit = time.monotonic()
    fault.do(pids, holders)
    if kind == "in-prefill":
        streams.append(Stream(STREAMS))
    for stream in streams:
        stream.join()
    after = until(f"{kind}: the group is ready again", lambda: ready_above(epoch))
    until(f"{kind}: /health is fine again", lambda: health.first("/health", 200, health.seen[-1][0] - 0.001))
    health.stop()
    text = log_from(offset)
    for index, stream in enumerate(streams):
        check(stream.end == "done", f"{kind}: stream {index} ends as it should, not with {stream.end}")
        check(stream.text == want[index], f"{kind}: stream {index} has the tokens it would have had")
    for rank, pid in enumerate(pids):
        now = after[rank]["pid"]
        check((now != pid) == (rank in fault.hit), f"{kind}: rank {rank} has {'another' if rank in fault.hit else 'its'} process")
        check(holder_of(now) == holders[rank] or not fault.attaches, f"{kind}: rank {rank} has its holder")
        check(not armed(rank), f"{kind}: rank {rank} came to its fault")
    started = re.findall(r"engine ready.*attached=(\d)", text)
    check(len(started) == len(fault.hit) + (kind in ("in-attach", "once-attached")), f"{kind}: nobody else starts: {started}")
    check(all(s == ("1" if fault.attaches else "0") for s in started), f"{kind}: attached={started}")
    for sentence in fault.says:
        check(sentence in text, f"{kind}: the log says '{sentence}'")
    resumed = max(filter(None, (s.resumed_after(hit) for s in streams[:STREAMS])), default=None)
    check(resumed is not None, f"{kind}: it hit running streams")
    refused = {path: health.first(path, 503, hit) for path in ("/health", "/ready")}
    if fault.visible and resumed is not None:
        for path, when in refused.items():
            check(when is not None and when < hit + resumed, f"{kind}: {path} is 503 before the next token")
    reasons = sorted({str(b.get("state") or b["error"]["message"]) for _, _, s, b in health.seen if s == 503})
    print(json.dumps(dict(world=len(pids), kind=kind, next_token_ms=round(1000 * (resumed or 0), 1),
                          health_503_ms=refused["/health"] and round(1000 * (refused["/health"] - hit), 1),
                          reasons=reasons)), flush=True)


def undisturbed():
    global want
    streams = [Stream(i) for i in range(STREAMS + 1)]
    for stream in streams:
        stream.join()
        check(stream.end == "done" and len(stream.text) > 0, "the undisturbed stream is whole")
    want = [stream.text for stream in streams]


def every_kind():
    for kind in kinds:
        one(kind)


want = []
run([undisturbed, every_kind])
