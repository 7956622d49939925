#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares our chat-template interpreter with Jinja, prompt by prompt.

    make build/gcc-release/tests/golden/render_template
    python3 tests/golden/template_compare.py build/gcc-release/tests/golden/render_template \\
        [--templates DIR] [--gguf FILE] [--record tests/golden/template_vectors.json]

Needs jinja2 (Debian's python3-jinja2). The reference environment is the one that transformers
builds: an immutable sandbox with trim_blocks, lstrip_blocks, loop controls, and a tojson that does
not escape HTML. Templates come from tests/golden/templates (ours, one per family, written to use
the features that the family's own template uses), from a GGUF file's metadata, and from DIR, a
folder of *.jinja files; llama.cpp ships one in models/templates, which the PyPI source package
llama-cpp-python carries. Every template meets every message set below.

A case passes when both give the same text, or both refuse; sentences that a template raises itself
must be the same too. --record writes the cases of our own templates, with the reference's answers,
for the unit test that runs without Python.
"""
import argparse
import datetime
import functools
import glob
import itertools
import json
import os
import subprocess
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1721993445  # 2024-07-26 11:30:45 UTC, a Friday


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    @staticmethod
    def _render(caller):
        return caller()


class Raised(jinja2.exceptions.TemplateError):
    pass


def environment():
    def raise_exception(message):
        raise Raised(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def strftime_now(form):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


ENV = environment()

# ---- the preparation of messages that chat_messages.h describes ----------------------------------


def text_of(part):
    return part if isinstance(part, str) else part["text"]


def prepare_call(call):
    call = {k: v for k, v in call.items() if v is not None}
    if isinstance(call.get("function"), dict):
        function = {k: v for k, v in call["function"].items() if v is not None}
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                parsed = json.loads(arguments)
                if isinstance(parsed, dict):
                    function["arguments"] = parsed
            except ValueError:
                pass
        call["function"] = function
    return call


def prepare(messages, keep_parts, keep_developer):
    result = []
    for message in messages:
        new = {}
        for key, value in message.items():
            if key == "content":
                if value is None:
                    value = ""
                elif isinstance(value, list):
                    if keep_parts:
                        value = [{"type": "text", "text": text_of(p)} for p in value]
                    else:
                        value = "\n".join(text_of(p) for p in value)
            elif value is None:
                continue
            elif key == "tool_calls":
                value = [prepare_call(c) for c in value]
            elif key == "role" and value == "developer" and not keep_developer:
                value = "system"
            new[key] = value
        new.setdefault("content", "")
        if isinstance(message.get("reasoning"), str) and message.get("reasoning_content") is None:
            new["reasoning_content"] = message["reasoning"]
        result.append(new)
    return result


def accepts_parts(template):
    probe = [{"role": "user", "content": [{"type": "text", "text": "part-probe"}]}]
    try:
        text = template.render(messages=probe, tools=None, documents=None, bos_token="",
                               eos_token="", add_generation_prompt=False)
    except Exception:  # whatever it is, the template does not take lists
        return False
    return "part-probe" in text and "'type'" not in text and '"type"' not in text


@functools.lru_cache(maxsize=2)
def compiled(source):
    template = ENV.from_string(source)
    return template, accepts_parts(template)


def reference(source, case):
    """The reference's prompt, or ("!", sentence or None)."""
    try:
        template, parts = compiled(source)
        messages = prepare(case["messages"], parts, "developer" in source)
        variables = dict(case.get("kwargs") or {})
        for key in ("bos", "eos"):
            variables[key + "_token"] = case[key]
        variables.update(messages=messages, tools=case.get("tools") or None, documents=None,
                         add_generation_prompt=case["add_generation_prompt"])
        return template.render(**variables)
    except Raised as error:
        return ("!", str(error))
    except TypeError as error:
        # Where the reference has a generator, which can neither print nor be measured, ours has a
        # list: such cases are left out.
        return None if "generator" in str(error) else ("!", None)
    except Exception:  # any refusal of the reference is one of ours
        return ("!", None)

# ---- message sets --------------------------------------------------------------------------------


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather for a city",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "Name, e.g. \"München\" <&>"},
        "days": {"type": "integer", "default": 1},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "items": {"type": "array", "items": {"type": "number"}}},
        "required": ["city"]}}}
