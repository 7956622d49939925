# SPDX-License-Identifier: Apache-2.0
"""Kills the controller under running streams; the next one gives their rest by id, event for event.

usage: resume_stream.py MODEL    (in the root of the tree, after `make all`)
"""
import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from harness import Server, check, events, read_all, read_answer, run, unchunk

parser = argparse.ArgumentParser()
parser.add_argument("model")
args = parser.parse_args()
work = tempfile.mkdtemp(prefix="tare-resume-")
run_dir = f"{work}/run"
TOKENS = 500
KEYS = {"first": "sesame-one", "second": "sesame-two"}


def completion(prompt, **more):
    return "/v1/completions", {"prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "stream": True, **more}


usage = {"include_usage": True}
ASKED = [
    completion("one", temperature=0),
    completion("two", temperature=1.2, seed=7, n=2),
    completion("three", temperature=0.9, seed=3, logprobs=2),
    completion("four", temperature=1, seed=4, stream_options=usage),
    completion("five", temperature=1, seed=5, stream_options={**usage, "continuous_usage_stats": True}),
    completion("six", temperature=1.5, seed=6, echo=True, logprobs=1, min_tokens=TOKENS, stop=["e", "the"]),
    completion(["seven", "and eight"], temperature=1.5, seed=8, stop=["\u00fc\u00fc\u00fc\u00fc", "zzzzzz"]),
    completion("nine", temperature=1.1, seed=9, presence_penalty=0.5, frequency_penalty=0.5),
]


class Controller:
    def __init__(self):
        self.log = f"{work}/controller.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                ["bin/tare-controller", args.model, "--port", "0", "--run-dir", run_dir, "--banner", "--no-access-log",
                 "--no-enable-prefix-caching", "--api-key-file", f"{work}/keys"], stderr=log)

    def url(self):
        """Once a worker is there; the pause only spaces the looks."""
        while True:
            assert self.process.poll() is None, open(self.log).read()
            found = re.search(r"^ready *(http://[^/]*)/v1[^\0]*^try ", open(self.log).read(), re.M)
            if found:
                return found.group(1)
            time.sleep(0.05)


def server(url, key="first"):
    return Server(url, KEYS[key])


class Stream:
    """What came of a stream until it ended or was cut."""

    def __init__(self, url, index, name):
        path, body = ASKED[index]
        self.begun, self.ended = threading.Event(), threading.Event()
        self.data = b""
        self.body = json.dumps(body).encode()
        self.sock = server(url).dial(timeout=300)
        head = server(url).head("POST", path, self.body, f"Connection: close\r\nx-request-id: {name}-{index}\r\n")
        self.sock.sendall(head + self.body)
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        try:
            while part := self.sock.recv(65536):
                self.data += part
                if self.data.count(b"data: ") >= 12:
                    self.begun.set()
        except ConnectionResetError:
            pass
        self.sock.close()
        self.ended.set()
        self.begun.set()

    def events(self):
        """Whole ones: of the last one a part may have come."""
        self.thread.join()
        content, _ = unchunk(self.data.partition(b"\r\n\r\n")[2])
        return events(content[: content.rfind(b"\n\n") + 2])


def plain(found):
    """The events of each choice, whose order among each other is the steps' business; without what differs between
    two requests for the same."""
    by_choice = {}
    for event in found:
        choice = re.search(r'"choices":\[{"index":([0-9]+)', event)
        event = re.sub(r'"id":"[^"]*"|"created":[0-9]*', "", event)
        by_choice.setdefault(choice.group(1) if choice else "end", []).append(event)
    return by_choice


def error_of(answer):
    status, _, body = answer
    return status, json.loads(body)["error"]["code"]


def ask_streams(url, name):
    streams = [Stream(url, i, name) for i in range(len(ASKED))]
    return streams


