"""bench_image.py - an image to patches in transformers, for comparison.

    python tests/ref/bench_image.py TEST_IMAGE_SPEED FILE [max-pixels]

Decodes FILE with Pillow and runs Qwen2VLImageProcessor's default back-end on it, one
thread, one core; runs TEST_IMAGE_SPEED (build/release/tests/test_image_speed) on the same
file and the same core, in turns, and prints the best of both in ms and their ratio.
"""
import io
import json
import os
import re
import subprocess
import sys
import time

import torch
from PIL import Image
from transformers import Qwen2VLImageProcessor

ROUNDS, REPEATS = 5, 12
program, path = sys.argv[1], sys.argv[2]
most = int(sys.argv[3]) if len(sys.argv) > 3 else 896 * 896
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})     # inherited by the program
torch.set_num_threads(1)
processor = Qwen2VLImageProcessor(patch_size=16, merge_size=2,
                                  size={"shortest_edge": 65536, "longest_edge": most})
data = open(path, "rb").read()


def theirs_ms():
    began = time.process_time()
    image = Image.open(io.BytesIO(data)).convert("RGB")
    out = processor(images=[image], return_tensors="pt")
    return 1e3 * (time.process_time() - began), out


def ours_ms():
    out = subprocess.run([program, path, str(most)], capture_output=True, text=True,
                         check=True).stdout
    return 1e3 / float(re.search(r"([0-9.]+) images/s", out).group(1))


theirs, ours = 1e9, 1e9
for _ in range(ROUNDS):
    for _ in range(REPEATS):
        ms, out = theirs_ms()
        theirs = min(theirs, ms)
    ours = min(ours, ours_ms())
print(json.dumps({"file_bytes": len(data), "grid": out["image_grid_thw"][0].tolist(),
                  "transformers_ms": round(theirs, 2), "vlmoe_ms": round(ours, 2),
                  "ratio": round(theirs / ours, 2)}))
