"""bench_image.py - images to patches, here and in transformers: who needs what time.

    python tests/ref/bench_image.py TEST_IMAGE_SPEED [FILE...]

Decodes each FILE with Pillow and runs Qwen2VLImageProcessor's default back-end on it, one
thread, one core; runs TEST_IMAGE_SPEED (build/release/tests/test_image_speed) on the same
file and the same core, in turns, and prints the best processor time of both in ms and
ours as a share of theirs.  Without files it makes them: stamps of the Debian package
tuxpaint-stamps-default side by side, 1600 x 1203, as baseline and progressive JPEG, as
PNG with and without alpha, as WebP.
"""
import io
import os
import re
import subprocess
import sys
import tempfile
import time

import torch
from PIL import Image
from transformers import Qwen2VLImageProcessor

ROUNDS, REPEATS = 5, 8
MOST = 896 * 896
WIDTH, HEIGHT = 1600, 1203
STAMPS = "/usr/share/tuxpaint/stamps"
PHOTOS = ("food/fruit/cherimoya", "food/spices/ginger", "household/Lightbulb",
          "plants/trees/rambutan", "plants/flowers/anemone_red", "seasonal/candle",
          "animals/mammals/bears/european-bear", "animals/birds/helmeted_guineafowl",
          "vehicles/race/indycar", "vehicles/flight/balloon360",
          "naturalforces/explosion", "vehicles/wheel_tractor")


def collage():
    """Photos enlarged to tiles of 400 x 401, over one that fills the picture."""
    photo = [Image.open(f"{STAMPS}/{name}.png").convert("RGBA") for name in PHOTOS]
    whole = photo[3].resize((WIDTH, HEIGHT), Image.BICUBIC).convert("RGB")
    for i, p in enumerate(photo):
        tile = p.resize((WIDTH // 4, HEIGHT // 3), Image.BICUBIC)
        whole.paste(tile, (i % 4 * tile.width, i // 4 * tile.height), tile)
    return whole


def made(folder):
    whole = collage()
    clear = whole.copy()
    clear.putalpha(whole.convert("L"))
    for name, image, options in (
            ("baseline.jpg", whole, dict(quality=85)),
            ("progressive.jpg", whole, dict(quality=85, progressive=True)),
            ("rgb.png", whole, {}), ("rgba.png", clear, {}),
            ("lossy.webp", whole, dict(quality=80))):
        path = os.path.join(folder, name)
        image.save(path, **options)
        yield path


def theirs_ms(processor, data):
    began = time.process_time()
    processor(images=[Image.open(io.BytesIO(data))], return_tensors="pt")
    return 1e3 * (time.process_time() - began)


def ours_ms(program, path):
    out = subprocess.run([program, path, str(MOST)], capture_output=True, text=True,
                         check=True).stdout
    return 1e3 / float(re.search(r"([0-9.]+) images/s", out).group(1))


def compare(program, processor, path):
    data = open(path, "rb").read()
    theirs, ours = 1e9, 1e9
    for _ in range(ROUNDS):
        for _ in range(REPEATS):
            theirs = min(theirs, theirs_ms(processor, data))
        ours = min(ours, ours_ms(program, path))
    print(f"{os.path.basename(path):20} {len(data):9} bytes  transformers {theirs:7.2f} "
          f"ms  vlmoe {ours:7.2f} ms  ratio {ours / theirs:.2f}", flush=True)


def main():
    program, files = sys.argv[1], sys.argv[2:]
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # inherited by the program
    torch.set_num_threads(1)
    processor = Qwen2VLImageProcessor(patch_size=16, merge_size=2, size={
        "shortest_edge": 65536, "longest_edge": MOST})
    with tempfile.TemporaryDirectory() as folder:
        for path in files or made(folder):
            compare(program, processor, path)


main()
