"""AdamW for 1,000 updates, global-norm clipping and learning-rate schedules: tests/fixtures/optimizer.json.

    python make_optimizer.py

AdamW is written out in f64 and held against torch.optim.AdamW in f64; schedules are the closed forms of README.md,
held against transformers' own. Gradients come from an integer formula whose values are exact in f32.
"""
import math

import torch
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from common import nine, write

SIZES = {"a": 4, "b": 6, "c": 5}
KEPT = (1, 2, 10, 100, 1000)


def unit(n):
    """Integer n to a multiple of 2^-24 in [-0.5, 0.5): the same bits in every language."""
    return ((n * 2654435761 % 2**32) >> 8) / 2**24 - 0.5


def first(number, i):
    return unit(7_000_000 + 1000 * number + i)


def gradient(update, number, i):
    """Of element i of parameter `number` at an update counted from 1."""
    return unit(update * 4096 + 64 * number + i) * (1.0 + number)


def vector(f, number, size):
    return torch.tensor([f(number, i) for i in range(size)], dtype=torch.float64)


class ByHand:
    """Decoupled decay, bias-corrected moments, eps outside the root."""

    def __init__(self, weights, lr, beta1, beta2, eps, decay):
        self.weights, self.lr, self.betas, self.eps, self.decay = weights, lr, (beta1, beta2), eps, decay
        self.m = [torch.zeros_like(w) for w in weights]
        self.v = [torch.zeros_like(w) for w in weights]
        self.updates = 0

    def step(self, gradients, lr=None):
        lr = self.lr if lr is None else lr
        self.updates += 1
        b1, b2 = self.betas
        for w, m, v, g, decay in zip(self.weights, self.m, self.v, gradients, self.decay):
            w.mul_(1 - lr * decay)
            m.mul_(b1).add_((1 - b1) * g)
            v.mul_(b2).add_((1 - b2) * g * g)
            root = (v / (1 - b2**self.updates)).sqrt()
            w.sub_(lr * (m / (1 - b1**self.updates)) / (root + self.eps))

    def state(self):
        return [{"parameter": n, "value": nine(w), "m": nine(m), "v": nine(v)}
                for n, w, m, v in zip(SIZES, self.weights, self.m, self.v)]


def adamw_cases():
    settings = [("usual", 1e-3, 0.9, 0.999, 1e-8, 0.01, []), ("short_memory", 3e-3, 0.9, 0.95, 1e-8, 0.1, []),
                ("no_decay", 1e-2, 0.9, 0.99, 1e-8, 0.0, []), ("large_eps", 1e-2, 0.8, 0.9, 1e-2, 0.05, []),
                ("no_decay_on_c", 1e-3, 0.9, 0.999, 1e-8, 0.1, ["c"])]
    rows = []
    for name, lr, b1, b2, eps, decay, spared in settings:
        decays = [0.0 if n in spared else decay for n in SIZES]
        mine = [vector(first, k, size) for k, size in enumerate(SIZES.values())]
        hand = ByHand(mine, lr, b1, b2, eps, decays)
        theirs = [torch.nn.Parameter(w.clone()) for w in mine]
        groups = [{"params": [p], "weight_decay": d} for p, d in zip(theirs, decays)]
        library = torch.optim.AdamW(groups, lr=lr, betas=(b1, b2), eps=eps)
        states = []
        for update in range(1, 1001):
            gradients = [vector(lambda k, i: gradient(update, k, i), k, s) for k, s in enumerate(SIZES.values())]
            hand.step(gradients)
            for p, g in zip(theirs, gradients):
                p.grad = g
            library.step()
            if update in KEPT:
                states.append({"update": update, "parameters": hand.state()})
        worst = max((w - p.detach()).abs().max().item() for w, p in zip(mine, theirs))
        assert worst < 1e-12, (name, worst)
        rows.append({"name": name, "lr": lr, "betas": [b1, b2], "eps": eps, "decay": decay, "no_decay": spared,
                     "states": states})
    return rows


