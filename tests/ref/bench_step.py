"""bench_step.py - training steps in PyTorch, for comparison.

    python tests/ref/bench_step.py PROGRAM [threads] [tokens-per-row...]

Rows of 512 tokens are those of recipes/quickstart.yaml: transformers' Qwen3-VL-MoE from
recipes/quickstart/config.json gets the same work as one packed row (as many samples, images
and tokens, as a padded batch: samples of a row are nearly equally long).  Longer rows (4096
and 16384 where none are named) are one text each, filling its row; both sides get the same
number of tokens, all but the question supervised.  A step is forward, backward, clipping and
AdamW.  Both sides take turns with the same number of threads (1).  Prints milliseconds a
step by the clock and of processor time, the best of all turns, and ours over the fastest of
PyTorch's.
"""
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

program = os.path.abspath(sys.argv[1])
THREADS = int(sys.argv[2]) if len(sys.argv) > 2 else 1
ROWS = [int(x) for x in sys.argv[3:]] or [512, 4096, 16384]
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(THREADS)

import torch
from transformers import AutoConfig, PreTrainedTokenizerFast
from transformers.models.qwen3_vl_moe import Qwen3VLMoeForConditionalGeneration

torch.set_num_threads(THREADS)
EXPERTS = ("eager", "grouped_mm")
QUICK = "recipes/quickstart"


def spent(who):
    r = resource.getrusage(who)
    return 1e3 * (r.ru_utime + r.ru_stime)


def model_of(config, experts):
    torch.manual_seed(0)
    m = Qwen3VLMoeForConditionalGeneration._from_config(config, attn_implementation="sdpa")
    m.set_experts_implementation(experts)
    return m.float().train()


def torch_ms(m, batch, steps):
    opt = torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True)
    for i in range(1 + steps):
        if i == 1:
            clock, used = time.perf_counter(), spent(resource.RUSAGE_SELF)
        m(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
    return ((1e3 * time.perf_counter() - 1e3 * clock) / steps,
            (spent(resource.RUSAGE_SELF) - used) / steps)


def profile(recipe, settings, steps):
    before = spent(resource.RUSAGE_CHILDREN)
    out = subprocess.run([program, "profile", recipe, "--steps", str(steps), "--warmup", "1",
                          "run.log=warn", f"device.threads={THREADS}", *settings],
                         capture_output=True, text=True, check=True).stdout
    return (float(re.match(r"step ([0-9.]+) ms", out).group(1)),
            spent(resource.RUSAGE_CHILDREN) - before)


def ours_ms(recipe, settings, steps):
    """Start-up and one step taken off the processor time."""
    _, used = profile(recipe, settings, 1)
    clock, more = profile(recipe, settings, 1 + steps)
    return clock, (more - used) / steps


def row_of(recipe, settings):
    """Samples, images, slots and patches of the first row."""
    out = subprocess.run([program, "data", "sample", recipe, "-n", "1", "run.log=warn",
                          *settings], capture_output=True, text=True, check=True).stdout
    head = out.splitlines()[0]
    samples, images = (int(x) for x in
                       re.match(r"row 0: (\d+) samples?, (\d+) images?", head).groups())
    slots = int(re.search(r"= (\d+) slots", head).group(1))
    padding = int(re.search(r"(\d+) padding", head).group(1))
    patches = int(re.search(r"(\d+) of \d+ patches", head).group(1))
    return samples, images, slots, slots - padding, patches


def captions():
    """The quickstart's packed row, and the same work as a padded batch."""
    config = AutoConfig.from_pretrained(QUICK)
    samples, images, slots, _, patches = row_of("recipes/quickstart.yaml", [])
    wide = 2 * max(1, round(patches / images / 4))     # a grid of 2 x wide patches an image
    merged, length = wide // 2, round(slots / samples)
    ids = torch.randint(0, 1000, (samples, length))
    ids[:, 3] = config.vision_start_token_id
    ids[:, 4:4 + merged] = config.image_token_id
    ids[:, 4 + merged] = config.vision_end_token_id
    labels = ids.clone()
    labels[:, : 4 + merged + 10] = -100
    return config, "recipes/quickstart.yaml", [], dict(
        input_ids=ids, labels=labels, attention_mask=torch.ones_like(ids),
        mm_token_type_ids=(ids == config.image_token_id).int(),
        pixel_values=torch.randn(images * 2 * wide, 1536),
        image_grid_thw=torch.tensor([[1, 2, wide]] * images), output_router_logits=True)


def long_text(folder, tokens):
    """One text a row, and as many ids."""
    for name in os.listdir(QUICK):
        shutil.copy(f"{QUICK}/{name}", folder)
    config = json.load(open(f"{folder}/config.json"))
    config["text_config"]["max_position_embeddings"] = 2 * tokens
    json.dump(config, open(f"{folder}/config.json", "w"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")
    random.seed(tokens)
    words = "the duck sat on a red boat and saw seven fish below its yellow feet".split()
    rows = []
    for _ in range(8):
        text = " ".join(random.choice(words) for _ in range(tokens))
        ids = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        text = text[:ids["offset_mapping"][tokens - 40][0]]     # room for the template
        rows.append({"messages": [{"role": "user", "content": "Tell a story."},
                                  {"role": "assistant", "content": text.strip()}]})
    json.dump(rows, open(f"{folder}/rows.json", "w"))
    with open(f"{folder}/recipe.yaml", "w") as f:
        f.write(f"run: {{name: bench}}\nmodel: {{path: {folder}}}\n"
                f"data:\n  sources:\n    - {{path: {folder}/rows.json}}\n"
                f"batch: {{tokens: {tokens}, patches: 256, samples: 32, images: 32}}\n"
                "train: {steps: 1000}\n")
    recipe = f"{folder}/recipe.yaml"
    samples, _, _, length, _ = row_of(recipe, [])
    assert samples == 1 and length > 0.98 * tokens, (samples, length)
    ids = torch.randint(0, 1000, (1, length))
    labels = ids.clone()
    labels[:, :12] = -100
    return AutoConfig.from_pretrained(folder), recipe, [], dict(
        input_ids=ids, labels=labels, output_router_logits=True)


def compare(tokens, folder):
    config, recipe, settings, batch = captions() if tokens == 512 else long_text(folder, tokens)
    models, best = {}, {}
    for way in EXPERTS:
        models[way] = model_of(config, way)
    rounds, steps = (5, 5) if tokens <= 512 else (3, 3) if tokens <= 4096 else (2, 1)
    for _ in range(rounds):
        turn = {way: torch_ms(m, batch, steps) for way, m in models.items()}
        turn["vlmoe"] = ours_ms(recipe, settings, steps * (4 if tokens <= 512 else 1))
        for name, times in turn.items():
            best[name] = [min(a, b) for a, b in zip(best.get(name, (1e9, 1e9)), times)]
    fastest = [min(best[way][i] for way in models) for i in range(2)]
    print(json.dumps({
        "row": tokens, "tokens": batch["input_ids"].numel(), "threads": THREADS,
        "ms": {k: [round(x, 1) for x in v] for k, v in best.items()},
        "clock": round(best["vlmoe"][0] / fastest[0], 2),
        "processor": round(best["vlmoe"][1] / fastest[1], 2)}), flush=True)


for tokens in ROWS:
    with tempfile.TemporaryDirectory() as folder:
        compare(tokens, folder)
