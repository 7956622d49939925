# SPDX-License-Identifier: Apache-2.0
"""openai-python, unmodified, against a running server.

usage: openai_client.py URL [--key KEY] [--overload]

--overload instead provokes 429 answers and checks that the client's own retries get through; start the
server with few places for it (--max-num-seqs 2 --max-num-queued-reqs 2).
"""
import argparse
import asyncio
import concurrent.futures
import json
import threading
import time

import openai

from harness import Server, check, run

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("--key", default=None)
parser.add_argument("--overload", action="store_true")
args = parser.parse_args()

server = Server(args.url, args.key)
base = server.url + "/v1"
key = args.key or "none"
client = openai.OpenAI(base_url=base, api_key=key, timeout=120, max_retries=0)
MODEL = server.model()["id"]
CONTEXT = server.model()["max_model_len"]
HI = [{"role": "user", "content": "Say hello in one short sentence."}]


def models():
    listed = [m.id for m in client.models.list()]
    check(MODEL in listed, "models.list names the served model")
    check(client.models.retrieve(MODEL).id == MODEL, "models.retrieve finds it")
    try:
        client.models.retrieve("no/such-model")
        check(False, "an unknown model is an error")
    except openai.NotFoundError as error:
        check(error.code == "model_not_found", "an unknown model has the code model_not_found")


def chat_plain():
    answer = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=16, temperature=0)
    choice = answer.choices[0]
    check(answer.object == "chat.completion" and answer.id.startswith("chatcmpl-"), "object and id")
    check(choice.message.role == "assistant" and len(choice.message.content) > 0, "some text came")
    check(choice.finish_reason in ("stop", "length"), "a finish reason came")
    usage = answer.usage
    check(usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 16, "usage counts tokens")
    check(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, "usage adds up")
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=HI, max_tokens=1, extra_headers={"x-request-id": "abc-123"}
    )
    check(raw.headers.get("x-request-id") == "abc-123", "the request id is echoed")
    check(raw.parse().id.startswith("chatcmpl-abc-123"), "the body's id is built from it")


def chat_stream():
    plain = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=24, temperature=0)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=HI,
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    check(chunks[0].choices[0].delta.role == "assistant", "the first chunk names the role")
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    check(text == plain.choices[0].message.content, "the stream's text equals the plain answer")
    finishes = [c.choices[0].finish_reason for c in chunks if c.choices]
    check(finishes[-1] == plain.choices[0].finish_reason, "the finish reason is the same")
    check(all(f is None for f in finishes[:-1]), "it stands on the last chunk only")
    check(chunks[-1].choices == [] and chunks[-1].usage is not None, "usage comes in its own chunk")
    check(chunks[-1].usage == plain.usage, "and is the same as without streaming")
    check(all(c.usage is None for c in chunks[:-1]), "and nowhere else")
    check(len({c.id for c in chunks}) == 1, "all chunks have one id")


def completions():
    answer = client.completions.create(model=MODEL, prompt="The sky is", max_tokens=8, temperature=0)
    check(answer.object == "text_completion" and answer.id.startswith("cmpl-"), "object and id")
    stream = client.completions.create(
        model=MODEL, prompt="The sky is", max_tokens=8, temperature=0, stream=True
    )
    text = "".join(c.choices[0].text for c in stream)
    check(text == answer.choices[0].text, "the stream's text equals the plain answer")
    both = client.completions.create(
        model=MODEL, prompt=["The sky is", "One two"], max_tokens=4, temperature=0, n=2
    )
    check([c.index for c in both.choices] == [0, 1, 2, 3], "index is prompt x n + sample")
    check(both.choices[0].text == both.choices[1].text, "greedy samples of one prompt agree")
    try:
        client.completions.create(model=MODEL, prompt="a", suffix="b")
        check(False, "suffix is refused")
    except openai.BadRequestError as error:
        check(error.code == "unsupported_parameter" and error.param == "suffix", "suffix is named")


