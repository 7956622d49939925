#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares our token ids with those of Hugging Face `tokenizers`, id by id.

    make build/gcc-release/tests/golden/tokenize
    python3 -m venv V && V/bin/pip install tokenizers
    V/bin/python tests/golden/tokenizer_compare.py build/gcc-release/tests/golden/tokenize FILE...

FILE is a GGUF file with a byte-level BPE vocabulary or a tokenizer.json. For a GGUF file the
reference tokenizer is assembled from the file's vocabulary and merges with the normaliser and the
pattern of the original; ours is then fed the GGUF and also the assembled tokenizer.json.
`--as NAME` overrides the file's `tokenizer.ggml.pre`, to try a pattern on another vocabulary.

The corpus (--mb, 6 by default) is made here, from a seed: program text and translations found
under /usr, every script of Unicode as words, emoji, controls, random bytes read as Latin-1, broken
UTF-8 with replacement characters, digits and spaces of all kinds. Code points that Python's own
Unicode version does not know are left out: the reference's engines differ there among themselves.

--record FILE writes the reference's ids of a few short texts for the first FILE given: the unit test
of the demo model reads them.

Exit status 0 means 0 differences.
"""
import argparse
import glob
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = (rf"(?i:{CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
          rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}")
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = (rf"(?i:{CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
          rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}")


def split(pattern):
    return [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
             "invert": False}, byte_level(False)]


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
            "use_regex": use_regex}


DIGITS = {"type": "Digits", "individual_digits": True}
# name -> (pre-tokenizer steps, NFC, ignore_merges)
FAMILIES = {
    "gpt-2": ([byte_level(True)], False, False),
    "smollm": ([DIGITS, byte_level(True)], False, False),
    "starcoder": ([DIGITS, byte_level(True)], False, False),
    "refact": ([DIGITS, byte_level(True)], False, False),
    "command-r": ([DIGITS, byte_level(True)], False, False),
    "llama-bpe": (split(LLAMA3), False, True),
    "glm4": (split(LLAMA3), False, True),
    "qwen2": (split(QWEN2), True, False),
    "qwen35": (split(QWEN35), True, False),
}

# ---- GGUF metadata ------------------------------------------------------------------------------


def read_gguf(path):
    data = open(path, "rb").read()
    at = 8
    tensors, keys = struct.unpack_from("<QQ", data, at)
    at += 16
    fixed = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
             12: "d"}

    def text():
        nonlocal at
        (n,) = struct.unpack_from("<Q", data, at)
        at += 8 + n
        return data[at - n:at].decode()

    def value(kind):
        nonlocal at
        if kind == 8:
            return text()
        if kind == 9:
            element, count = struct.unpack_from("<IQ", data, at)
            at += 12
            return [value(element) for _ in range(count)]
        form = "<" + fixed[kind]
        (v,) = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        return v

    meta = {}
    for _ in range(keys):
        key = text()
        (kind,) = struct.unpack_from("<I", data, at)
        at += 4
        meta[key] = value(kind)
    return meta


def assemble(meta, name):
    """A tokenizer.json from GGUF metadata."""
    steps, nfc, ignore = FAMILIES[name]
    tokens = meta["tokenizer.ggml.tokens"]
    types = meta.get("tokenizer.ggml.token_type", [1] * len(tokens))
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": k != 4}
             for i, (t, k) in enumerate(zip(tokens, types)) if k in (2, 3, 4)]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": ignore,
                  "vocab": {t: i for i, (t, k) in enumerate(zip(tokens, types)) if k != 5},
                  "merges": meta["tokenizer.ggml.merges"]},
    }

# ---- corpus -------------------------------------------------------------------------------------


left_out = set()


def find_left_out():
    """Fills `left_out` with what the reference's old NFC orders or decomposes otherwise."""
    from tokenizers import normalizers
    nfc = normalizers.NFC()
    for c in map(chr, range(0x110000)):
        if unicodedata.category(c) in ("Cn", "Cs"):
            left_out.add(c)
        elif unicodedata.combining(c) or unicodedata.decomposition(c):
            probe = "a\u0345" + c + "a"
            if nfc.normalize_str(probe) != unicodedata.normalize("NFC", probe):
                left_out.add(c)


def known(text):
    return "".join(c for c in text if c not in left_out)


