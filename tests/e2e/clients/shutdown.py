# SPDX-License-Identifier: Apache-2.0
"""Stops `tare serve` while something else goes wrong: running requests finish where they can, the exit code is true
where they cannot, and nothing that stands still keeps the service from ending.

usage: shutdown.py MODEL SMALL_MODEL    (in the root of the tree, after `make all`; decoding MODEL takes a while)
"""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import traceback

from harness import Server, check, events, read_all, read_answer, run

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("small_model")
args = parser.parse_args()
work = tempfile.mkdtemp(prefix="tare-shutdown-")
TOKENS = 120
LOOK_S = 0.05    # only spaces the looks


def children(pid, name):
    found = subprocess.run(["pgrep", "-P", str(pid), "-x", name], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


class Service:
    """A `tare serve` of its own, ready."""

    def __init__(self, name, *flags, model=args.model):
        self.log, self.run_dir = f"{work}/{name}.log", f"{work}/{name}"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                ["bin/tare", "serve", model, "--port", "0", "--run-dir", self.run_dir, "--kv-cache-memory-bytes", "16M",
                 "--max-model-len", "512", "--no-access-log", "--threads", "2", *flags], stderr=log)
        services.append(self)
        while not re.search(r"^ready [^\0]*^try ", self.text(), re.M):
            assert self.process.poll() is None, self.text()
            time.sleep(LOOK_S)
        self.server = Server(re.search(r"^ready *(http://[^/]*)/v1", self.text(), re.M).group(1))
        self.controller = children(self.process.pid, "tare-controller")[0]
        self.workers = children(self.process.pid, "tare-worker")
        self.computing = [child for worker in self.workers for child in children(worker, "tare-worker")]

    def text(self):
        with open(self.log) as log:
            return log.read()

    def wait_for(self, words):
        while words not in self.text():
            assert self.process.poll() is None, self.text()
            time.sleep(LOOK_S)

    def takes_stop(self):
        pending = True
        while pending:
            with open(f"/proc/{self.process.pid}/status") as status:
                signals = re.search(r"^ShdPnd:\s*([0-9a-f]+)$", status.read(), re.M).group(1)
            pending = int(signals, 16) >> (signal.SIGTERM - 1) & 1
            time.sleep(LOOK_S)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)

    def drain(self):
        self.stop()
        self.wait_for('"draining"')

    def leaves(self, code, claim):
        """Seconds until it has left, and everything of it."""
        begun = time.monotonic()
        is_code = self.process.wait(60)
        seconds = time.monotonic() - begun
        check(is_code == code, f"{claim}: code {is_code}, not {code}")
        if is_code != code:
            print(self.text()[-2000:])
        all_of_it = [self.controller, *self.workers, *self.computing]
        until = time.monotonic() + 5
        while (left := [pid for pid in all_of_it if runs(pid)]) and time.monotonic() < until:
            time.sleep(LOOK_S)
        check(not left, f"{claim}: nothing of it stays: {left}")
        return seconds


services = []


