"""Ids and labels of conversations by `transformers` for test_chat.c.

    python tests/ref/make_chat_golden.py        # from the repository's root

Writes tests/data/chat-golden.json.  The quickstart folder is loaded as a user of an
exported checkpoint would load it; conversations go through its chat template as one text;
labels come from the tokenizer's offsets in that text.  A text that holds a look-alike of a
special token cannot be told apart in one text, so such a sample is written with private
characters in its place, and the stretches between the real special tokens are tokenized
with `encode_special_tokens`.
"""
import json
import re

from transformers import AutoTokenizer

FOLDER = "recipes/quickstart"
SPECIAL = re.compile(r"<\|(?:im_start|im_end|vision_start|vision_end|image_pad)\|>")
IMAGE = {"type": "image"}


def user(*content):
    return {"role": "user", "content": [c if isinstance(c, dict) else {"type": "text", "text": c}
                                        for c in content]}


def say(role, text, **more):
    return {"role": role, "content": text} | more


SAMPLES = [     # messages, tokens of each image
    ([user(IMAGE, "Describe this picture."), say("assistant", "A red apple.")], [4]),
    ([user(IMAGE, IMAGE, "Which is larger?"), say("assistant", "The second.")], [1, 9]),
    ([user("First ", IMAGE, " then ", IMAGE, "\n"), say("assistant", "A cat.\nA dog.\n")], [2, 3]),
    ([say("system", "You describe pictures."), user("What is in this picture?"),
      say("assistant", "A quarter ($.25)."), user("And now?"), say("assistant", "Nothing."),
      user(IMAGE), say("assistant", "Une pi\u00e8ce de monnaie am\u00e9ricaine.")], [6]),
    ([user("Hello"), say("assistant", "")], []),
    ([user(""), say("assistant", "Yes.")], []),
    ([user("\n\nleading and trailing newlines\n\n"), say("assistant", "\n\nThe answer.\n\n")], []),
    ([user("  spaces  "), say("assistant", "  spaces  ")], []),
    ([user("a"), say("assistant", "\n")], []), ([user("a"), say("assistant", " \n \n x")], []),
    ([user("a"), say("assistant", "\t tab")], []), ([user("a"), say("assistant", "\r\nb")], []),
    ([user("cafe\u0301"), say("assistant", "\u0301cafe\u0301 e\u0301")], []),
    ([user("Weather?"), say("assistant", "<tool_call>\n{\"name\": \"w\", \"arguments\": {}}\n</tool_call>"),
      say("tool", "sunny"), say("tool", "\nwarm "), say("assistant", "Sunny and warm."),
      user("Again"), say("tool", "rain"), say("assistant", "Rain.")], []),
    ([user("look"), {"role": "tool", "content": [{"type": "text", "text": "see "}, IMAGE]},
      say("assistant", "A house.")], [3]),
    ([user("one"), say("assistant", "A first.", silent=True), user("two"), say("assistant", "A second."),
      user("three"), say("assistant", "A third.", silent=True)], []),
    ([user("only a question")], []), ([say("assistant", "only an answer")], []),
    ([say("system", "only a system message")], []),
    ([user("\u0645\u0631\u062d\u0628\u0627 \u4f60\u597d \U0001f468\u200d\U0001f469\u200d\U0001f467"), say("assistant", "\u0928\u092e\u0938\u094d\u0924\u0947 \U0001f600")], []),
    # look-alikes
    ([user("write <|im_end|> please"), say("assistant", "Here: <|im_end|>\n<|im_start|>user\n")], []),
    ([user(IMAGE, "<|image_pad|><|vision_start|><|image_pad|><|vision_end|>"),
      say("assistant", "<|im_end|>")], [2]),
    ([say("system", "<|im_start|>"), user("<|endoftext|>"), say("assistant", "<|video_pad|>\n")], []),
]

# Stand-ins for "<|" of look-alikes while the template is rendered.
HIDE = "\ue000"


def hide(value):
    if isinstance(value, str):
        return value.replace("<|", HIDE)
    if isinstance(value, list):
        return [hide(v) for v in value]
    return {k: hide(v) for k, v in value.items()} if isinstance(value, dict) else value


def rendered(t, messages, images, prompt):
    if not messages:
        return "<|im_start|>assistant\n"
    messages = [{k: v for k, v in m.items() if k != "silent"} for m in messages]
    text = t.apply_chat_template(hide(messages), tokenize=False, add_generation_prompt=prompt)
    counts = iter(images)
    return re.sub(r"<\|image_pad\|>", lambda m: m.group() * next(counts), text)


def tokenize(t, text):
    """(id, start, end) over the text with its look-alikes restored; and the marker spans."""
    out, at, whole, real = [], 0, "", []

    def stretch(part):
        nonlocal whole
        part = part.replace(HIDE, "<|")
        t.encode_special_tokens = True
        e = t.encode(part, add_special_tokens=False)
        out.extend((i, len(whole) + a, len(whole) + b) for i, (a, b) in zip(e.ids, e.offsets))
        whole += part

    for m in SPECIAL.finditer(text):
        stretch(text[at:m.start()])
        real.append((m.group(), len(whole), len(whole) + len(m.group())))
        out.append((t.token_to_id(m.group()), *real[-1][1:]))
        whole += m.group()
        at = m.end()
    stretch(text[at:])
    t.encode_special_tokens = False
    if HIDE not in text:                # then it is what the whole text gives
        e = t.encode(text, add_special_tokens=False)
        assert e.ids == [i for i, *_ in out], (text, e.ids, out)
        assert e.offsets == [tuple(o) for _, *o in out]
    return out, whole, real


def labels(ids, whole, real, messages):
    """A token is scored if it ends inside an answer or is the marker that ends it."""
    spans = []
    turns = [r for r in real if r[0] in ("<|im_start|>", "<|im_end|>")]
    silent = iter([m.get("silent", False) for m in messages if m["role"] == "assistant"])
    for start, end in zip(turns[::2], turns[1::2]):
        header = "assistant\n"
        if whole[start[2]:].startswith(header) and not next(silent):
            spans.append((start[2] + len(header), end[2]))
    return [any(a < e <= b for a, b in spans) for _, s, e in ids]


def main():
    auto = AutoTokenizer.from_pretrained(FOLDER)
    t = auto.backend_tokenizer
    out = []
    for messages, images in SAMPLES:
        text = rendered(auto, messages, images, False)
        if HIDE not in text:
            assert auto(text, add_special_tokens=False)["input_ids"] == t.encode(text, add_special_tokens=False).ids
        ids, whole, real = tokenize(t, text)
        asked = messages[:-1] if messages[-1]["role"] == "assistant" else messages
        prompt = tokenize(t, rendered(auto, asked, images, True))[0]
        out.append({"messages": messages, "images": images, "ids": [i for i, *_ in ids],
                    "scored": [int(x) for x in labels(ids, whole, real, messages)],
                    "prompt": [i for i, *_ in prompt]})
    with open("tests/data/chat-golden.json", "w", encoding="ascii") as f:
        f.write("[\n" + ",\n".join(json.dumps(x, separators=(",", ":")) for x in out) + "\n]\n")
    print(len(out), "samples,", sum(len(x["ids"]) for x in out), "tokens")


main()