NOOP = {"type": "function", "function": {"name": "noop", "description": "Nothing",
                                         "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, index=0):
    return {"id": f"call_{index}23456789", "type": "function",
            "function": {"name": name, "arguments": arguments}}


def message_sets():
    user = {"role": "user", "content": "Hi"}
    system = {"role": "system", "content": "Be brief."}
    yield "user", [user]
    yield "system", [system, user]
    yield "turns", [system, user, {"role": "assistant", "content": "Hello."},
                    {"role": "user", "content": " Bye \n"}]
    yield "think", [system, user,
                    {"role": "assistant", "content": "<think>\nplan\n</think>\n\nHello."},
                    {"role": "user", "content": "Bye"}]
    yield "reasoning", [user, {"role": "assistant", "content": "Hello.", "reasoning": "a plan"},
                        {"role": "user", "content": "Bye"},
                        {"role": "assistant", "content": "Ok", "reasoning_content": "\nmore\n"}]
    yield "unicode", [{"role": "system", "content": "Ünïcödé \U0001f600 \u2028 {{ x }} {% if %}"},
                      {"role": "user", "content": "日本語\n\n  indented\ttab 'quote' \"double\" \\"}]
    yield "empty", [{"role": "user", "content": ""}]
    yield "no messages", []
    yield "null content", [user, {"role": "assistant", "content": None}, user]
    yield "parts", [{"role": "user", "content": [{"type": "text", "text": "one"},
                                                 {"type": "input_text", "text": "two"}]}]
    yield "developer", [{"role": "developer", "content": "Rules."}, user]
    yield "two systems", [system, user, {"role": "system", "content": "Later."}, user]
    yield "assistant last", [user, {"role": "assistant", "content": "I was say"}]
    yield "assistant first", [{"role": "assistant", "content": "Welcome"}, user]
    yield "odd role", [user, {"role": "critic", "content": "Hm."}, user]
    yield "names", [{"role": "user", "name": "ann", "content": "a"},
                    {"role": "user", "name": "bob", "content": "b"}]
    tool = {"role": "tool", "tool_call_id": "call_023456789", "content": "{\"t\": 21}"}
    yield "tool call", [{"role": "user", "content": "Weather in Paris?"},
                        {"role": "assistant", "content": "", "reasoning_content": "need tool",
                         "tool_calls": [call("get_weather", "{\"city\": \"Paris\"}")]}, tool]
    yield "tool answer", [{"role": "user", "content": "Weather in Paris?"},
                          {"role": "assistant", "content": None,
                           "tool_calls": [call("get_weather", "{\"city\": \"Paris\"}")]}, tool,
                          {"role": "assistant", "content": "21 degrees."},
                          {"role": "user", "content": "And Rome?"}]
    yield "typed arguments", [
        user, {"role": "assistant", "content": "Let me see.", "tool_calls": [
            call("get_weather", json.dumps({"city": "Zür\"ich\n", "days": 3, "exact": True,
                                            "ratio": 1.0, "tiny": 1e-7, "big": 1e22,
                                            "none": None, "list": [1, "a", {"k": []}],
                                            "empty": {}}))]}, tool]
    yield "two calls", [user, {"role": "assistant", "content": "", "tool_calls": [
        call("get_weather", "{\"city\": \"Rome\"}"), call("noop", "{}", 1)]},
        dict(tool, name="get_weather"),
        {"role": "tool", "tool_call_id": "call_123456789", "content": "done"}]
    yield "bad arguments", [user, {"role": "assistant", "content": "", "tool_calls": [
        call("get_weather", "{\"city\": ")]}, tool]
    yield "tool loop", [{"role": "user", "content": "Go"}] + [
        m for i in range(3) for m in (
            {"role": "assistant", "content": f"step {i}", "reasoning_content": f"why {i}",
             "tool_calls": [call("noop", "{}", i)]},
            {"role": "tool", "tool_call_id": f"call_{i}23456789", "content": f"result {i}"})]
    long = [{"role": "user" if i % 2 == 0 else "assistant", "content": f"message {i} " * 5}
            for i in range(31)]
    yield "long", [system] + long


def cases():
    tools = [None, [WEATHER], [WEATHER, NOOP]]
    kwargs = [{}, {"enable_thinking": False}, {"enable_thinking": True, "reasoning_effort": "high"},
              {"reasoning_effort": "low", "clear_thinking": False, "preserve_thinking": True,
               "date_string": "01 Jan 2030", "tools_in_user_message": False,
               "builtin_tools": ["code_interpreter", "brave_search"], "add_vision_id": True}]
    for (name, messages), tool, extra, prompt in itertools.product(
            message_sets(), tools, kwargs, (True, False)):
        yield {"name": f"{name}, {len(tool or [])} tools, {extra}, {prompt}", "messages": messages,
               "tools": tool, "kwargs": extra, "add_generation_prompt": prompt,
               "bos": "<|begin_of_text|>", "eos": "<|end|>", "now": NOW}

# ---- running -------------------------------------------------------------------------------------


def gguf_template(path):
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from tokenizer_compare import read_gguf
    return read_gguf(path)["tokenizer.chat_template"]


def ours(program, rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    run = subprocess.run([program], input=text.encode(), stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in run.stdout.decode().splitlines()]


def same(want, got):
    if want is None:
        return True
    if isinstance(want, tuple):
        return got.startswith("!") and (want[1] is None or got == "!" + want[1])
    return got == want


def compare(program, name, source, verbose):
    rows = [dict(case, template=source) for case in cases()]
    want = [reference(source, row) for row in rows]
    got = ours(program, rows)
    bad = [i for i in range(len(rows)) if not same(want[i], got[i])]
    refused = sum(isinstance(w, tuple) for w in want)
    skipped = sum(w is None for w in want)
    print(f"{name}: {len(rows) - skipped} cases, {refused} refused, {len(bad)} differences")
    for i in bad[:verbose]:
        w, g = want[i], got[i]
        print(f"  case: {rows[i]['name']}")
        if isinstance(w, tuple) or g.startswith("!"):
            print(f"    reference {w if isinstance(w, tuple) else w[:200]!r}\n    ours {g[:200]!r}")
        else:
            k = next((j for j in range(min(len(w), len(g))) if w[j] != g[j]), min(len(w), len(g)))
            print(f"    at {k}: reference {w[k - 20 if k > 20 else 0:k + 60]!r}\n"
                  f"    at {k}: ours      {g[k - 20 if k > 20 else 0:k + 60]!r}")
    return rows, want, len(bad)


def snippets(program, path, verbose):
    """One small template after the other, all with the same variables."""
    sources = open(path, encoding="utf-8").read().split("\n====\n")
    variables = {"s": "Héllo wörld", "n": 7, "f": 2.5, "l": [3, 1, 2], "t": True, "z": None,
                 "d": {"b": 1, "a": "x", "items": 5}, "long": "a\nb\n\nc\n",
                 "words": "  one two  three "}
    rows = [{"name": f"snippet {i}", "template": source, "messages": [], "tools": None,
             "kwargs": variables, "add_generation_prompt": True, "bos": "", "eos": "", "now": NOW}
            for i, source in enumerate(sources)]
    want = [reference(row["template"], row) for row in rows]
    got = ours(program, rows)
    bad = [i for i in range(len(rows)) if not same(want[i], got[i])]
    print(f"snippets: {len(rows)} cases, {len(bad)} differences")
    for i in bad[:verbose]:
        print(f"  {rows[i]['template'][:200]}\n    reference {want[i]!r}\n    ours      {got[i]!r}")
    return rows, want, len(bad)


RECORDED = {"system", "think", "reasoning", "parts", "typed arguments", "two calls",
            "no messages", "odd role"}


def recorded(row):
    """A small choice: each kept set without tools and with all of them."""
    plain = not row["tools"] and (not row["kwargs"] or "enable_thinking" in row["kwargs"])
    full = len(row["tools"] or []) == 2 and "date_string" in row["kwargs"]
    return (row["name"].split(",")[0] in RECORDED and row["add_generation_prompt"]
            and row["kwargs"].get("enable_thinking") is not True and (plain or full))


def record(path, vectors):
    with open(path, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(v, ensure_ascii=False, separators=(",", ":"))
                                   for v in vectors) + "\n]\n")
    print(f"recorded {sum(len(v['cases']) for v in vectors)} cases in {path}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--templates", default=None)
    parser.add_argument("--gguf", default=None)
    parser.add_argument("--record", default=None)
    parser.add_argument("--show", type=int, default=2)
    args = parser.parse_args()
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
    sources = []
    for path in sorted(glob.glob(os.path.join(here, "*.jinja"))):
        sources.append((os.path.basename(path), open(path, encoding="utf-8").read(), True))
    if args.gguf:
        sources.append((os.path.basename(args.gguf), gguf_template(args.gguf), False))
    if args.templates:
        for path in sorted(glob.glob(os.path.join(args.templates, "*.jinja"))):
            sources.append((os.path.basename(path), open(path, encoding="utf-8").read(), False))
    wrong = 0
    vectors = []
    for name, source, own in sources:
        rows, want, bad = compare(args.program, name, source, args.show)
        wrong += bad
        if own:
            kept = [(r, w) for r, w in zip(rows, want) if recorded(r)]
            vectors.append({"name": name, "template": source, "cases": [
                {k: r[k] for k in r if k not in ("template", "add_generation_prompt", "bos", "eos",
                                                 "now")}
                | ({"refused": w[1]} if isinstance(w, tuple) else {"prompt": w})
                for r, w in kept]})
    rows, want, bad = snippets(args.program, os.path.join(here, "..", "template_snippets.txt"),
                               10 * args.show)
    wrong += bad
    for row, answer in zip(rows, want):
        if answer is not None:
            vectors.append({"name": row["name"], "template": row["template"], "cases": [
                {"name": "", "messages": [], "kwargs": row["kwargs"]}
                | ({"refused": answer[1]} if isinstance(answer, tuple) else {"prompt": answer})]})
    if args.record:
        record(args.record, vectors)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
