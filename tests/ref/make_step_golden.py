"""Four training steps of a small Qwen3-VL-MoE by `transformers` and torch's AdamW, for
test_step_golden.c: two uneven rows a step, one of them not finite; and the loss of
held-out samples after them.  Twice: in f32, and computed in bf16 with f32 masters, routers and
losses.

    python tests/ref/make_step_golden.py PROGRAM       # from the repository's root

Writes tests/model/golden/step/expected.json.  Ids, labels, pixels, losses, gradients, clipping,
schedule and updates are made here; PROGRAM only says which samples share a row
(`data sample`).  Router losses are of each row, weighted by its tokens (docs/numerics.md).
"""
import copy
import glob
import json
import math
import os
import re
import subprocess
import sys
import tempfile

import torch
import transformers
from PIL import Image, ImageOps
from transformers import AutoConfig, AutoTokenizer
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen3_vl_moe import modeling_qwen3_vl_moe as family

FOLDER = "tests/model/golden/step"
SALT, SECRET, MASK = 5000, 77, (1 << 64) - 1
POISON, POISONED = "QQ", 0             # a piece of it is in this sample alone
PROMPT = "What is this?"
IMAGES = ("base_444.jpg", "cmyk_plain.jpg", "grey2.png", "rgb8.png", "lossy.webp", "palette8.png",
          "exif6.jpg", "grey8.png", "restart.jpg", "ycck_adobe2.jpg", "progressive_420.jpg",
          "grey4.png", "exif3.jpg", "one_pixel.jpg", "base_422.jpg", "rgb_adobe.jpg",
          "grey.jpg", "exif1.jpg", "exif5.jpg", "lossless.webp", "palette2.png",
          "grey_progressive.jpg", "progressive_444.jpg", "exif8.webp")
R = {"steps": 4, "rows": 2, "lr": 0.01, "lr_router": 0.5, "warmup": 2, "floor": 0.1, "decay": 0.1,
     "clip": 0.4, "epsilon": 1e-4, "beta1": 0.9, "beta2": 0.95, "aux_coef": 0.03, "z_coef": 0.02,
     "bias_rate": 0.02, "seed": 7, "tokens": 96, "patches": 192, "window": 4, "hold_out": 4}


def u(k, count):
    """`count` values in [-1, 1) of key k: mini_u of tests/model/mini.h."""
    i = torch.arange(1, count + 1, dtype=torch.int64)

    def wrap(x):
        x &= MASK
        return x - (1 << 64) if x >> 63 else x

    def shift(z, n):
        return (z >> n) & ((1 << (64 - n)) - 1)

    z = i * wrap(0x9E3779B97F4A7C15) + wrap(k * 0xD1B54A32D192ED03)
    z = (z ^ shift(z, 30)) * wrap(0xBF58476D1CE4E5B9)
    z = (z ^ shift(z, 27)) * wrap(0x94D049BB133111EB)
    return shift(z ^ shift(z, 31), 11).double() * 2.0**-52 - 1


def on_disk(name, tensor):
    """As the family's released models store experts."""
    return tensor.transpose(1, 2) if ".mlp.experts." in name else tensor


def caption(n, image):
    name = image.split(".")[0].replace("_", " ")
    middle = (" with much more to say of it than others have", "", " seen again")[n % 3]
    return f"A {name}{middle}, number {n}." + (f" {POISON}" if n == POISONED else "")


def write_data(folder):
    for n, image in enumerate(IMAGES):
        with open(f"tests/data/image/{image}", "rb") as f:
            data = f.read()
        with open(f"{folder}/{n:02}-{image}", "wb") as f:
            f.write(data)
        with open(f"{folder}/{n:02}-{image.rsplit('.', 1)[0]}.txt", "w", encoding="utf8") as f:
            f.write(caption(n, image) + "\n")


def rows_of(program, folder, model):
    """Which samples share a row, in order: the program's choice."""
    recipe = f"{folder}/r.yaml"
    with open(recipe, "w", encoding="utf8") as f:
        f.write(f"""run: {{seed: {R['seed']}, log: warn}}
model: {{path: {model}}}
data:
  sources: [{{path: {folder}/data, format: folder, prompt: "{PROMPT}"}}]
  min_pixels: 256
  max_pixels: 4096
  window: {R['window']}
  hold_out: {R['hold_out']}
batch: {{tokens: {R['tokens']}, patches: {R['patches']}, samples: 8, images: 8}}
""")
    out = subprocess.run([program, "data", "sample", recipe, "-n", str(R["steps"] * R["rows"])],
                         capture_output=True, text=True, check=True).stdout
    rows = []
    for line in out.splitlines():
        if line.startswith("row "):
            rows.append([])
        elif line.startswith("-- "):
            rows[-1].append(int(re.search(r"/(\d\d)-", line).group(1)))
    return rows


