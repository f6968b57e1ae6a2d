"""Tiny Hugging Face checkpoints with reference values: tests/fixtures/models/<name>/.

    python make_reference.py            # rewrites every checkpoint and its reference.json
    python make_reference.py gemma3     # only this one

Weights are random but wide, so that logits, and with them greedy choices, are clear-cut. Every reference value comes
from the stored weights, read as f64, by transformers with eager attention, and is printed with nine digits. (The
library itself keeps norms, softmax and rotary angles in f32, so expect agreement to about 1e-6, not 1e-9.)
reference.json is described in README.md.
"""
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import tiny_tokenizers as tiny
from common import FIXTURES, dump, nine

OUT = FIXTURES / "models"
GREEDY = 32
CLEAR = 0.02
LENGTHS = (5, 17, 34)
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 32}


def config(kind, architecture, hidden, heads, kv, inner, **more):
    """config.json as a published checkpoint would have it."""
    return {"architectures": [architecture], "model_type": kind, "vocab_size": tiny.SIZE, "hidden_size": hidden,
            "intermediate_size": inner, "num_hidden_layers": 2, "num_attention_heads": heads,
            "num_key_value_heads": kv, "hidden_act": "silu", "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "tie_word_embeddings": False, "initializer_range": 0.02, "use_cache": True,
            "bos_token_id": tiny.START, "eos_token_id": tiny.END, "torch_dtype": "float32"} | more