def clip_cases():
    """Scaled by limit / norm when the norm over all parameters is above the limit; torch adds 1e-6 to the norm."""
    rows = []
    for update, limit in ((1, 1.0), (2, 0.5), (3, 100.0), (4, 1e-3)):
        gradients = [vector(lambda k, i: gradient(update, k, i), k, s) for k, s in enumerate(SIZES.values())]
        norm = math.sqrt(sum((g * g).sum().item() for g in gradients))
        factor = min(1.0, limit / (norm + 1e-6))
        rows.append({"update": update, "limit": limit, "norm": nine(norm), "factor": nine(factor),
                     "clipped": [nine(g * factor) for g in gradients]})
    return rows


def schedule(kind, base, lowest, warmup, total, update):
    """Learning rate of an update counted from 1; the last update of the run has the lowest value."""
    if update <= warmup:
        return base * update / warmup
    done = (update - warmup) / (total - warmup) if total > warmup else 1.0
    left = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}[kind]
    return lowest + (base - lowest) * left


def library_rate(make, base, warmup, total, update):
    """transformers counts from 0: its rate after `update` scheduler steps."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base)
    made = make(optimizer, warmup, total)
    return base * made.lr_lambdas[0](update)


def schedule_cases():
    rows = []
    for kind, base, lowest, warmup, total in [
            ("constant", 3e-4, 3e-4, 0, 100), ("constant", 3e-4, 3e-4, 20, 200), ("linear", 1e-3, 0.0, 10, 110),
            ("linear", 1e-3, 1e-4, 0, 50), ("cosine", 2e-5, 0.0, 0, 300), ("cosine", 5e-7, 5e-8, 10, 100),
            ("cosine", 1e-3, 0.0, 5, 6)]:
        at = sorted({1, 2, max(1, warmup - 1), max(1, warmup), min(total, warmup + 1), (warmup + total) // 2, total})
        rates = [schedule(kind, base, lowest, warmup, total, u) for u in at]
        make = {"linear": get_linear_schedule_with_warmup, "cosine": get_cosine_schedule_with_warmup}.get(kind)
        if make and lowest == 0.0:
            for u, r in zip(at, rates):
                assert abs(library_rate(make, base, warmup, total, u) - r) < 1e-15, (kind, u)
        rows.append({"kind": kind, "lr": base, "lowest": lowest, "warmup": warmup, "total": total, "updates": at,
                     "rates": nine(rates)})
    return rows


def together():
    """Warm-up, clipping and AdamW in one run of 20 updates."""
    weights = [vector(first, k, size) for k, size in enumerate(SIZES.values())]
    hand = ByHand(weights, 1e-2, 0.9, 0.99, 1e-8, [0.01] * 3)
    norms = []
    for update in range(1, 21):
        gradients = [vector(lambda k, i: gradient(update, k, i), k, s) for k, s in enumerate(SIZES.values())]
        norm = math.sqrt(sum((g * g).sum().item() for g in gradients))
        norms.append(norm)
        factor = min(1.0, 1.0 / (norm + 1e-6))
        hand.step([g * factor for g in gradients], schedule("cosine", 1e-2, 1e-3, 5, 20, update))
    settings = {"lr": 1e-2, "lowest": 1e-3, "kind": "cosine", "warmup": 5, "total": 20, "betas": [0.9, 0.99],
                "eps": 1e-8, "decay": 0.01, "clip_norm": 1.0}
    return [settings | {"norms": nine(norms), "parameters": hand.state()}]


if __name__ == "__main__":
    torch.set_num_threads(1)
    formula = [{"update": u, "number": k, "index": i, "value": gradient(u, k, i)}
               for u, k, i in ((1, 0, 0), (1, 1, 5), (2, 2, 4), (1000, 2, 0))]
    start = [{"parameter": n, "value": vector(first, k, s).tolist()} for k, (n, s) in enumerate(SIZES.items())]
    write("optimizer.json", {"start": start, "gradient_formula": formula, "adamw": adamw_cases(), "clip": clip_cases(),
                             "schedules": schedule_cases(), "together": together()})
