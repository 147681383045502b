"""make_parity_case.py - the inputs that the help of `vlmoe parity` names: one row of text
with one small image, for models with the quickstart's vocabulary and patches.

    python3 tests/ref/make_parity_case.py tests/model/golden/parity.safetensors
"""
import sys

import torch
from safetensors.torch import save_file

IMAGE, IGNORE = 1274, -100
torch.manual_seed(1)
ids = torch.randint(0, 1200, (1, 32))
ids[0, 5] = IMAGE
labels = ids.clone()
labels[0, :12] = IGNORE
save_file({
    "input_ids": ids,
    "labels": labels,
    "attention_mask": torch.ones(1, 32, dtype=torch.int64),
    "pixel_values": torch.randn(4, 3 * 2 * 16 * 16),
    "image_grid_thw": torch.tensor([[1, 2, 2]]),
}, sys.argv[1])
