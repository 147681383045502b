"""Ids by the `tokenizers` package for test_tokenizer.c.

    python tests/ref/make_tokenizer_golden.py   # from the repository's root

Writes tests/data/tokenizer-golden.json: one hash a language over the ids of all its
captions, hand-picked and random texts with their ids under several tokenizers, and texts
of id sequences.
"""
import json
import random

from tokenizers import Tokenizer

from stamps import files, lines

QUICKSTART, ALL = "recipes/quickstart/tokenizer.json", "tests/data/tokenizer-all.json"
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
              "use_regex": True}


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
            "invert": False}


def token(id, content, **flags):
    return {"id": id, "content": content, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": False} | flags


# Tokenizers by a base file and the members that differ ("model." members one by one).
VARIANTS = {
    "quickstart": (QUICKSTART, {}),
    "all": (ALL, {}),
    "gpt2": (ALL, {"normalizer": None, "pre_tokenizer": BYTE_LEVEL}),
    "ignore": (ALL, {"model.ignore_merges": True,
                     "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}}),
    "splits": (ALL, {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        split(r"\p{N}{1,3}"), split("[一-龥ぁ-ヿ]+"),
        split(r"[\p{L}\p{M}]+|[^\s\p{L}\p{M}\p{N}]++[\r\n\/]*|[ \t]+(?=\S)|\s$"),
        BYTE_LEVEL]}}),
    "strip": (ALL, {"added_tokens": [
        token(5989, "<|endoftext|>", special=True),
        token(5990, "<|left|>", special=True, lstrip=True),
        token(5991, "<|right|>", special=True, rstrip=True),
        token(5992, "<|both|>", lstrip=True, rstrip=True),
        token(5993, "<|", special=True),
        token(5994, "caf\u00e9", normalized=True),
        token(5995, "e\u0301e\u0301", normalized=True),
        token(5996, "x\u0301y", special=True),
        token(5997, "two words", normalized=True, lstrip=True)]}),
}

TEXTS = [
    "", " ", "  ", "\n", "\r\n", "a", " a", "a ", "Hello, world!", "A red apple.",
    "I'm you're WE'LL they'D it'S o'clock '\u017f 's", "can't CAN'T don\u2019t 'tis 'Twas",
    "cafe\u0301 caf\u00e9", "e\u0301e\u0301 \u00e9\u00e9", "A\u030a \u212b \u00c5",
    "\u1e9b\u0323 \u1e9b\u0323\u0301", "q\u0307\u0323 q\u0323\u0307", "\u0344 \u0958 \u2126",
    "\uac00\u11a8 \u1100\u1161\u11a8 \uac01", "\u0301start", "x\u0301y x\u0301 y", "\ufb01 \u2460",
    "\U0001d15e \U0001d15f", "\u0f73\u0f75\u0f81", "n\u0303" * 20,
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family",
    "\U0001f1eb\U0001f1f7\U0001f3f4\U000e0067\U000e0062\U000e007f \u2764\ufe0f \U0001f44d\U0001f3fd",
    "line one\r\nline two\r\n\r\nline four\rline five\n\n\nend", "\r\r\n\n\r", "\n \n  \n",
    "\ttab\t\ttwo \t mixed\t \t", " " * 5 + "x" + " " * 17 + "y" + " " * 64, "\u3000\u3000a\u00a0b",
    "a\u2003b\u2028c\u2029d\u0085e\u180ef\u200bg\ufeffh\u1680i\u202fj\u205fk\u001fl\u001cm",
    "0123456789 1,234.56 \u0661\u0662\u0663 \u00bd\u00b2 \u2167 1st 3D \u4e09\u5341",
    "\u0633\u064e\u0644\u064e\u0627\u0645 \u05e9\u05b8\u05dc\u05d5\u05b9\u05dd \u202bRTL\u202c abc",
    "\u092e\u0948\u0902 \u0939\u093f\u0928\u094d\u0926\u0940 \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u4e2d\u6587\u5b57\u7b26 \u3072\u3089\u304c\u306a",
    "snake_case camelCase HTTPServer foo.bar(baz)[0] != {a: 'b'} // x -> y\n",
    "!!!???...---===___***", " !\n ?\r\n", "()\n\n()", "$9.99 \u20ac5 #tag @me 50% a&b",
    "\x00\x01\x7f a\x00b", "\ufffd \ufffe \uffff \U0010ffff \ue000", "\u00ad\u00a0\u00a1\u0143\u0100\u0120",
    "<|im_start|>user\nhi<|im_end|>\n", "<|image_pad|><|image_pad|> <|image_pad|>",
    "<|im_start|", "<|im_start|><", "<<|im_end|>>", "<|im_end|>\u0338 x", " <|im_end|> \n",
    "<tool_call>\n{\"name\": 1}\n</tool_call>", "a<tool_response>b</tool_response>",
    "a  <|left|>  b", "a  <|right|>  b", "a \n<|both|>\t b", "<|both|> <|both|>", "<|left|",
    "  <|left|>  <|right|>  <|left|>", "<|endoftext|><|", "\u3000<|left|>\u2003<|right|>\u00a0",
    "cafe\u0301s and caf\u00e9s", "in two words here", "  two words", "two  words",
    "word" * 60, "\u00e9" * 70, "ab" * 99, " " * 200, "\n" * 90, "\u4e00" * 40,
]

PIECES = list("aeisnrtLMZ 09.,'-_!\n\r\t<|>/\u00e9\u00fc\u00df\u0301\u0308\u0323\u0430\u0416\u05d0\u0628\u0627"
              "\u0905\u094d\u0e01\u3042\u30ab\u4e2d\u9fa5\uac00\u1100\u1161\u11a8\u00a0\u3000\u2028\u0085\u200d"
              "\u180e\u00bd\u0663\u2764\ufe0f\U0001f600") + [
    "  ", " \n", "the", " the", "'s", "'RE", "ing", "<|im_end|>", "<|image_pad|>", "<tool_call>",
    "<|left|>", "<|right|>", "<|both|>", "caf\u00e9", "cafe\u0301", "two words", "x\u0301y"]


def load(variant):
    path, change = VARIANTS[variant]
    value = json.load(open(path, encoding="utf-8"))
    for key, new in change.items():
        *outer, last = key.split(".")
        at = value
        for k in outer:
            at = at[k]
        at[last] = new
    return Tokenizer.from_str(json.dumps(value))


def ids_of(t, text, special):
    t.encode_special_tokens = not special
    return t.encode(text, add_special_tokens=False).ids


def mix(h, value):
    """FNV-1a over 32-bit values."""
    return (h ^ (value & 0xffffffff)) * 0x100000001b3 & 0xffffffffffffffff


def languages(tokenizers):
    out = {}
    for path in files():
        for language, text in lines(path):
            entry = out.setdefault(language, [0, 0xcbf29ce484222325] + [0, 0xcbf29ce484222325] * 2)
            try:
                words = text.decode()
            except UnicodeDecodeError:
                continue
            entry[0] += 1
            for b in text + b"\xff":
                entry[1] = mix(entry[1], b)
            for k, t in enumerate(tokenizers):
                got = ids_of(t, words, False)
                entry[2 + 2 * k] += len(got)
                for id in got + [-1]:
                    entry[3 + 2 * k] = mix(entry[3 + 2 * k], id)
    return {k: [f"{x:016x}" if i % 2 else x for i, x in enumerate(v)] for k, v in sorted(out.items())}


def cases(tokenizers):
    """[names with special tokens, names without, text, ids, decoded, decoded without special
    tokens]; null for a decoded text that is the text itself."""
    chance = random.Random(1)
    names = list(tokenizers)
    texts = [(text, names) for text in TEXTS]
    texts += [("".join(chance.choices(PIECES, k=chance.randint(2, 40))), [names[i % len(names)]])
              for i in range(150)]
    out = []
    for text, chosen in texts:
        same = {}
        for special in (True, False):
            for name in chosen:
                t = tokenizers[name]
                ids = ids_of(t, text, special)
                decoded = [t.decode(ids, skip_special_tokens=k) for k in (False, True)]
                key = json.dumps([text, ids] + [None if d == text else d for d in decoded])
                same.setdefault(key, [[], []])[not special].append(name)
        out += [who + json.loads(key) for key, who in same.items()]
    return out


def decodes(name, t):
    """Ids of single bytes in every broken arrangement, special and unknown ids between."""
    chance = random.Random(2)
    byte = {}
    for b in range(256):
        char = chr(b) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174 else None
        byte[b] = char
    fresh = 256
    for b in range(256):
        if byte[b] is None:
            byte[b] = chr(fresh)
            fresh += 1
    one = {b: t.token_to_id(c) for b, c in byte.items()}
    interesting = [0x41, 0x80, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xed, 0xef,
                   0xf0, 0xf1, 0xf4, 0xf5, 0xff, 0x90, 0x8f]
    sequences = [[one[b] for b in s.encode()[:k]] for s in ("\u00e9", "\u4e2d", "\U0001f600")
                 for k in range(1, 5)]
    sequences += [[one[b] for b in chance.choices(interesting, k=chance.randint(1, 12))]
                  for _ in range(150)]
    size = t.get_vocab_size()
    special = t.token_to_id("<|im_end|>")
    sequences += [[], [special], [one[0x41], special, one[0x42]], [one[0xc3], special, one[0xa9]],
                  [size, one[0x41], size + 1000], [t.token_to_id("<tool_call>"), one[0x20]]]
    sequences += [[chance.randrange(size) for _ in range(30)] for _ in range(20)]
    return [[name, s, t.decode(s, skip_special_tokens=False), t.decode(s, skip_special_tokens=True)]
            for s in sequences]


def main():
    t = {name: load(name) for name in VARIANTS}
    value = {"variants": VARIANTS, "languages": languages([t["quickstart"], t["all"]]),
             "cases": cases(t),
             "decode": decodes("quickstart", t["quickstart"]) + decodes("all", t["all"])}
    with open("tests/data/tokenizer-golden.json", "w", encoding="ascii") as f:
        parts = []
        for key, v in value.items():
            rows = [json.dumps(x, separators=(",", ":")) for x in v] if isinstance(v, list) else [
                f"{json.dumps(k)}:{json.dumps(x, separators=(',', ':'))}" for k, x in v.items()]
            ends = "[]" if isinstance(v, list) else "{}"
            parts.append(f'"{key}":{ends[0]}\n' + ",\n".join(rows) + f"\n{ends[1]}")
        f.write("{" + ",\n".join(parts) + "}\n")
    print(len(value["cases"]), "cases,", len(value["decode"]), "decodes,",
          len(value["languages"]), "languages")


main()
