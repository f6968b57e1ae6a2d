"""Reference values of any Hugging Face directory, or a comparison with some.

    python check_directory.py values DIR OUT.json       # the values, in the form of the checkpoints' reference.json
    python check_directory.py same DIR OTHER            # do both directories give the same logits and token ids?

`values` scores three fixed texts (and takes gradients of their token-mean loss) in f64, and continues the first two by
64 greedy tokens. `same` is how an exported model is held against the one it came from; it loads both as a user would,
with AutoModelForCausalLM and AutoTokenizer, and exits with status 1 on a difference above 1e-4.
"""
import argparse
import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from common import dump, nine
from make_reference import evaluate, f32_error

TEXTS = ["What is 12 + 34?", "Once upon a time, in a small village by the sea, there lived an old clockmaker who",
         "def add(a, b):\n    return a + b\n\nprint(add(2, 3))  # 5\n\n7 * 8 = 56\n100 - 1 = 99"]
GREEDY = 64


def continuation(model, ids):
    """Greedy, with the model's cache, not stopping at end ids; and the smallest gap of the two best logits."""
    row, gap, cache, fed = list(ids), float("inf"), None, list(ids)
    with torch.no_grad():
        for _ in range(GREEDY):
            out = model(torch.tensor([fed]), past_key_values=cache, use_cache=True)
            cache, best = out.past_key_values, out.logits[0, -1].topk(2)
            gap = min(gap, (best.values[0] - best.values[1]).item())
            fed = [best.indices[0].item()]
            row += fed
    return row[len(ids) :], gap


def values(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = [tokenizer(text).input_ids for text in TEXTS]
    model, logits, scored, loss, gradients = evaluate(folder, inputs)
    found = [continuation(model, ids) for ids in inputs[:2]]
    rows = [sorted({0, len(ids) // 2, len(ids) - 1}) for ids in inputs]
    best = [[int(v) for v in l.argmax(-1)] for l in logits]
    return {
        "name": pathlib.Path(folder).name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "input_ids": inputs,
        "logits": [{"sequence": s, "position": t, "values": nine(logits[s][t])}
                   for s in range(len(inputs)) for t in rows[s]],
        "logits_sum_of_squares": nine([l.square().sum().item() for l in logits]),
        "best_ids": best,
        "token_log_probs": [nine(x) for x in scored],
        "loss": nine(loss.item()),
        "gradient_norms": {n: nine(g.norm().item()) for n, g in gradients.items()},
        "gradient_norm_total": nine(torch.stack([g.norm() for g in gradients.values()]).norm().item()),
        "greedy": [{"prompt": ids, "ids": row, "text": tokenizer.decode(row), "smallest_gap": nine(gap)}
                   for ids, (row, gap) in zip(inputs, found)],
        "f32_logits_error": nine(f32_error(folder, inputs, logits)),
    }


def same(one, other):
    """Largest difference of logits on the fixed texts; the token ids must be equal."""
    tokenizers = [AutoTokenizer.from_pretrained(d) for d in (one, other)]
    models = [AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32).eval() for d in (one, other)]
    worst = 0.0
    for text in TEXTS:
        ids = [t(text).input_ids for t in tokenizers]
        if ids[0] != ids[1]:
            sys.exit(f"different ids for {text!r}: {ids[0]} and {ids[1]}")
        with torch.no_grad():
            a, b = (m(torch.tensor([ids[0]])).logits for m in models)
        worst = max(worst, (a - b).abs().max().item())
    print(f"largest difference of logits: {worst:.2e}")
    return worst <= 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["values", "same"])
    parser.add_argument("dir")
    parser.add_argument("other", metavar="OUT.json | OTHER")
    args = parser.parse_args()
    if args.what == "same":
        sys.exit(0 if same(args.dir, args.other) else 1)
    pathlib.Path(args.other).write_text(dump(values(args.dir)) + "\n")


if __name__ == "__main__":
    main()
