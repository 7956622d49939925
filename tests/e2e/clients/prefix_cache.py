# SPDX-License-Identifier: Apache-2.0
"""A hit of the prefix cache changes nothing but the time: answers equal those of a server that has none.

usage: prefix_cache.py URL_WITH URL_WITHOUT
"""
import concurrent.futures
import json
import sys

import harness
from harness import check

warm = harness.Server(sys.argv[1])
cold = harness.Server(sys.argv[2])
BEGIN = " ".join(f"The river {i} flows to the sea past town {i * 7 % 13}." for i in range(60))


def ask(server, prompt, **more):
    body = {"prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 3, **more}
    status, _, data = server.ask("POST", "/v1/completions", body, timeout=300)
    check(status == 200, f"answered {status}")
    answer = json.loads(data)
    return answer["choices"][0], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def same(prompt, at_least=0, **more):
    """Text and every logprob, to the last digit that is written."""
    want, none = ask(cold, prompt, **more)
    got, cached = ask(warm, prompt, **more)
    check(none == 0, "a server without a cache finds nothing")
    check(cached >= at_least, f"{cached} tokens found, at least {at_least} were there")
    check(got["text"] == want["text"], f"equal text after {cached} cached tokens")
    check(got["logprobs"] == want["logprobs"], f"equal logprobs after {cached} cached tokens")
    return cached


def a_hit_equals_a_cold_run():
    check(same(BEGIN) == 0, "nothing is there at first")
    same(BEGIN, at_least=500)
    same(BEGIN + " And then", at_least=500)
    same(BEGIN[: len(BEGIN) // 2] + " But", at_least=200)


def an_answer_is_a_beginning_too():
    choice, _ = ask(warm, BEGIN, max_tokens=100)
    same(BEGIN + choice["text"] + " So", at_least=800)


def penalties_count_what_was_found():
    for more in ({"repetition_penalty": 1.3}, {"presence_penalty": 1.5}, {"frequency_penalty": 0.7}):
        same(BEGIN + " Now", at_least=500, **more)
    same(BEGIN + " Now", at_least=500, temperature=0.9, seed=7, top_p=0.8, repetition_penalty=1.1)


def scores_of_a_prompt_are_computed():
    check(same(BEGIN[:2000], echo=True, max_tokens=2) == 0, "every position was computed for its score")


def many_at_once():
    prompts = [BEGIN + f" Question {i}:" for i in range(12)]
    wanted = [ask(cold, p)[0] for p in prompts]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        got = list(pool.map(lambda p: ask(warm, p), prompts))
    for want, (choice, cached) in zip(wanted, got):
        check(choice["text"] == want["text"] and choice["logprobs"] == want["logprobs"], "equal beside others")
        check(cached >= 500, "found beside others")


harness.run([a_hit_equals_a_cold_run, an_answer_is_a_beginning_too, penalties_count_what_was_found,
             scores_of_a_prompt_are_computed, many_at_once])