def files(patterns, limit, rng):
    paths = sorted(p for pattern in patterns for p in glob.glob(pattern, recursive=True)
                   if os.path.isfile(p) and not os.path.islink(p))
    rng.shuffle(paths)
    used = 0
    for path in paths:
        with open(path, "rb") as f:
            piece = f.read(40000)
        used += len(piece)
        yield piece
        if used >= limit:
            return


def script_words(rng, count):
    """Words of neighbouring code points, so that every block of every script occurs."""
    points = [chr(c) for c in range(0x110000)
              if chr(c) not in left_out and unicodedata.category(chr(c)) != "Co"]
    for _ in range(count):
        start = rng.randrange(len(points))
        near = points[start:start + 40]
        yield "".join(rng.choice(near) for _ in range(rng.randrange(1, 12)))


def corpus(megabytes, seed=20240229):
    rng = random.Random(seed)
    limit = int(megabytes * 1e6)
    texts = []
    for piece in files(["/usr/include/**/*.h", "/usr/lib/python3*/**/*.py",
                        "/usr/share/**/*.pm", "/usr/share/**/*.js", "/usr/share/**/*.html",
                        "/usr/share/doc/**/*", "/usr/lib/gcc/**/*.h"], limit * 4 // 10, rng):
        texts.append(known(piece.decode("utf-8", "replace")))
    for piece in files(["/usr/share/locale/**/*.mo", "/usr/share/i18n/locales/*",
                        "/usr/share/perl/**/*.t", "/usr/share/X11/locale/**/Compose",
                        "/usr/share/**/*.po", "/usr/lib/x86_64-linux-gnu/perl*/**/*.pl"],
                       limit * 2 // 10, rng):
        texts.append(known(piece.decode("utf-8", "replace")))
    joins = [" ", "", "\n", "  ", "'", "'s ", "\r\n", "\u00a0", "\u3000", "\t", "-", "'LL ", " 1",
             "'\u017f", "\n \n"]
    size = 0
    while size < limit * 2 // 10:
        text = "".join(w + rng.choice(joins) for w in script_words_cache(rng, 300))
        texts.append(text)
        size += len(text.encode())
    texts.extend(noise(rng, limit * 2 // 10))
    return [t.encode() for t in texts if t]


_words = []


def script_words_cache(rng, count):
    if not _words:
        _words.extend(script_words(rng, 60000))
    return [rng.choice(_words) for _ in range(count)]


def noise(rng, limit):
    emoji = [chr(c) for c in range(0x1F300, 0x1FAFF) if unicodedata.category(chr(c)) != "Cn"]
    emoji += ["\u200d", "\ufe0f", "\u20e3", "\U0001f1e9", "\U0001f1ea", "\U0001f3fd"]
    spaces = list(" \t\n\r\v\f\u0085\u00a0\u1680\u2000\u2003\u2028\u2029\u202f\u205f\u3000")
    digits = list("0123456789\u0663\u0967\u00bd\u2167\u3289\uff11")
    controls = [chr(c) for c in range(32)] + ["\x7f", "\x80", "\x9f", "\u200b", "\ufeff", "\ufffd"]
    marks = [chr(c) for c in range(0x300, 0x370)] + ["\u0e34", "\u093f", "\u05b0", "\u3099"]
    letters = list("aeiouAEIOUnsctz\u1100\u1161\u11a8\uac00\u212b\u0958\u1e9b\ufb1d")
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<think>", "</think>",
               "<tool_call>", "<|", "|>", "<|im_start|", "<|begin_of_text|>"]
    size = 0
    while size < limit:
        kind = rng.randrange(7)
        n = rng.randrange(1, 2000)
        if kind == 0:
            text = "".join(rng.choice(emoji) for _ in range(n))
        elif kind == 1:
            text = "".join(rng.choice(spaces) * rng.randrange(1, 4) + rng.choice("ab1.'\n")
                           for _ in range(n))
        elif kind == 2:
            text = "".join(rng.choice(digits) if rng.random() < 0.8 else rng.choice(" .,a'")
                           for _ in range(n))
        elif kind == 3:
            text = bytes(rng.randrange(256) for _ in range(n)).decode("latin-1")
        elif kind == 4:
            text = bytes(rng.randrange(256) for _ in range(n)).decode("utf-8", "replace")
        elif kind == 5:
            text = "".join(rng.choice(letters) + "".join(rng.choice(marks) for _ in
                                                         range(rng.randrange(4)))
                           for _ in range(n))
        else:
            text = "".join(rng.choice([rng.choice(special), rng.choice(controls),
                                       rng.choice(["x", " ", "word", "Don't", "\n"])])
                           for _ in range(n))
        text = known(text)
        size += len(text.encode())
        yield text

# ---- comparison ---------------------------------------------------------------------------------


def ours(program, path, texts, add_special):
    records = b"".join(struct.pack("<I", len(t)) + t for t in texts)
    run = subprocess.run([program, path, "1", "1" if add_special else "0"], input=records,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    sys.stderr.write("  " + run.stderr.decode())
    if run.returncode != 0:
        raise SystemExit(f"{program} failed on {path}")
    out, at, result = run.stdout, 0, []
    while at < len(out):
        (n,) = struct.unpack_from("<I", out, at)
        result.append(list(struct.unpack_from(f"<{n}I", out, at + 4)))
        at += 4 + 4 * n
    return result


def report(name, texts, want, got):
    bad = [i for i in range(len(texts)) if want[i] != got[i]]
    for i in bad[:5]:
        w, g = want[i], got[i]
        k = next((j for j in range(min(len(w), len(g))) if w[j] != g[j]), min(len(w), len(g)))
        print(f"  text {i}: token {k}: reference {w[k:k + 8]}, ours {g[k:k + 8]}")
        print(f"  text {i} starts {texts[i][:60]!r}")
    total = sum(len(t) for t in texts)
    print(f"{name}: {len(texts)} texts, {total} bytes, {sum(map(len, want))} tokens, "
          f"{len(bad)} differences")
    return len(bad)


SHORT_TEXTS = [
    "", "Hello, we can use", "The capital of France is", "\n", "Hello world! 123",
    "Caf\u00e9 d\u00e9j\u00e0 vu.", "  multiple   spaces", "I'm sure they'LL've done it",
    "1234567890 3.14 \u0663\u0967\u00bd", "a\n\n  b\r\nc\t\td ", "x=1;\n\treturn (x)  \n",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "e\u0301 vs \u00e9", "\u0928\u092e\u0938\u094d\u0924\u0947",
    "don't stop \u2014 \u201cquoted\u201d\u2026", "\u00a0nb\u2003em\u3000wide", "\U0001f600\U0001f1e9\U0001f1ea",
    "<|im_start|>user\nHi<|im_end|>\n", "<|im_start|", "\u0000\u0001\u007f\ufeff", " 12 a 1", "word" * 40,
]


def record(path, hf, name):
    rows = [{"text": t, "ids": hf.encode(t, add_special_tokens=False).ids} for t in SHORT_TEXTS]
    with open(path, "w", encoding="utf-8") as f:
        f.write('{"model":' + json.dumps(name) + ',"cases":[\n')
        f.write(",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "\n]}\n")
    print(f"recorded {len(rows)} texts in {path}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--mb", type=float, default=6)
    parser.add_argument("--as", dest="family", default=None)
    parser.add_argument("--record", default=None)
    args = parser.parse_args()
    from tokenizers import Tokenizer
    find_left_out()
    texts = corpus(args.mb)
    plain = [t.decode() for t in texts]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for path in args.files:
            base = os.path.basename(path)
            if path.endswith(".gguf"):
                meta = read_gguf(path)
                family = args.family or meta["tokenizer.ggml.pre"]
                reference = os.path.join(folder, "tokenizer.json")
                with open(reference, "w", encoding="utf-8") as f:
                    json.dump(assemble(meta, family), f, ensure_ascii=False)
                inputs = [(f"{base} as tokenizer.json, {family}", reference)]
                if args.family is None:
                    inputs.append((f"{base}, {family}", path))
            else:
                reference = path
                inputs = [(base, path)]
            hf = Tokenizer.from_file(reference)
            if args.record:
                record(args.record, hf, base)
                args.record = None
            want = [e.ids for e in hf.encode_batch_fast(plain, add_special_tokens=False)]
            for name, file in inputs:
                wrong += report(name, texts, want, ours(args.program, file, texts, False))
            if not path.endswith(".gguf"):
                want = [e.ids for e in hf.encode_batch_fast(plain[:500], add_special_tokens=True)]
                wrong += report(base + " with affixes", texts[:500], want,
                                ours(args.program, path, texts[:500], True))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