LLAMA, MISTRAL = "LlamaForCausalLM", "MistralForCausalLM"
# name -> (tokenizer, config, storage)
MODELS = {
    "llama": ("start", config("llama", LLAMA, 32, 4, 2, 64, attention_bias=False, mlp_bias=False), "f32"),
    "llama3-tied": ("start", config("llama", LLAMA, 32, 4, 2, 64, head_dim=12, tie_word_embeddings=True,
                                    rope_theta=500000.0, rope_scaling=LLAMA3_ROPE, attention_bias=False,
                                    mlp_bias=False), "f32"),
    "mistral": ("plain", config("mistral", MISTRAL, 32, 4, 2, 64, head_dim=8, sliding_window=None,
                                rope_theta=1e6, torch_dtype="bfloat16"), "bf16"),
    # Four more rows than the tokenizer has ids, as published Qwen checkpoints have.
    "qwen2": ("nfc", config("qwen2", "Qwen2ForCausalLM", 32, 4, 2, 64, vocab_size=112, tie_word_embeddings=True,
                            rope_theta=1e6, rms_norm_eps=1e-6, use_sliding_window=False, sliding_window=64,
                            max_window_layers=2), "f32"),
    "qwen3": ("nfc", config("qwen3", "Qwen3ForCausalLM", 32, 4, 2, 48, head_dim=16, attention_bias=False,
                            rope_theta=1e6, rms_norm_eps=1e-6, use_sliding_window=False, sliding_window=None,
                            max_window_layers=2), "two files"),
    # SmolLM2's head counts: tp = 3 divides heads, kv heads, inner size and vocabulary.
    "llama-9-heads": ("plain", config("llama", LLAMA, 36, 9, 3, 72, tie_word_embeddings=True, rope_theta=100000.0,
                                      attention_bias=False, mlp_bias=False), "f32"),
    # Windows of 8 tokens in all layers but the third, with positions of their own; half of a period is left over.
    "gemma3": ("start", config("gemma3_text", "Gemma3ForCausalLM", 24, 4, 2, 32, head_dim=8, num_hidden_layers=5,
                               hidden_act=None, hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=12,
                               sliding_window=8, sliding_window_pattern=3, rope_local_base_freq=100.0,
                               rope_scaling={"rope_type": "linear", "factor": 4.0}, tie_word_embeddings=True,
                               rms_norm_eps=1e-6), "f32"),
    # Windows of 8 tokens in every other layer, a sink per head, two of four experts per token.
    "gpt-oss": ("nfc", config("gpt_oss", "GptOssForCausalLM", 24, 4, 2, 16, head_dim=8, num_hidden_layers=3,
                              num_local_experts=4, num_experts_per_tok=2, sliding_window=8, swiglu_limit=7.0,
                              attention_bias=True, rope_theta=150000.0,
                              layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                              rope_scaling={"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                            "truncate": False, "original_max_position_embeddings": 32}), "f32"),
}


def scale(name, shape, tied, kind):
    """Standard deviation and mean of one parameter's random values."""
    if kind.startswith("gemma") and ("norm" in name or "embed" in name):
        # Norms are 1 + weight. With even scores or ids that stand for themselves, greedy choices only repeat.
        more = 3.0 if name == "model.norm.weight" else 1.5 if "q_norm" in name or "k_norm" in name else 0.0
        return (0.15, 0.0) if "embed" in name else (0.2, more)
    if "norm" in name:
        return 0.2, 1.0
    if "sinks" in name:
        return 1.0, 0.0
    if "experts" in name and len(shape) == 3:
        # Wide enough that gates and inputs are cut to their limit.
        return (3.5 if "gate_up" in name else 0.5) / shape[1] ** 0.5, 0.0
    if name.endswith("bias"):
        return 0.3, 0.0
    if "lm_head" in name:
        return 0.5, 0.0
    if "embed" in name:
        return (0.45 if tied else 0.8), 0.0
    return 1.6 / shape[-1] ** 0.5, 0.0


def randomise(model, tied, seed):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            width, mean = scale(name, p.shape, tied, model.config.model_type)
            p.copy_(mean + width * torch.randn(p.shape, generator=g, dtype=torch.float32))


def store(model, folder, storage):
    """The weights by Hugging Face names; a tied head is left out."""
    kind = torch.bfloat16 if storage == "bf16" else torch.float32
    weights = {n: p.detach().to(kind).contiguous() for n, p in model.named_parameters()}
    for old in folder.glob("model*"):
        old.unlink()
    if storage != "two files":
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    parts = [names[: len(names) // 2], names[len(names) // 2 :]]
    where, total = {}, sum(w.numel() * w.element_size() for w in weights.values())
    for i, part in enumerate(parts):
        file = f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors"
        save_file({n: weights[n] for n in part}, folder / file, metadata={"format": "pt"})
        where |= {n: file for n in part}
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def load(folder, dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def greedy(model, ids, clear):
    """Continuation by full forward passes, the smallest gap between the two best logits met on the way; cut short where
    a choice is not clear."""
    gap, row = float("inf"), list(ids)
    with torch.no_grad():
        for _ in range(GREEDY):
            if gap <= clear:
                break
            best = model(torch.tensor([row])).logits[0, -1].topk(2)
            gap = min(gap, (best.values[0] - best.values[1]).item())
            row.append(best.indices[0].item())
    return row[len(ids) :], gap


def sequences(seed):
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(4, tiny.SIZE, (n,), generator=g).tolist() for n in LENGTHS]


def log_probs(logits, ids, rows=None):
    """Log-probability of ids[1:], each from the position before it, over the first `rows` ids."""
    lp = logits[:-1, :rows].log_softmax(-1)
    return lp.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def evaluate(folder, inputs):
    """Logits, log-probs, loss and gradients of the stored weights, in f64."""
    model = load(folder, torch.float64)
    logits = [model(torch.tensor([ids])).logits[0] for ids in inputs]
    scored = [log_probs(l, ids) for l, ids in zip(logits, inputs)]
    loss = -torch.cat(scored).mean()
    loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters()}
    return model, logits, scored, loss, gradients


def f32_error(folder, inputs, logits):
    """How far one f32 run of transformers is from the values given."""
    model = load(folder, torch.float32)
    with torch.no_grad():
        return max((model(torch.tensor([ids])).logits[0] - l).abs().max().item() for ids, l in zip(inputs, logits))


def reference(name, folder, inputs, continuations, gap):
    model, logits, scored, loss, gradients = evaluate(folder, inputs)
    rows = [sorted({0, len(ids) // 2, len(ids) - 1}) for ids in inputs]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    out = {
        "name": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "input_ids": inputs,
        "logits": [{"sequence": s, "position": t, "values": nine(logits[s][t])}
                   for s in range(len(inputs)) for t in rows[s]],
        "logits_sum_of_squares": nine([l.square().sum().item() for l in logits]),
        "token_log_probs": [nine(x) for x in scored],
        "loss": nine(loss.item()),
        "gradient_norms": {n: nine(g.norm().item()) for n, g in gradients.items()},
        "gradient_norm_total": nine(torch.stack([g.norm() for g in gradients.values()]).norm().item()),
        "gradient_heads": {n: nine(g.flatten()[:4]) for n, g in gradients.items()},
        "greedy": [{"prompt": ids, "ids": row, "text": tokenizer.decode(row)}
                   for ids, row in zip(inputs, continuations)],
        "greedy_smallest_gap": nine(gap),
        "f32_logits_error": nine(f32_error(folder, inputs, logits)),
        "stop_ids": [tiny.END, tiny.PAD],
        "tokenizer_size": tiny.SIZE,
        "tokenizer": tiny.cases(tokenizer),
        "chat": tiny.chat_cases(tokenizer),
    }
    if model.config.vocab_size > tiny.SIZE:
        known = [log_probs(l.detach(), ids, tiny.SIZE) for l, ids in zip(logits, inputs)]
        out["token_log_probs_of_known_ids"] = [nine(x) for x in known]
    return out


def make(name, style, settings, storage, first_seed):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    tiny.write(style, folder)
    (folder / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
    ends = {"bos_token_id": tiny.START, "eos_token_id": [tiny.END, tiny.PAD], "pad_token_id": tiny.PAD}
    (folder / "generation_config.json").write_text(json.dumps(ends, indent=1) + "\n")
    blank = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    for seed in range(first_seed, first_seed + 500):
        randomise(blank, settings["tie_word_embeddings"], seed)
        store(blank, folder, storage)
        inputs = sequences(seed)
        model = load(folder, torch.float64)
        found = []
        for ids in inputs:
            found.append(greedy(model, ids, CLEAR))
            if found[-1][1] <= CLEAR:
                break
        rows, gap = [f[0] for f in found], min(f[1] for f in found)
        ordinary = all(tiny.END < i < tiny.SIZE for row in rows for i in row)
        varied = all(len(set(row[-8:])) > 2 for row in rows)
        if ordinary and varied and gap > CLEAR:
            break
    else:
        raise SystemExit(f"{name}: no seed with clear greedy choices")
    values = reference(name, folder, inputs, rows, gap)
    (folder / "reference.json").write_text(dump(values) + "\n")
    for file in folder.iterdir():
        file.chmod(0o644)
    size = sum(f.stat().st_size for f in folder.glob("*.safetensors"))
    assert size <= 120_000, (name, size)
    print(f"{name}: seed {seed}, {values['parameters']} parameters, {size} bytes, loss {values['loss']:.4f}, "
          f"gap {gap:.3f}, f32 error {values['f32_logits_error']:.1e}, |g| {values['gradient_norm_total']:.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for number, (name, (style, settings, storage)) in enumerate(MODELS.items()):
        if name in sys.argv[1:] or not sys.argv[1:]:
            make(name, style, settings, storage, 1000 * (number + 1))