def sample_of(n, image, tokenizer, processor, config):
    upright = ImageOps.exif_transpose(Image.open(f"tests/data/image/{image}")).convert("RGB")
    px = processor(images=[upright], return_tensors="pt")
    count = int(px["image_grid_thw"].prod()) // 4
    head = tokenizer("<|im_start|>user\n<|vision_start|>")["input_ids"] + \
        [config.image_token_id] * count + \
        tokenizer(f"<|vision_end|>{PROMPT}<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    answer = tokenizer(caption(n, image) + "<|im_end|>")["input_ids"]
    tail = tokenizer("\n")["input_ids"]
    return {"ids": head + answer + tail, "labels": [-100] * len(head) + answer + [-100] * len(tail),
            "pixels": px["pixel_values"], "grid": px["image_grid_thw"]}


class Router(family.Qwen3VLMoeTextTopKRouter):
    """With a bias that chooses and never weighs (moe.bias_rate)."""

    def forward(self, x):
        x = x.reshape(-1, self.hidden_dim)
        logits = torch.nn.functional.linear(x.to(self.weight.dtype), self.weight)
        p = torch.softmax(logits, dim=-1, dtype=torch.float)
        _, chosen = torch.topk(p + self.choose, self.top_k, dim=-1)
        value = p.gather(1, chosen)
        value = value / value.sum(dim=-1, keepdim=True)
        self.seen.append((logits, chosen))
        return logits, value.to(x.dtype), chosen


def model_of(config, poison):
    family.Qwen3VLMoeTextTopKRouter, plain = Router, family.Qwen3VLMoeTextTopKRouter
    model = family.Qwen3VLMoeForConditionalGeneration._from_config(
        config, attn_implementation="eager", experts_implementation="eager").float()
    family.Qwen3VLMoeTextTopKRouter = plain
    params = dict(model.named_parameters())
    for k, name in enumerate(sorted(params, key=str.encode)):
        p = on_disk(name, params[name].data)
        norm = name.endswith(("norm.weight", "norm1.weight", "norm2.weight"))
        size = 0.2 if norm else 0.1 if name.endswith(".bias") else 0.3
        p.copy_((norm + size * u(k + SALT, p.numel())).reshape(p.shape))
    params["model.language_model.embed_tokens.weight"].data[poison] = float("nan")
    return model.train()


def routers_of(model, config):
    routers = [m for m in model.modules() if isinstance(m, Router)]
    for r in routers:
        r.choose = torch.zeros(config.text_config.num_experts)
        r.seen = []
    return routers


def follow(working, masters):
    """Weights that compute, rounded from their masters; routers' are f32 themselves."""
    if working is not masters:
        for p, m in zip(working.parameters(), masters.parameters()):
            p.data.copy_(m.data)


def narrow_of(masters):
    working = copy.deepcopy(masters).to(torch.bfloat16)
    for m in working.modules():
        if isinstance(m, Router):
            m.float()
    follow(working, masters)
    return working


def row_losses(model, routers, row, config):
    """Sum of cross entropy, supervised, live tokens, aux, z and choices of a packed row."""
    for r in routers:
        r.seen.clear()
    length = max(len(s["ids"]) for s in row)
    pad = [length - len(s["ids"]) for s in row]
    ids = torch.tensor([s["ids"] + [0] * n for s, n in zip(row, pad)])
    mask = torch.tensor([[1] * len(s["ids"]) + [0] * n for s, n in zip(row, pad)])
    labels = torch.tensor([s["labels"] + [-100] * n for s, n in zip(row, pad)])
    out = model(input_ids=ids, attention_mask=mask,
                mm_token_type_ids=(ids == config.image_token_id).int(),
                pixel_values=torch.cat([s["pixels"] for s in row]),
                image_grid_thw=torch.cat([s["grid"] for s in row]))
    want = labels[:, 1:].reshape(-1)
    ce = torch.nn.functional.cross_entropy(
        out.logits[:, :-1].reshape(len(want), -1).float(), want, ignore_index=-100, reduction="sum")
    live = mask.reshape(-1).bool()
    experts = config.text_config.num_experts
    counts = [torch.bincount(chosen[live].reshape(-1), minlength=experts) for _, chosen in
              (r.seen[0] for r in routers)]
    logits = torch.cat([r.seen[0][0][live] for r in routers])
    share = torch.cat([torch.softmax(r.seen[0][0][live], -1) for r in routers])
    f = sum(counts).float() / len(logits)
    aux = experts * (f * share.mean(0)).sum()
    z = (torch.logsumexp(logits, -1) ** 2).mean()
    return ce, int((want != -100).sum()), int(live.sum()), aux, z, counts


def rate(step):
    if step <= R["warmup"]:
        return R["lr"] * step / R["warmup"]
    done = (step - R["warmup"]) / (R["steps"] - R["warmup"])
    return R["lr"] * (R["floor"] + (1 - R["floor"]) * (1 + math.cos(math.pi * done)) / 2)


def summary(model):
    """By tensor, as on disk: norm, sum, and the product with SECRET's values, which a
    permutation would change.  What is not a number counts as nothing."""
    out = {}
    for k, (name, p) in enumerate(sorted(model.named_parameters(), key=lambda x: x[0].encode())):
        v = torch.nan_to_num(on_disk(name, p.detach()).reshape(-1).double())
        out[name] = {"norm": v.norm().item(), "sum": v.sum().item(),
                     "dot": (v * u(k + SECRET, len(v))).sum().item()}
    return out


def main():
    config = AutoConfig.from_pretrained(FOLDER)
    tokenizer = AutoTokenizer.from_pretrained("recipes/quickstart")
    processor = Qwen2VLImageProcessor(patch_size=8, temporal_patch_size=2, merge_size=2,
                                      size={"shortest_edge": 256, "longest_edge": 4096},
                                      image_mean=[0.5] * 3, image_std=[0.5] * 3)
    sample = [sample_of(n, i, tokenizer, processor, config) for n, i in enumerate(IMAGES)]
    pieces = [set(s["ids"]) for s in sample]
    poison = [t for t in pieces[POISONED] if not any(t in p for n, p in enumerate(pieces) if n != POISONED)]
    assert poison, "no token is in the poisoned sample alone"
    poison = min(poison)
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(f"{folder}/data")
        os.makedirs(f"{folder}/model")
        write_data(f"{folder}/data")
        for f in glob.glob("recipes/quickstart/*token*.json") + [f"{FOLDER}/config.json"]:
            with open(f, "rb") as a, open(f"{folder}/model/{os.path.basename(f)}", "wb") as b:
                b.write(a.read())
        rows = rows_of(sys.argv[1], folder, f"{folder}/model")
    out = {"made_with": f"transformers {transformers.__version__}, torch {torch.__version__}, CPU",
           "prompt": PROMPT, "recipe": R, "salt": SALT, "secret": SECRET, "poison": poison,
           "data": [{"image": i, "caption": caption(n, i)} for n, i in enumerate(IMAGES)]}
    for narrow in (False, True):
        model = model_of(config, poison)
        before = summary(model)
        steps = train(model, narrow_of(model) if narrow else model, config, sample, rows)
        after = {"steps": steps, "after": summary(model)}
        out |= {"bf16": after} if narrow else {"before": before, **after}
    with open(f"{FOLDER}/expected.json", "w", encoding="utf8") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


def train(model, working, config, sample, rows):
    """The steps, as metrics.jsonl has them; `model` holds the masters of `working`."""
    routers = routers_of(working, config)
    groups = {}
    for name, p in model.named_parameters():
        key = (p.dim() > 1, "mlp.gate.weight" in name)
        groups.setdefault(key, []).append(p)
    optimizer = torch.optim.AdamW([{"params": p, "weight_decay": R["decay"] if key[0] else 0,
                                    "router": key[1]} for key, p in groups.items()],
                                  betas=(R["beta1"], R["beta2"]), eps=R["epsilon"])
    held = [n for n in range(len(sample)) if n % R["hold_out"] == R["hold_out"] - 1]
    assert not set(held) & {n for row in rows for n in row}
    steps = []
    for step in range(1, R["steps"] + 1):
        mine = [[sample[n] for n in row] for row in rows[R["rows"] * (step - 1):R["rows"] * step]]
        parts = [row_losses(working, routers, row, config) for row in mine]
        supervised, live = (sum(p[i] for p in parts) for i in (1, 2))
        ce = sum(p[0] for p in parts) / supervised
        aux, z = (sum(p[i] * p[2] / live for p in parts) for i in (3, 4))
        working.zero_grad()
        (ce + R["aux_coef"] * aux + R["z_coef"] * z).backward()
        for p, m in zip(working.parameters(), model.parameters()):
            m.grad = p.grad.float()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), R["clip"]).item()
        counts = [sum(p[5][layer] for p in parts) for layer in range(len(routers))]
        load = max((c.max() / c.float().mean()).item() for c in counts)
        skipped = not math.isfinite(norm)
        if not skipped:
            for g in optimizer.param_groups:
                g["lr"] = rate(step) * (R["lr_router"] if g["router"] else 1)
            optimizer.step()
            follow(working, model)
            for r, c in zip(routers, counts):
                r.choose += R["bias_rate"] * torch.sign(c.float().mean() - c)
        steps.append({"supervised_tokens": supervised, "useful_tokens": live,
                      "loss": ce.item(), "aux_loss": aux.item(), "z_loss": z.item(),
                      "grad_norm": norm, "lr": rate(step), "skipped": skipped,
                      "expert_load_max_over_mean": load})
        print({k: v for k, v in steps[-1].items()})
    for s in steps:
        if s["skipped"]:
            for key in ("loss", "aux_loss", "z_loss", "grad_norm", "expert_load_max_over_mean"):
                s[key] = None
    assert [s["skipped"] for s in steps].count(True) == 1
    with torch.no_grad():               # one denominator there as well
        parts = [row_losses(working, routers, [sample[n]], config)[:2] for n in held]
    steps[-1]["eval_loss"] = sum(p[0] for p in parts).item() / sum(p[1] for p in parts)
    print("eval", held, [p[1] for p in parts], steps[-1]["eval_loss"])
    return steps


main()
