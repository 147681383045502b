"""bench_generate.py - greedy answers in transformers, for comparison.

    python tests/ref/bench_generate.py PROGRAM [rounds] [size...]

Makes fresh Qwen3-VL-MoE models of three sizes (5M: recipes/quickstart, 97M, 300M), asks both
for the same answers (ragged text prompts, float32, one thread, a cache of keys and values;
transformers with its fastest way to run experts), one prompt and eight at a time, in turns.
Prints tokens a second of processor time - prompts included, start-up not - the ratio, how
many of the answers are the same, and what starting costs (reading the model included).
"""
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

THREADS = 1
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(THREADS)

import torch
import transformers
from transformers import AutoConfig, PreTrainedTokenizerFast
from transformers.models.qwen3_vl_moe import Qwen3VLMoeForConditionalGeneration

program = os.path.abspath(sys.argv[1])
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
torch.set_num_threads(THREADS)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

# text_config, tokens of an answer
SIZES = {
    "5M": ({}, 128),
    "97M": (dict(hidden_size=512, num_hidden_layers=8, num_attention_heads=8,
                 num_key_value_heads=4, head_dim=64, moe_intermediate_size=320, num_experts=16,
                 num_experts_per_tok=4, vocab_size=24576), 96),
    "300M": (dict(hidden_size=1024, num_hidden_layers=8, num_attention_heads=16,
                  num_key_value_heads=4, head_dim=64, moe_intermediate_size=512,
                  num_experts=16, num_experts_per_tok=4, vocab_size=32768), 48),
}
WAYS = ("eager", "grouped_mm")          # batched_mm copies weights for every token of a prompt
WORDS = "the duck sat on a red boat and looked at seven small fish below its yellow feet".split()


def model_make(folder, text):
    for name in os.listdir("recipes/quickstart"):
        shutil.copy(f"recipes/quickstart/{name}", folder)
    config = json.load(open(f"{folder}/config.json"))
    config["text_config"].update(text)
    if text:
        half = config["text_config"]["head_dim"] // 2
        section = [half - 2 * (half // 3), half // 3, half // 3]
        config["text_config"]["rope_scaling"]["mrope_section"] = section
        config["vision_config"]["out_hidden_size"] = text["hidden_size"]
    json.dump(config, open(f"{folder}/config.json", "w"))
    torch.manual_seed(1)
    c = AutoConfig.from_pretrained(folder)
    m = Qwen3VLMoeForConditionalGeneration._from_config(c, attn_implementation="sdpa").float()
    with torch.no_grad():               # no answer ends before its limit
        for word in ends(folder):
            m.lm_head.weight[word] = 0
    m.save_pretrained(folder)
    return m.eval()


def ends(folder):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")
    eos = json.load(open(f"{folder}/config.json"))["text_config"]["eos_token_id"]
    return {eos, tokenizer.convert_tokens_to_ids("<|im_end|>"),
            tokenizer.convert_tokens_to_ids("<|endoftext|>")}


def prompts_make(count):
    return [" ".join(WORDS[(7 * i + 3 * k) % len(WORDS)] for k in range(40 + 23 * (i % 5)))
            for i in range(count)]


def spent():
    r = resource.getrusage(resource.RUSAGE_CHILDREN)
    return r.ru_utime + r.ru_stime


def ours(folder, prompts, tokens):
    data = f"{folder}/data.json"
    json.dump([{"messages": [{"role": "user", "content": p},
                             {"role": "assistant", "content": "x"}]} for p in prompts],
              open(data, "w"))
    recipe = f"{folder}/recipe.yaml"
    json.dump({"run": {"name": "bench"}, "model": {"path": folder},
               "data": {"sources": [{"path": data, "format": "openai"}], "shuffle": False},
               "device": {"threads": THREADS}}, open(recipe, "w"))
    begin = spent()
    out = subprocess.run([program, "eval", recipe, "--model", folder, "--training", "--samples",
                          str(len(prompts) if tokens else 0), f"sample.tokens={max(tokens, 1)}"],
                         capture_output=True, text=True)
    if out.returncode:
        sys.exit(out.stderr)
    seconds = spent() - begin
    made = re.search(r"answers: .* s, (\d+) more", out.stderr)
    if tokens and int(made.group(1)) != len(prompts) * (tokens - 1):
        sys.exit("an answer ended early: " + made.group(0))
    return seconds, re.findall(r"^    model: (.*)$", out.stdout, re.M)


def theirs(model, tokenizer, prompts, tokens):
    text = [f"<|im_start|>user\n{p}<|im_end|>\n<|im_start|>assistant\n" for p in prompts]
    ids = [tokenizer(t, add_special_tokens=False)["input_ids"] for t in text]
    most = max(map(len, ids))
    batch = torch.tensor([[0] * (most - len(x)) + x for x in ids])
    mask = torch.tensor([[0] * (most - len(x)) + [1] * len(x) for x in ids])
    begin = time.process_time()
    with torch.inference_mode():
        out = model.generate(input_ids=batch, attention_mask=mask, max_new_tokens=tokens,
                             do_sample=False, use_cache=True, eos_token_id=-1, pad_token_id=0)
    return time.process_time() - begin, [tokenizer.decode(x, skip_special_tokens=False)
                                         for x in out[:, most:]]


def bench(name):
    text, tokens = SIZES[name]
    with tempfile.TemporaryDirectory() as folder:
        model = model_make(folder, text)
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")
        weights = sum(p.numel() for p in model.parameters())
        start, ways = 1e9, list(WAYS)
        for count in (1, 8):
            prompts = prompts_make(count)
            best, best_way, mine = 1e9, "", 1e9
            for turn in range(rounds):
                start = min(start, ours(folder, prompts, 0)[0])
                seconds, said = ours(folder, prompts, tokens)
                mine = min(mine, seconds - start)
                for way in list(ways):
                    try:
                        model.set_experts_implementation(way)
                        seconds, told = theirs(model, tokenizer, prompts, tokens)
                    except Exception as error:
                        print("experts", way, "not available:", str(error)[:90])
                        ways.remove(way)
                        continue
                    if seconds < best:
                        best, best_way = seconds, way
            same = sum(a.split() == b.split() for a, b in zip(said, told))
            made = count * tokens
            print(f"{name} ({weights / 1e6:.0f}M) {count} prompts: {made / mine:.1f} tokens/s, "
                  f"transformers {made / best:.1f} ({best_way}), ratio {best / mine:.2f}, "
                  f"{same} of {count} answers the same", flush=True)
        print(f"{name}: starting {1e3 * start:.0f} ms, {4e-6 * weights:.0f} MB of weights")


for size in sys.argv[3:] or SIZES:
    bench(size)
