"""Loss, logits and gradients of the tiny Qwen3-VL-MoE of tests/model/case.h by
`transformers`, with a shared expert in its MoE layers, for test_model_golden.c.

    python tests/ref/make_model_golden.py       # from the repository's root

Writes tests/model/golden/qwen3-vl-moe.json and qwen3-vl-moe-shared.json.  No released
Qwen3-VL-MoE has shared experts, so that block is Qwen2-MoE's: its MLP and gate beside
Qwen3-VL-MoE's router and experts.
"""
import json

import torch
import transformers
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeMLP
from transformers.models.qwen3_vl_moe import modeling_qwen3_vl_moe as family
from transformers.models.qwen3_vl_moe.configuration_qwen3_vl_moe import Qwen3VLMoeConfig

GOLDEN = "tests/model/golden/qwen3-vl-moe"
SALT, SECRET, IMAGE, SHARED = 8000, 77, 5, 12
PLACES = ((0, 3, 0), (0, 30, 8), (0, 72, 0), (1, 5, 20), (1, 28, 60))
MASK = (1 << 64) - 1

CONFIG = {
    "text_config": {
        "vocab_size": 64, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 10, "mlp_only_layers": [1],
        "rms_norm_eps": 1e-6, "router_aux_loss_coef": 0.001, "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                            "mrope_section": [4, 2, 2], "mrope_interleaved": True},
        "pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "use_cache": False,
    },
    "vision_config": {
        "depth": 5, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48, "patch_size": 4,
        "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 36,
        "out_hidden_size": 24, "deepstack_visual_indexes": [1, 3],
    },
    "image_token_id": IMAGE, "video_token_id": 6, "vision_start_token_id": 7,
    "vision_end_token_id": 8, "tie_word_embeddings": False,
}


def u(k, count):
    """`count` values in [-1, 1) of key k: mini_u of tests/model/mini.h."""
    out = []
    for i in range(count):
        z = ((i + 1) * 0x9E3779B97F4A7C15 + k * 0xD1B54A32D192ED03) & MASK
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
        out.append((z ^ z >> 31) >> 11)
    return torch.tensor(out, dtype=torch.float64) * 2.0**-52 - 1


class SharedBlock(family.Qwen3VLMoeTextSparseMoeBlock):
    def __init__(self, config):
        super().__init__(config)
        self.shared_expert = Qwen2MoeMLP(config, intermediate_size=SHARED)
        self.shared_expert_gate = torch.nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, x):
        gate = torch.sigmoid(self.shared_expert_gate(x))
        return super().forward(x) + gate * self.shared_expert(x)


def on_disk(name, tensor):
    """Experts lie on disk with their last two dimensions swapped."""
    return tensor.transpose(1, 2) if ".mlp.experts." in name else tensor


def model_of(block):
    plain = family.Qwen3VLMoeTextSparseMoeBlock
    family.Qwen3VLMoeTextSparseMoeBlock = block
    model = family.Qwen3VLMoeForConditionalGeneration._from_config(
        Qwen3VLMoeConfig(**CONFIG), attn_implementation="eager", experts_implementation="eager")
    family.Qwen3VLMoeTextSparseMoeBlock = plain
    params = dict(model.named_parameters())
    for k, name in enumerate(sorted(params, key=str.encode)):
        p = on_disk(name, params[name].data)
        norm = name.endswith(("norm.weight", "norm1.weight", "norm2.weight"))
        size = 0.2 if norm else 0.1 if name.endswith(".bias") else 0.3
        p.copy_((norm + size * u(k + SALT, p.numel())).reshape(p.shape))
    return model.train()


def batch():
    rows = [[9, 10, 11, 7] + [IMAGE] * 24 + [12, 13, 14, 15, 7] + [IMAGE] * 6 + list(range(20, 60)),
            [8, 30, 7] + [IMAGE] * 6 + list(range(31, 51))]
    length = len(rows[0])
    ids = torch.tensor([r + [0] * (length - len(r)) for r in rows])
    mask = torch.tensor([[1] * len(r) + [0] * (length - len(r)) for r in rows])
    labels = torch.where((mask == 0) | (ids == IMAGE), -100, ids)
    labels[:, :6] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels,
            "mm_token_type_ids": (ids == IMAGE).int(),
            "pixel_values": u(9999, 144 * 96).reshape(144, 96).float(),
            "image_grid_thw": torch.tensor([[1, 8, 12], [1, 6, 4], [1, 4, 6]]),
            "output_router_logits": True}


def golden(model):
    out = model(**batch())
    out.loss.backward()
    coef = CONFIG["text_config"]["router_aux_loss_coef"]
    grads = {}
    for k, (name, p) in enumerate(sorted(model.named_parameters(), key=lambda x: x[0].encode())):
        g = on_disk(name, p.grad.double()).reshape(-1)
        grads[name] = {"norm": g.norm().item(), "sum": g.sum().item(),
                       "dot": (g * u(k + SECRET, len(g))).sum().item()}
    loss, aux = out.loss.item(), out.aux_loss.item()
    return {
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}, "
                     "CPU, eager attention",
        "note": "loss = cross_entropy + aux_coef * aux_loss; gradients are of loss; dot: with "
                "mini_u(77 + place of the name, place on disk), which tells elements apart; "
                "logits: [row of the padded batch, place, first id, four values]",
        "float32": {"loss": loss, "aux_loss": aux, "aux_coef": coef,
                    "cross_entropy": loss - coef * aux, "grad": grads},
        "logits": [[*at, *out.logits[at[0], at[1], at[2]:at[2] + 4].tolist()] for at in PLACES],
    }


def main():
    for name, block in (("", family.Qwen3VLMoeTextSparseMoeBlock), ("-shared", SharedBlock)):
        out = golden(model_of(block))
        with open(f"{GOLDEN}{name}.json", "w", encoding="ascii") as f:
            json.dump(out, f, indent=1)
            f.write("\n")
        print(f"loss {out['float32']['loss']:.9f}, {len(out['float32']['grad'])} tensors")


main()