def sampling():
    def draw(**more):
        return client.completions.create(
            model=MODEL, prompt="Once upon a time", max_tokens=12, temperature=1.0, **more
        )

    a, b = draw(seed=5).choices[0].text, draw(seed=5).choices[0].text
    check(a == b, "a seed repeats its text")
    n = draw(seed=5, n=3)
    check(n.choices[0].text == a, "choice 0 of n draws like n = 1")
    check(len({c.text for c in n.choices}) > 1, "choices of one request draw independently")
    stopped = client.completions.create(
        model=MODEL, prompt="One, two, three, four,", max_tokens=32, temperature=0, stop=[" ", "\n"]
    )
    check(" " not in stopped.choices[0].text[1:], "text ends before a stop string")
    biased = client.completions.create(
        model=MODEL, prompt="The", max_tokens=4, temperature=0, logit_bias={"32": 100}
    )
    check(len(set(biased.choices[0].text)) <= 2, "a bias of 100 decides")


def logprobs():
    answer = client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    check(len(content) == answer.usage.completion_tokens, "one entry per token")
    check(all(len(e.top_logprobs) == 3 for e in content), "three alternatives each")
    check(all(e.logprob <= 0 for e in content), "logprobs are not positive")
    check(all(e.logprob == e.top_logprobs[0].logprob for e in content), "greedy takes the best")
    stream = client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=6, temperature=0, logprobs=True, stream=True
    )
    streamed = []
    for chunk in stream:
        if chunk.choices and chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    check([e.token for e in streamed] == [e.token for e in content], "the stream has the same")


def echo_scoring():
    # What lm-eval sends: id lists, one token, greedy, echo, logprobs 1, several at once.
    status, _, body = server.ask("POST", "/tokenize", {"prompt": "The capital of France is Paris."})
    ids = json.loads(body)["tokens"]
    check(status == 200 and len(ids) > 3, "tokenize gives ids")
    prompts = [ids, ids[:1], ids[:4], list(reversed(ids))]
    answer = client.completions.create(
        model=MODEL, prompt=prompts, max_tokens=1, temperature=0, echo=True, logprobs=1
    )
    for prompt, choice in zip(prompts, answer.choices):
        lp = choice.logprobs
        n = len(prompt) + 1
        sizes = {len(lp.tokens), len(lp.token_logprobs), len(lp.top_logprobs), len(lp.text_offset)}
        check(sizes == {n}, "arrays have one entry per prompt token and one more")
        check(lp.token_logprobs[0] is None and lp.top_logprobs[0] is None, "entry 0 is null")
        for value, top in list(zip(lp.token_logprobs, lp.top_logprobs))[1:]:
            check(value in top.values(), "the token's value stands among the alternatives")
            check(value <= max(top.values()), "and is not above the best")
        check(lp.token_logprobs[-1] == max(lp.top_logprobs[-1].values()), "greedy takes the best")
    only = client.completions.create(
        model=MODEL, prompt=ids, max_tokens=0, echo=True, logprobs=0, temperature=0
    )
    check(len(only.choices[0].logprobs.tokens) == len(ids), "max_tokens 0 scores the prompt alone")
    check(only.usage.completion_tokens == 0, "and generates nothing")
    check(
        only.choices[0].logprobs.token_logprobs[1:]
        == answer.choices[0].logprobs.token_logprobs[1:-1],
        "with the same numbers",
    )


def nulls():
    answer = client.chat.completions.create(
        model=MODEL,
        messages=HI,
        max_tokens=2,
        temperature=0,
        extra_body={
            name: None
            for name in (
                "stop seed logprobs top_logprobs n logit_bias stream_options response_format tools "
                "tool_choice user top_p top_k min_p presence_penalty frequency_penalty guided_json "
                "stop_token_ids max_completion_tokens ignore_eos min_tokens metadata"
            ).split()
        },
    )
    check(len(answer.choices) == 1, "null means absent for every optional field")


