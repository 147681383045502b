"""A small model folder as transformers itself writes it, and what transformers computes
from it, for test_folder.c.

    python tests/ref/make_folder_golden.py      # from the repository's root

Writes tests/model/folder: config.json, model.safetensors with experts as [E, 2F, D] and
[E, D, F] (transformers 5.24 and later), processor_config.json, case.safetensors for
`vlmoe parity` and expected.json.  D is 2F: gate_up_proj is square, so that its shape does
not tell the layout and a reader that takes it the wrong way round finds another loss.
"""
import json
import os

import torch
import transformers
from safetensors.torch import save_file
from transformers import (PreTrainedTokenizerFast, Qwen2VLImageProcessor, Qwen3VLMoeConfig,
                          Qwen3VLMoeForConditionalGeneration, Qwen3VLProcessor,
                          Qwen3VLVideoProcessor)

FOLDER, QUICK = "tests/model/folder", "recipes/quickstart"
D, F, E = 32, 16, 4
tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{QUICK}/tokenizer.json")
ID = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in (
    "im_end", "endoftext", "image_pad", "video_pad", "vision_start", "vision_end")}
torch.manual_seed(5)
config = Qwen3VLMoeConfig(
    text_config=dict(
        vocab_size=1280, hidden_size=D, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, intermediate_size=24, moe_intermediate_size=F,
        num_experts=E, num_experts_per_tok=2, decoder_sparse_step=1, mlp_only_layers=[],
        max_position_embeddings=4096, rope_theta=1e4, tie_word_embeddings=True,
        rope_scaling={"rope_type": "default", "mrope_interleaved": True,
                      "mrope_section": [4, 2, 2]},
        bos_token_id=ID["endoftext"], eos_token_id=ID["im_end"], pad_token_id=ID["endoftext"]),
    vision_config=dict(depth=2, hidden_size=16, num_heads=2, intermediate_size=16,
                       patch_size=8, num_position_embeddings=16, out_hidden_size=D,
                       deepstack_visual_indexes=[0]),
    image_token_id=ID["image_pad"], video_token_id=ID["video_pad"],
    vision_start_token_id=ID["vision_start"], vision_end_token_id=ID["vision_end"],
    tie_word_embeddings=True)
model = Qwen3VLMoeForConditionalGeneration(config)
with torch.no_grad():
    for p in model.parameters():
        p.add_(torch.randn_like(p) * 0.05)
model = model.to(torch.bfloat16)
model.save_pretrained(FOLDER)
os.remove(f"{FOLDER}/generation_config.json")
tokenizer.chat_template = open(f"{QUICK}/chat_template.jinja", encoding="utf-8").read()
cell = dict(patch_size=8, temporal_patch_size=2, merge_size=2, image_mean=[0.5] * 3,
            image_std=[0.5] * 3)
processor = Qwen3VLProcessor(
    Qwen2VLImageProcessor(**cell, size={"shortest_edge": 1024, "longest_edge": 4096}), tokenizer,
    Qwen3VLVideoProcessor(**cell))
scratch = f"{FOLDER}/scratch"
processor.save_pretrained(scratch)
os.rename(f"{scratch}/processor_config.json", f"{FOLDER}/processor_config.json")
for name in os.listdir(scratch):
    os.remove(f"{scratch}/{name}")
os.rmdir(scratch)

model = Qwen3VLMoeForConditionalGeneration.from_pretrained(
    FOLDER, dtype=torch.float32, attn_implementation="eager")
model.set_experts_implementation("eager")
model.train()
ids = torch.randint(0, 1200, (1, 40))
ids[0, 4], ids[0, 5:11], ids[0, 11] = ID["vision_start"], ID["image_pad"], ID["vision_end"]
labels = ids.clone()
labels[0, :20] = -100
case = {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(24, 3 * 2 * 8 * 8),
        "image_grid_thw": torch.tensor([[1, 4, 6]])}
save_file(case, f"{FOLDER}/case.safetensors")
out = model(**case, output_router_logits=True,
            mm_token_type_ids=(ids == ID["image_pad"]).int())
out.loss.backward()
grad = {n: {"norm": p.grad.double().norm().item(), "sum": p.grad.double().sum().item()}
        for n, p in model.named_parameters()}
loss, aux = out.loss.item(), out.aux_loss.item()
coef = config.text_config.router_aux_loss_coef
with open(f"{FOLDER}/expected.json", "w", encoding="ascii") as f:
    json.dump({"made_with": f"transformers {transformers.__version__}, torch "
                            f"{torch.__version__}, CPU, eager",
               "loss": loss, "aux_loss": aux, "cross_entropy": loss - coef * aux,
               "grad": grad}, f, indent=1)
    f.write("\n")
print(f"loss {loss:.7f}, {len(grad)} tensors", sorted(os.listdir(FOLDER)))
