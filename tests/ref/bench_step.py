"""bench_step.py - a training step of the quickstart model in PyTorch, for comparison.

    python tests/ref/bench_step.py PROGRAM [tokens-per-row]

Builds transformers' Qwen3-VL-MoE from recipes/quickstart/config.json, feeds it the same
work as one packed row of the recipe (as many samples, images and tokens, as a padded batch:
samples of a row are nearly equally long), and times forward + backward + clipping + AdamW
with 2 threads; then runs `PROGRAM profile recipes/quickstart.yaml` on the same machine and
prints both.
"""
import json
import re
import subprocess
import sys
import time

import torch
from transformers import AutoConfig
from transformers.models.qwen3_vl_moe import Qwen3VLMoeForConditionalGeneration

THREADS, WARMUP, STEPS, ROUNDS = 2, 2, 5, 3
program = sys.argv[1]
torch.set_num_threads(THREADS)
torch.manual_seed(0)
config = AutoConfig.from_pretrained("recipes/quickstart")
best_torch, best_ours = {}, 1e9


def model_of(experts):
    m = Qwen3VLMoeForConditionalGeneration._from_config(config, attn_implementation="sdpa")
    if experts:
        m.set_experts_implementation(experts)
    return m.float().train()


def shape_of_row():
    out = subprocess.run([program, "data", "sample", "recipes/quickstart.yaml", "-n", "1",
                          "run.log=warn"], capture_output=True, text=True, check=True).stdout
    head = out.splitlines()[0]
    samples, images = (int(x) for x in re.match(r"row 0: (\d+) samples, (\d+) images", head).groups())
    slots = int(re.search(r"= (\d+) slots", head).group(1))
    patches = int(re.search(r"(\d+) of \d+ patches", head).group(1))
    return samples, images, slots, patches


samples, images, slots, patches = shape_of_row()
wide = 2 * max(1, round(patches / images / 4))     # a grid of 2 x wide patches an image
merged = wide // 2
length = round(slots / samples)
ids = torch.randint(0, 1000, (samples, length))
ids[:, 3] = config.vision_start_token_id
ids[:, 4:4 + merged] = config.image_token_id
ids[:, 4 + merged] = config.vision_end_token_id
labels = ids.clone()
labels[:, : 4 + merged + 10] = -100
batch = dict(input_ids=ids, labels=labels, attention_mask=torch.ones_like(ids),
             mm_token_type_ids=(ids == config.image_token_id).int(),
             pixel_values=torch.randn(images * 2 * wide, 1536),
             image_grid_thw=torch.tensor([[1, 2, wide]] * images), output_router_logits=True)


def torch_ms(m):
    opt = torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True)
    for i in range(WARMUP + STEPS):
        if i == WARMUP:
            began = time.perf_counter()
        m(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
    return 1e3 * (time.perf_counter() - began) / STEPS


def ours_ms():
    out = subprocess.run([program, "profile", "recipes/quickstart.yaml", "--steps", "20",
                          "--warmup", "5", "run.log=warn"], capture_output=True, text=True,
                         check=True).stdout
    return float(re.match(r"step ([0-9.]+) ms", out).group(1))


models = {}
for name in ("eager", "grouped_mm"):
    try:
        models[name or "default"] = model_of(name)
    except Exception as error:
        print("experts", name, "not available:", str(error)[:80])
for _ in range(ROUNDS):
    for name, m in list(models.items()):
        try:
            best_torch[name] = min(best_torch.get(name, 1e9), torch_ms(m))
        except Exception as error:
            print("experts", name, "fails:", str(error)[:80])
            del models[name]
    best_ours = min(best_ours, ours_ms())
print(json.dumps({"samples": samples, "images": images, "tokens": samples * length,
                  "slots": slots, "patches": [patches, images * 2 * wide], "torch_ms": best_torch, "vlmoe_ms": best_ours,
                  "ratio": best_ours / min(best_torch.values())}, indent=1))
