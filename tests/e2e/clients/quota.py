# SPDX-License-Identifier: Apache-2.0
"""Refusals of a server that has deadlines and quotas: each has its code and the headers that clients go by.

usage: quota.py URL KEY_WITH_A_DEADLINE KEY_OF_TWO_REQUESTS_A_MINUTE
"""
import argparse
import concurrent.futures
import json

from harness import Server, check, run

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("deadline_key")
parser.add_argument("quota_key")
args = parser.parse_args()
hurried = Server(args.url, args.deadline_key)
limited = Server(args.url, args.quota_key)


def complete(server, prompt, tokens):
    status, fields, answer = server.ask("POST", "/v1/completions",
                                        {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True}, timeout=300)
    return status, fields, json.loads(answer)


def quotas_come_back_one_by_one():
    check([complete(limited, "a", 1)[0] for _ in range(2)] == [200, 200], "what the entry allows is served")
    status, fields, answer = complete(limited, "a", 1)
    check(status == 429 and answer["error"]["code"] == "quota", f"then it is over quota: {answer}")
    check(20 <= int(fields["retry-after"]) <= 30, f"the next one comes in half a minute: {fields}")
    check(fields.get("x-should-retry") == "true", "which is worth waiting for")
    check(complete(limited, "a", "many")[0] == 400, "a bad request is told so first")
    check(complete(hurried, "a", 1)[0] == 200, "other keys are not concerned")


def a_line_that_is_too_long_is_said_so_at_once():
    for i in range(10):
        complete(hurried, f"{i} teaches what a token costs", 8)
    long = "word " * 300
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda i: complete(hurried, f"{i} {long}", 16), range(16)))
    refused = [(fields, answer) for status, fields, answer in answers if status == 429]
    check(0 < len(refused) < 16, f"some of sixteen are served, some refused: {len(refused)}")
    codes = {answer["error"]["code"] for _, answer in refused}
    check(codes <= {"queue_full", "would_miss_deadline"}, f"for the line or the deadline: {codes}")
    check(all(fields.get("x-should-retry") == "true" and 1 <= int(fields["retry-after"]) <= 72
              for fields, _ in refused), "all are told when to come back")
    check(len({fields["retry-after-ms"] for fields, _ in refused}) > 1, "and not all at once")


run([quotas_come_back_one_by_one, a_line_that_is_too_long_is_said_so_at_once])
