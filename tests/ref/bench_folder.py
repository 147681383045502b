"""Reading and writing model folders: `vlmoe convert` beside safetensors in Python, in turns.

    python tests/ref/bench_folder.py PROGRAM [FOLDER] [ROUNDS]

Makes a small Qwen3-VL-MoE folder (about 430 MB, bf16, experts as released) in FOLDER, or
takes the one that is there.  Each round runs both sides of each line once, one thread
each; the least processor time (user + system) of all rounds counts, wall time is beside.
The Python side loads all tensors with safetensors.torch, changes what the line says and
saves them; its imports are not counted.
"""
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration

torch.set_num_threads(1)
program = sys.argv[1]
scratch = tempfile.mkdtemp(prefix="bench-folder-")
folder = sys.argv[2] if len(sys.argv) > 2 else scratch + "/model"
rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3


def swap(name, tensor):
    return tensor.transpose(1, 2).contiguous() if ".mlp.experts." in name else tensor


def make():
    config = Qwen3VLMoeConfig(
        text_config=dict(vocab_size=32000, hidden_size=1024, num_hidden_layers=4,
                         num_attention_heads=8, num_key_value_heads=2, head_dim=128,
                         intermediate_size=2048, moe_intermediate_size=384, num_experts=32,
                         num_experts_per_tok=4, decoder_sparse_step=1, mlp_only_layers=[],
                         rope_theta=5e6, rope_scaling={"rope_type": "default",
                                                       "mrope_interleaved": True,
                                                       "mrope_section": [24, 20, 20]}),
        vision_config=dict(depth=4, hidden_size=256, num_heads=4, intermediate_size=512,
                           out_hidden_size=1024, deepstack_visual_indexes=[0, 1]),
        image_token_id=31001, video_token_id=31002, vision_start_token_id=31003,
        vision_end_token_id=31004)
    model = Qwen3VLMoeForConditionalGeneration(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    path = folder + "/model.safetensors"
    tensors = {k: swap(k, v) for k, v in load_file(path).items()}
    save_file(tensors, path + ".new", metadata={"format": "pt"})
    os.replace(path + ".new", path)


def python(change, to):
    os.makedirs(to)
    begin, wall = time.process_time(), time.perf_counter()
    tensors = load_file(folder + "/model.safetensors")
    save_file({k: change(k, v) for k, v in tensors.items()}, to + "/model.safetensors",
              metadata={"format": "pt"})
    return time.process_time() - begin, time.perf_counter() - wall


def ours(options, to):
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([program, "convert", folder, to, *options], check=True,
                   stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            time.perf_counter() - wall)


lines = {
    "as it is": (lambda k, v: v, []),
    "to f32": (lambda k, v: v.float(), ["--dtype", "f32"]),
    "other layout": (swap, ["--experts", "transformers"]),
    "other layout, f32": (lambda k, v: swap(k, v).float(),
                          ["--experts", "transformers", "--dtype", "f32"]),
}
if not os.path.exists(folder + "/model.safetensors"):
    make()
best = {}
for r in range(rounds):
    for line, (change, options) in lines.items():
        for side, run, what in (("python", python, change), ("ours", ours, options)):
            to = f"{scratch}/{side}"
            figures = run(what, to)
            best[line, side] = tuple(map(min, figures, best.get((line, side), figures)))
            if side == "ours" and r == 0:       # the same tensors
                x, y = (load_file(f"{scratch}/{s}/model.safetensors")
                        for s in ("python", "ours"))
                assert x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x)
            if side == "ours":
                shutil.rmtree(to)
                shutil.rmtree(f"{scratch}/python")
print(f"{'':20}{'safetensors':>14}{'vlmoe':>10}{'ratio':>8}{'wall':>8}")
for line in lines:
    (x, xw), (y, yw) = best[line, "python"], best[line, "ours"]
    print(f"{line:20}{x:12.2f} s{y:8.2f} s{y / x:8.2f}{yw / xw:8.2f}")
shutil.rmtree(scratch)
