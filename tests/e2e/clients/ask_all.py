# SPDX-License-Identifier: Apache-2.0
"""Asks a server the same questions, several at once, and writes what it answers to the last bit of every logprob.

usage: ask_all.py URL OUT [greedy]
"""
import concurrent.futures
import json
import sys

from harness import Server

server, out = Server(sys.argv[1]), sys.argv[2]
greedy_only = len(sys.argv) > 3
model = server.model()["id"]
prompts = ["a", "The answer is", "one two three four five six seven eight nine ten " * 6, "x" * 90, "Ask again: why?"]
questions = []
for prompt in prompts:
    questions.append(dict(prompt=prompt, max_tokens=24, temperature=0, logprobs=3))
    if not greedy_only:
        questions.append(dict(prompt=prompt, max_tokens=24, temperature=1.1, seed=11, top_p=0.95, logprobs=2))
        questions.append(dict(prompt=prompt, max_tokens=24, temperature=0.8, seed=5, n=2, presence_penalty=0.5))


def ask(question):
    status, _, body = server.ask("POST", "/v1/completions", dict(question, model=model, ignore_eos=True))
    assert status == 200, (status, body)
    return [(c["text"], c["logprobs"], c["finish_reason"]) for c in json.loads(body)["choices"]]


with concurrent.futures.ThreadPoolExecutor(6) as pool:
    answers = list(pool.map(ask, questions))
    again = list(pool.map(ask, questions[::-1]))[::-1]
assert answers == again, "the same questions, other company: other answers"
json.dump(dict(questions=questions, answers=answers), open(out, "w"), indent=1)
print(f"{len(questions)} questions answered twice alike")
