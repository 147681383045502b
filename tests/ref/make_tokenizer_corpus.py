"""Small whole tokenizer files as seeds of fuzz_tokenizer.

    python tests/ref/make_tokenizer_corpus.py   # from the repository's root
"""
import json

FOLDER = "tests/fuzz/corpus/fuzz_tokenizer/"
own = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
alphabet = [chr(b) for b in own] + [chr(256 + i) for i in range(256 - len(own))]
vocab = {c: i for i, c in enumerate(alphabet)} | {"ab": 256, "abc": 257, "\u0120a": 258}
byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
           r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def token(id, content, **flags):
    return {"id": id, "content": content, "normalized": False, "special": True} | flags


def write(name, text=None, **change):
    value = {"added_tokens": [token(259, "<|im_end|>"), token(260, "<tool_call>", special=False)],
             "normalizer": None, "pre_tokenizer": byte_level, "decoder": {"type": "ByteLevel"},
             "model": {"type": "BPE", "vocab": vocab,
                       "merges": ["a b", ["ab", "c"], "\u0120 a"]}} | change
    with open(FOLDER + name, "wb") as f:
        f.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
        if text is not None:
            f.write(b"\0" + text)


write("plain")
write("text", b"abc abcab \xc3\xa9 <|im_end|> '\xc5\xbf 12")
write("qwen", b"I'm e\xcc\x81\r\n\r\n  x\t", normalizer={"type": "NFC"},
      pre_tokenizer={"type": "Sequence", "pretokenizers": [
          {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
           "invert": False}, byte_level | {"use_regex": False}]})
write("strip", b"a <|im_end|>  \xe3\x80\x80<w> e\xcc\x81x", normalizer={"type": "NFC"},
      added_tokens=[token(259, "<|im_end|>", lstrip=True), token(260, "<w>", rstrip=True),
                    token(261, "e\u0301x", normalized=True)],
      model={"type": "BPE", "vocab": vocab, "merges": [], "ignore_merges": True})
