"""check_export.py - does transformers load an exported model, and find the same loss?

    python tests/ref/check_export.py PROGRAM MODEL-FOLDER

Loads the folder, prints what is missing, unexpected or mismatched, makes a case file from
random ids and two images' worth of random patches, and compares the loss with
`PROGRAM parity`.
"""
import json
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import save_file
from transformers import AutoModelForImageTextToText

program, folder = sys.argv[1], sys.argv[2]
model, info = AutoModelForImageTextToText.from_pretrained(
    folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
print({k: sorted(v) for k, v in info.items() if k.endswith("keys")})
c = model.config
moe = c.model_type.endswith("_moe")
if moe:
    model.set_experts_implementation("eager")
model.train()
torch.manual_seed(1)
cell = c.vision_config.patch_size ** 2 * 3 * c.vision_config.temporal_patch_size
grid = torch.tensor([[1, 4, 6], [1, 4, 4]])
rows = []
for t, h, w in grid.tolist():
    text = torch.randint(0, min(1000, c.vision_start_token_id - 8), (30,))
    image = torch.full((h * w // 4,), c.image_token_id)
    rows.append(torch.cat([text[:5], torch.tensor([c.vision_start_token_id]), image,
                           torch.tensor([c.vision_end_token_id]), text[5:]]))
width = max(len(r) for r in rows)
ids = torch.zeros(2, width, dtype=torch.long)
mask = torch.zeros_like(ids)
for i, r in enumerate(rows):
    ids[i, :len(r)], mask[i, :len(r)] = r, 1
labels = ids.masked_fill((mask == 0) | (ids == c.image_token_id), -100)
labels[:, :3] = -100
pixels = torch.rand(int((grid[:, 1] * grid[:, 2]).sum()), cell) * 2 - 1
out = model(input_ids=ids, attention_mask=mask, labels=labels, pixel_values=pixels,
            image_grid_thw=grid, **({"output_router_logits": True} if moe else {}),
            mm_token_type_ids=(ids == c.image_token_id).int())
theirs = out.loss.item()
with tempfile.TemporaryDirectory() as tmp:
    save_file({"input_ids": ids, "attention_mask": mask, "labels": labels,
               "pixel_values": pixels, "image_grid_thw": grid}, tmp + "/case.safetensors",
              metadata={"format": "pt"})
    subprocess.run([program, "parity", folder, tmp + "/case.safetensors", "--out",
                    tmp + "/ours.json"], check=True, capture_output=True)
    ours = json.load(open(tmp + "/ours.json"))["loss"]
print(f"transformers {theirs:.7f}  vlmoe {ours:.7f}  difference {ours - theirs:+.1e}")
bad = any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
sys.exit(bad or abs(ours - theirs) > 1e-5 * max(1, abs(theirs)))