def metric(url, name):
    body = server(url).ask("GET", "/metrics")[2].decode()
    return float(re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", body, re.M).group(1))


def resumed(url, body_id, after, results, index):
    with server(url).dial(timeout=300) as sock:
        sock.sendall(server(url).head("GET", f"/v1/streams/{body_id}?after={after}", extra="Connection: close\r\n"))
        results[index] = read_answer(read_all(sock))


def a_killed_controller_costs_no_event():
    global controller
    url = controller.url()
    whole = [stream.events() for stream in ask_streams(url, "whole")]
    check(all(found[-1] == "[DONE]" for found in whole), "undisturbed streams end with [DONE]")
    check(metric(url, "tare_journal_entries") == 0, "what was delivered is gone from the journal")

    streams = ask_streams(url, "cut")
    for stream in streams:
        check(stream.begun.wait(120), "every stream has begun before the kill")
    check(not any(stream.ended.is_set() for stream in streams), "and none has ended")
    controller.process.kill()
    controller.process.wait()
    seen = [stream.events() for stream in streams]
    check(all("[DONE]" not in found for found in seen), "a stream that is cut never looks finished")

    controller = Controller()
    url = controller.url()
    print("  events seen at the kill:", ", ".join(f"{len(a)} of {len(b)}" for a, b in zip(seen, whole)))
    ids = [json.loads(found[0])["id"] for found in seen]
    one = f"/v1/streams/{ids[0]}"
    check(error_of(server(url, "second").ask("GET", one)) == (404, "stream_not_found"), "another key: not found")
    check(error_of(Server(url).ask("GET", one)) == (401, "invalid_api_key"), "no key: not allowed")
    check(error_of(server(url).ask("GET", "/v1/streams/cmpl-none")) == (404, "stream_not_found"), "no such id")
    check(error_of(server(url).ask("GET", one + "?after=1000000")) == (400, "invalid_value"), "after what can be")
    check(error_of(server(url).ask("GET", one + "?after=-1")) == (400, "invalid_value"), "a number that is none")
    check(error_of(server(url).ask("POST", one, {}))[0] == 405, "not by POST")
    check(server(url).ask("HEAD", one)[0] == 405, "nor by HEAD, which would take it")

    results = [None] * len(ids)
    threads = [threading.Thread(target=resumed, args=(url, ids[i], len(seen[i]), results, i)) for i in range(len(ids))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, (status, fields, body) in enumerate(results):
        check(status == 200 and fields.get("complete") is True, f"stream {index} goes on to its end")
        together = plain(seen[index] + events(body))
        check(together == plain(whole[index]), f"stream {index} is what it would have been, event for event")
        for choice, want in plain(whole[index]).items():
            for mine, its in zip(together.get(choice, []), want):
                if mine != its:
                    print(f"    is   {mine}\n    want {its}")
                    break
    check(error_of(server(url).ask("GET", one)) == (404, "stream_not_found"), "what was delivered is gone")
    check(metric(url, "tare_streams_resumed_total") == len(ids), "they are counted")
    check(metric(url, "tare_journal_entries") == 0, "and gone from the journal")


def a_second_death_and_a_client_that_leaves():
    global controller
    url = controller.url()
    streams = ask_streams(url, "twice")
    for stream in streams:
        check(stream.begun.wait(120), "every stream has begun before the kill")
    controller.process.kill()
    controller.process.wait()
    seen = [stream.events() for stream in streams]
    controller = Controller()
    url = controller.url()
    ids = [json.loads(found[0])["id"] for found in seen]
    # A client takes a part and leaves: its response ends. Then the controller dies once more.
    with server(url).dial(timeout=300) as sock:
        sock.sendall(server(url).head("GET", f"/v1/streams/{ids[1]}?after=0", extra="Connection: close\r\n"))
        part = sock.recv(200)
        check(part.startswith(b"HTTP/1.1 200 "), "a response is continued from its first event")
        check(error_of(server(url).ask("GET", f"/v1/streams/{ids[1]}"))[0] in (404, 409), "one client at a time")
    controller.process.kill()
    controller.process.wait()
    controller = Controller()
    url = controller.url()
    results = [None]
    resumed(url, ids[0], 0, results, 0)
    status, fields, body = results[0]
    check(status == 200 and fields.get("complete") is True, "after two deaths too")
    check(events(body)[: len(seen[0])] == seen[0] and events(body)[-1] == "[DONE]", "with the same events")
    controller.process.send_signal(signal.SIGTERM)
    check(controller.process.wait() == 0, "a controller that is asked to leaves in order")
    check(not os.path.exists(f"{run_dir}/journal"), "and no journal stays")


def the_supervisor_starts_another():
    with socket.socket() as probe:    # an address that stays the same
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = open(f"{work}/serve.log", "w")
    serve = subprocess.Popen(["bin/tare", "serve", args.model, "--port", str(port), "--api-key-file", f"{work}/keys",
                              "--kv-cache-memory-bytes", "16M", "--threads", "1", "--no-access-log",
                              "--no-enable-prefix-caching"], stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        while "\ntry " not in open(log.name).read():
            assert serve.poll() is None, open(log.name).read()
            time.sleep(0.05)
        whole = Stream(url, 0, "whole").events()
        stream = Stream(url, 0, "cut")
        check(stream.begun.wait(120), "the stream has begun before the kill")
        child = subprocess.run(["pgrep", "-P", str(serve.pid), "-x", "tare-controller"], capture_output=True, text=True)
        os.kill(int(child.stdout), signal.SIGKILL)
        seen = stream.events()
        check("[DONE]" not in seen, "a stream that is cut never looks finished")
        body_id = json.loads(seen[0])["id"]
        results = [None]
        while results[0] is None or results[0][0] == 0:    # nobody there, or somebody who was dying
            try:
                resumed(url, body_id, len(seen), results, 0)
            except ConnectionError:
                time.sleep(0.05)    # only spaces the tries
        status, fields, body = results[0]
        check(status == 200 and fields.get("complete") is True, f"it goes on at the same address: {status} {body[:300]}")
        check(plain(seen + events(body)) == plain(whole), "and is what it would have been")
        serve.send_signal(signal.SIGTERM)
        check(serve.wait() == 0, "the supervisor leaves in order")
    finally:
        if serve.poll() is None:
            serve.send_signal(signal.SIGTERM)
            serve.wait()
        log.close()


with open(f"{work}/keys", "w") as keys:
    keys.writelines(f"{name}:{key}\n" for name, key in KEYS.items())
os.chmod(f"{work}/keys", 0o600)
controller = Controller()
while not os.path.exists(f"{run_dir}/control.sock"):
    time.sleep(0.05)
worker = subprocess.Popen(["bin/tare-worker", args.model, "--controller", f"ipc://{run_dir}", "--threads", "1",
                           "--kv-cache-memory-bytes", "16M"], stderr=open(f"{work}/worker.log", "w"))
try:
    run([a_killed_controller_costs_no_event, a_second_death_and_a_client_that_leaves,
         the_supervisor_starts_another])
finally:
    for process in (controller.process, worker):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()
    shutil.rmtree(work)
