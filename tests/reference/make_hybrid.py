"""A tiny Nemotron-H checkpoint with reference values: tests/fixtures/models/nemotron_h/.

    python make_hybrid.py

transformers 4.57 has no class of that architecture, so its layers are put together here: the state-space mixer is
transformers' `Zamba2MambaMixer`, which has the same parts (a convolution over values and both shared sides, a gated norm
per group), everything in f64; squared ReLU is transformers' too; attention is torch's, causal and without positions.
reference.json has the values of the other checkpoints as far as this test reads them.
"""
import json

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import Zamba2Config
from transformers.activations import ACT2FN
from transformers.models.zamba2.modeling_zamba2 import Zamba2MambaMixer

from common import FIXTURES, dump, nine

OUT = FIXTURES / "models" / "nemotron_h"
LENGTHS = (5, 17, 34)
GREEDY = 8
CONFIG = {"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "vocab_size": 108, "hidden_size": 24,
          "hybrid_override_pattern": "M-M-M*-", "num_hidden_layers": 7, "mamba_num_heads": 4, "mamba_head_dim": 6,
          "ssm_state_size": 5, "n_groups": 2, "conv_kernel": 4, "use_conv_bias": True, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40, "layer_norm_epsilon": 1e-5,
          "max_position_embeddings": 128, "tie_word_embeddings": False, "mlp_hidden_act": "relu2",
          "torch_dtype": "float32"}

# The naive mixer computes in f32 by `.float()`; here everything stays in f64.
torch.Tensor.float = torch.Tensor.double


class GatedNorm(nn.Module):
    """As `Zamba2RMSNormGated`, without its f32."""

    def __init__(self, size, groups, eps):
        super().__init__()
        self.weight, self.groups, self.eps = nn.Parameter(torch.ones(size)), groups, eps

    def forward(self, x, gate=None):
        x = (x * nn.functional.silu(gate)).unflatten(-1, (self.groups, -1))
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)).flatten(-2)


def mixer(c):
    """A mixer whose chunk holds every sequence here: across chunks the one of transformers 4.57 sums its states over the wrong
    dim and departs from its own recurrence."""
    width = c["mamba_num_heads"] * c["mamba_head_dim"]
    z = Zamba2Config(hidden_size=c["hidden_size"], mamba_d_state=c["ssm_state_size"], mamba_d_conv=c["conv_kernel"],
                     mamba_expand=width / c["hidden_size"], mamba_ngroups=c["n_groups"],
                     n_mamba_heads=c["mamba_num_heads"], chunk_size=64, add_bias_linear=False, time_step_min=0.0)
    z.mamba_headdim = c["mamba_head_dim"]
    m = Zamba2MambaMixer(z, layer_idx=0)
    m.norm = GatedNorm(width, c["n_groups"], c["layer_norm_epsilon"])
    return m


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, q, kv, hd = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.q, self.kv, self.hd = q, kv, hd
        self.q_proj = nn.Linear(d, q * hd, bias=False)
        self.k_proj = nn.Linear(d, kv * hd, bias=False)
        self.v_proj = nn.Linear(d, kv * hd, bias=False)
        self.o_proj = nn.Linear(q * hd, d, bias=False)

    def forward(self, x):
        heads = lambda y, n: y.unflatten(-1, (n, self.hd)).transpose(1, 2)
        k, v = (heads(p(x), self.kv).repeat_interleave(self.q // self.kv, 1) for p in (self.k_proj, self.v_proj))
        o = nn.functional.scaled_dot_product_attention(heads(self.q_proj(x), self.q), k, v, is_causal=True)
        return self.o_proj(o.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(ACT2FN["relu2"](self.up_proj(x)))


class Layer(nn.Module):
    def __init__(self, c, kind):
        super().__init__()
        self.norm = nn.RMSNorm(c["hidden_size"], eps=c["layer_norm_epsilon"])
        self.mixer = {"M": mixer, "*": Attention, "-": Mlp}[kind](c)

    def forward(self, x):
        h = self.norm(x)
        return x + (self.mixer.torch_forward(h) if hasattr(self.mixer, "A_log") else self.mixer(h))


class Hybrid(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.backbone = nn.Module()
        self.backbone.embeddings = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.backbone.layers = nn.ModuleList(Layer(c, kind) for kind in c["hybrid_override_pattern"])
        self.backbone.norm_f = nn.RMSNorm(c["hidden_size"], eps=c["layer_norm_epsilon"])
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)

    def forward(self, ids):
        x = self.backbone.embeddings(torch.tensor([ids]))
        for layer in self.backbone.layers:
            x = layer(x)
        return self.lm_head(self.backbone.norm_f(x))[0]


def randomise(model):
    """Wide weights, decays of both slow and fast heads; all are f32 numbers."""
    g = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn(p.shape, generator=g)
            if "norm" in name or name.endswith(".D"):
                x = 1.0 + 0.2 * x
            elif name.endswith(("A_log", "dt_bias")):
                x = 0.7 * x
            elif name.endswith("bias"):
                x = 0.3 * x
            elif "embeddings" in name:
                x = 0.8 * x
            elif "conv1d" in name:
                x = 0.5 * x
            else:
                x = 1.6 * x / p.shape[-1] ** 0.5
            p.copy_(x.to(torch.float32).double())


def main():
    torch.set_default_dtype(torch.float64)
    model = Hybrid(CONFIG).double()
    randomise(model)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    weights = {n: p.detach().to(torch.float32).contiguous() for n, p in model.named_parameters()}
    save_file(weights, OUT / "model.safetensors", metadata={"format": "pt"})
    g = torch.Generator().manual_seed(11)
    inputs = [torch.randint(4, CONFIG["vocab_size"], (n,), generator=g).tolist() for n in LENGTHS]
    logits = [model(ids) for ids in inputs]
    scored = [l[:-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0] for l, ids in zip(logits, inputs)]
    loss = -torch.cat(scored).mean()
    loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters()}
    rows = [sorted({0, len(ids) // 2, len(ids) - 1}) for ids in inputs]
    greedy = []
    with torch.no_grad():
        for ids in inputs:
            row = list(ids)
            for _ in range(GREEDY):
                best = model(row)[-1].topk(2)
                assert best.values[0] - best.values[1] > 0.01, "a choice that is not clear-cut"
                row.append(best.indices[0].item())
            greedy.append({"prompt": ids, "ids": row[len(ids):]})
    values = {
        "name": "nemotron_h",
        "parameters": sum(p.numel() for p in model.parameters()),
        "input_ids": inputs,
        "logits": [{"sequence": s, "position": t, "values": nine(logits[s][t])}
                   for s in range(len(inputs)) for t in rows[s]],
        "token_log_probs": [nine(x) for x in scored],
        "loss": nine(loss.item()),
        "gradient_norms": {n: nine(x.norm().item()) for n, x in gradients.items()},
        "gradient_heads": {n: nine(x.flatten()[:4]) for n, x in gradients.items()},
        "greedy": greedy,
    }
    (OUT / "reference.json").write_text(dump(values) + "\n")
    for file in OUT.iterdir():
        file.chmod(0o644)
    size = (OUT / "model.safetensors").stat().st_size
    print(f"nemotron_h: {values['parameters']} parameters, {size} bytes, loss {values['loss']:.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