def errors():
    def expect(kind, code, param=None, **body):
        try:
            client.chat.completions.create(model=MODEL, messages=body.pop("messages", HI), **body)
            check(False, f"{code} is raised for {param}")
        except kind as error:
            check(error.code == code, f"code {code} (got {error.code})")
            check(param is None or error.param == param, f"param {param} (got {error.param})")

    bad = openai.BadRequestError
    expect(bad, "invalid_value", "temperature", temperature=-1)
    expect(bad, "invalid_value", "n", n=65)
    expect(bad, "unsupported_parameter", "response_format", response_format={"type": "json_object"})
    expect(bad, "unsupported_parameter", "regex", extra_body={"regex": "a+"})
    expect(bad, "invalid_value", "stream_options", extra_body={"stream_options": {}})
    expect(bad, "context_length_exceeded", messages=[{"role": "user", "content": "hi " * CONTEXT * 2}])
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    expect(bad, "unsupported_parameter", "tools", tools=[tool])
    try:
        client.chat.completions.create(model="nobody", messages=HI)
        check(False, "an unknown model is refused")
    except openai.NotFoundError as error:
        check(error.code == "model_not_found", "with its code")


def abort_stream():
    start = time.monotonic()
    stream = client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=CONTEXT // 2, stream=True, extra_body={"ignore_eos": True}
    )
    for count, _ in enumerate(stream):
        if count == 3:
            break
    stream.close()
    answer = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=1)
    check(len(answer.choices) == 1, "the next request is served after an abort")
    check(time.monotonic() - start < 30, "at once")


def client_timeouts():
    impatient = openai.OpenAI(base_url=base, api_key=key, timeout=0.5, max_retries=0)

    def one(_):
        try:
            impatient.chat.completions.create(
                model=MODEL, messages=HI, max_tokens=CONTEXT // 2, extra_body={"ignore_eos": True}
            )
        except (openai.APITimeoutError, openai.RateLimitError, openai.APIStatusError):
            pass

    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        list(pool.map(one, range(200)))
    start = time.monotonic()
    answer = client.with_options(max_retries=5).chat.completions.create(
        model=MODEL, messages=HI, max_tokens=4
    )
    check(len(answer.choices) == 1, "after 200 timeouts a normal answer comes")
    check(time.monotonic() - start < 5, f"within 5 s ({time.monotonic() - start:.1f} s)")


def asynchronous():
    async def main():
        many = openai.AsyncOpenAI(base_url=base, api_key=key, timeout=300, max_retries=8)
        async with many:
            plain = [
                many.chat.completions.create(model=MODEL, messages=HI, max_tokens=6, temperature=0)
                for _ in range(8)
            ]
            answers = await asyncio.gather(*plain)
            check(len({a.choices[0].message.content for a in answers}) == 1, "8 at once agree")
            stream = await many.chat.completions.create(
                model=MODEL, messages=HI, max_tokens=6, temperature=0, stream=True
            )
            text = ""
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
            check(text == answers[0].choices[0].message.content, "and with the stream")

    asyncio.run(main())


def overload():
    seen = []
    lock = threading.Lock()
    body = {"model": MODEL, "prompt": "a", "max_tokens": 64, "ignore_eos": True}

    def raw(_):
        status, fields, answer = server.ask("POST", "/v1/completions", body)
        with lock:
            seen.append((status, fields, answer))

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        list(pool.map(raw, range(24)))
    refused = [(f, json.loads(b)) for s, f, b in seen if s == 429]
    check(len(refused) > 0, "24 at once are too many for this server")
    check(all(s in (200, 429) for s, _, _ in seen), "nothing but 200 and 429")
    for fields, answer in refused[:3]:
        check(answer["error"]["code"] == "queue_full", "the code is queue_full")
        check(answer["error"]["type"] == "rate_limit_error", "the type is rate_limit_error")
        check(0 < int(fields["retry-after"]) <= 120, "retry-after is sane")
        check(int(fields["retry-after-ms"]) > 0, "retry-after-ms too")
        check(fields["x-should-retry"] == "true", "x-should-retry says yes")
    patient = openai.OpenAI(base_url=base, api_key=key, timeout=300, max_retries=20)

    def retried(_):
        return patient.completions.create(model=MODEL, prompt="a", max_tokens=8)

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(retried, range(12)))
    check(len(answers) == 12, "the client's own retries get all through")


everything = [
    models,
    chat_plain,
    chat_stream,
    completions,
    sampling,
    logprobs,
    echo_scoring,
    nulls,
    errors,
    abort_stream,
    asynchronous,
    client_timeouts,
]
run([models, overload] if args.overload else everything)
