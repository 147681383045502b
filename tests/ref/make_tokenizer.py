"""Trains the quickstart tokenizer and the tests' one with the `tokenizers` package.

    python tests/ref/make_tokenizer.py          # from the repository's root

Writes recipes/quickstart/tokenizer.json, tokenizer_config.json and chat_template.jinja
(English captions) and tests/data/tokenizer-all.json (captions in all languages; merges written "a b").
"""
import json
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, trainers

from stamps import captions

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
           r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>",
           "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
WORDS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
TALK = ["system\nYou describe pictures.", "user\nDescribe this picture.",
        "user\nWhat is in this picture?", "user\nWhat does the image show?",
        "assistant\n", "user\nDescribe the image in one sentence."]

# What every model of the family expects of a conversation, in our own words.
TEMPLATE = """\
{%- macro text(content) -%}
    {%- if content is string -%}{{ content }}
    {%- else -%}{%- for part in content -%}
        {%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}
            {{ '<|vision_start|><|image_pad|><|vision_end|>' }}
        {%- elif part.type == 'video' or 'video' in part -%}
            {{ '<|vision_start|><|video_pad|><|vision_end|>' }}
        {%- else -%}{{ part.text }}{%- endif -%}
    {%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}
            {{ '<|im_start|>user' }}
        {%- endif -%}
        {{ '\\n<tool_response>\\n' + text(message.content) + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}
            {{ '<|im_end|>\\n' }}
        {%- endif -%}
    {%- elif message.role == 'system' and not loop.first -%}
        {{ raise_exception('a system message must be the first') }}
    {%- else -%}
        {{ '<|im_start|>' + message.role + '\\n' + text(message.content) + '<|im_end|>\\n' }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""


def train(texts, size):
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size - len(SPECIAL) - len(WORDS), min_frequency=2, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    t.add_tokens([AddedToken(s, special=False, normalized=False) for s in WORDS])
    return t


def write(path, value, **kw):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, **kw)
        f.write("\n")


def main():
    english = [c for language, c in captions() if language == "en"]
    t = train(english + TALK * 20, 1280)
    write("recipes/quickstart/tokenizer.json", json.loads(t.to_str()), indent=0)
    write("recipes/quickstart/tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32768,
        "bos_token": None, "unk_token": None, "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "add_bos_token": False, "add_prefix_space": False,
        "clean_up_tokenization_spaces": False, "errors": "replace",
        "chat_template": TEMPLATE}, indent=2)
    with open("recipes/quickstart/chat_template.jinja", "w", encoding="ascii") as f:
        f.write(TEMPLATE)               # where processors look for it
    print("quickstart:", t.get_vocab_size(), "tokens")

    everything = [unicodedata.normalize("NFC", c) for _, c in captions()]
    t = train(everything, 6000)
    value = json.loads(t.to_str())
    value["model"]["merges"] = [" ".join(m) for m in value["model"]["merges"]]
    write("tests/data/tokenizer-all.json", value, separators=(",", ":"))
    print("all languages:", t.get_vocab_size(), "tokens")


main()