def runs(pid):
    """False for what ended too, where nobody has taken note of that yet."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Streams:
    """Requests that run: each has had its first token."""

    def __init__(self, service, count=4):
        self.data, self.server = [b""] * count, service.server
        self.begun = [threading.Event() for _ in range(count)]
        self.threads = [threading.Thread(target=self.read, args=(i,)) for i in range(count)]
        for thread in self.threads:
            thread.start()
        for event in self.begun:
            check(event.wait(60), "a stream has begun")

    def read(self, index):
        body = {"prompt": f"{index} and the sea", "max_tokens": TOKENS, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}}
        data = json.dumps(body).encode()
        try:
            with self.server.dial(timeout=60) as sock:
                sock.sendall(self.server.head("POST", "/v1/completions", data, "Connection: close\r\n") + data)
                first = sock.recv(65536)
                self.begun[index].set()
                self.data[index] = first + read_all(sock)
        finally:
            self.begun[index].set()

    def finished(self):
        """How many came to their end with all their tokens."""
        whole = 0
        for thread in self.threads:
            thread.join()
        for data in self.data:
            status, fields, body = read_answer(data)
            if status == 200 and fields.get("complete") is True:
                found = events(body)
                usages = [json.loads(e).get("usage") for e in found if e != "[DONE]"]
                whole += found[-1] == "[DONE]" and usages[-1] is not None and usages[-1]["completion_tokens"] == TOKENS
        return whole


def a_worker_killed_in_the_drain_comes_back():
    service = Service("killed", "--groups", "2")
    streams = Streams(service)
    service.drain()
    os.kill(service.workers[0], signal.SIGKILL)
    service.leaves(0, "a worker that is killed in the drain")
    check(streams.finished() == 4, "the requests of both groups finish")
    check("ended, starting another" in service.text(), "it was started again")


def a_planned_restart_outlives_the_stop():
    service = Service("planned", "--tp", "3")
    streams = Streams(service)
    os.kill(service.workers[0], signal.SIGTERM)
    service.wait_for('reason="leaving"')
    service.stop()
    service.leaves(0, "a worker that left just before the stop")
    check(streams.finished() == 4, "the requests of its group finish")


def a_signal_to_every_process_drains():
    service = Service("all", "--tp", "3")
    streams = Streams(service)
    for pid in [service.process.pid, service.controller, *service.workers, *service.computing]:
        os.kill(pid, signal.SIGTERM)
    service.leaves(0, "a stop of every process")
    check(streams.finished() == 4, "running requests finish")
    # Nothing runs: the controller has obeyed one signal by the time the other comes.
    for n in range(3):
        service = Service(f"idle{n}", model=args.small_model)
        for pid in [service.controller, *service.workers, service.process.pid]:
            os.kill(pid, signal.SIGTERM)
        service.leaves(0, "a stop of every idle process")


def a_second_stop_ends_now():
    service = Service("twice")
    streams = Streams(service)
    service.drain()
    service.stop()
    check(service.leaves(0, "two stops") < 3, "without a drain")
    check(streams.finished() == 0, "streams are ended")


def a_worker_that_cannot_come_back_ends_the_service():
    gone = f"{work}/model"
    os.symlink(os.path.abspath(args.model), gone)
    service = Service("gone", model=gone)
    streams = Streams(service)
    service.drain()
    os.unlink(gone)
    os.kill(service.workers[0], signal.SIGKILL)
    service.leaves(66, "a worker whose model is gone")
    check("is not started again (exit code 66): the service ends" in service.text(), "and that is said")
    check(streams.finished() == 0, "streams are ended")


def a_killed_controller_is_no_clean_end():
    service = Service("cut")
    streams = Streams(service)
    service.drain()
    os.kill(service.controller, signal.SIGKILL)
    service.leaves(70, "a controller that is killed in the drain")
    check("the controller was killed before it had drained" in service.text(), "and that is said")
    check(streams.finished() == 0, "nobody takes a cut stream for a whole one")
    # Whether the next one has started by then or not.
    for name in ("at-once", "later"):
        service = Service(name, model=args.small_model)
        for pid in service.workers + service.computing:
            os.kill(pid, signal.SIGSTOP)    # so that the next one has no group for the moment
        os.kill(service.controller, signal.SIGKILL)
        if name == "later":
            service.wait_for("the controller was killed, starting another")
        service.stop()
        for pid in service.workers + service.computing:
            os.kill(pid, signal.SIGCONT)
        service.leaves(70, f"a controller that is killed just before the stop, {name}")
        check(re.search(r"^tare: the controller was killed (just )?before .*cut off$", service.text(), re.M),
              "and that is said")


def in_the_background(function):
    def counted():
        try:
            function()
        except Exception:
            traceback.print_exc()
            check(False, f"{function.__name__} raised")

    thread = threading.Thread(target=counted)
    thread.start()
    return thread


def stopped_controller_twice():
    service = Service("stopped-twice", model=args.small_model)
    os.kill(service.controller, signal.SIGSTOP)
    service.stop()
    service.takes_stop()    # two signals at once would be one
    service.stop()
    check(service.leaves(70, "a controller that stands still, two stops") < 10, "it is killed after five seconds")


def stopped_controller_once():
    service = Service("stopped-once", "--shutdown-timeout", "1", model=args.small_model)
    os.kill(service.controller, signal.SIGSTOP)
    service.stop()
    seconds = service.leaves(70, "a controller that stands still, one stop")
    check(5 < seconds < 11, f"it is killed five seconds after the drain's deadline: {seconds:.1f} s")


def stopped_workers():
    service = Service("stopped-workers", "--groups", "3", model=args.small_model)
    for pid in service.workers:
        os.kill(pid, signal.SIGSTOP)
    service.stop()
    seconds = service.leaves(0, "three workers that stand still")
    check(4 < seconds < 9, f"they have five seconds together: {seconds:.1f} s")


still = []


def what_stands_still_is_killed():
    for thread in still:
        thread.join()
    check(len(services) == 14, "all of them were tried")


try:
    # They wait most of the time: beside the others.
    still = [in_the_background(f) for f in (stopped_controller_twice, stopped_controller_once, stopped_workers)]
    run([a_worker_killed_in_the_drain_comes_back, a_planned_restart_outlives_the_stop, a_signal_to_every_process_drains,
         a_second_stop_ends_now, a_worker_that_cannot_come_back_ends_the_service, a_killed_controller_is_no_clean_end,
         what_stands_still_is_killed])
finally:
    for service in services:
        if service.process.poll() is None:
            os.kill(service.controller, signal.SIGKILL)
            service.process.kill()
            service.process.wait()
    shutil.rmtree(work)
