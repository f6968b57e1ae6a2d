"""Outside values for the numeric traps: tests/fixtures/numeric.json, one key per subject, described in README.md.

    python make_numeric.py

Rotary tables come from transformers, filters are held against its logits warpers, pass@k is exact rational
arithmetic, Philox and CRC-32C are held against their published check values.
"""
import math
import struct
from fractions import Fraction

import torch
from transformers import LlamaConfig, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from common import nine, write

LOGITS = {
    "three": [2.0, 0.0, -1.0],
    "ties": [1.0, 3.0, 3.0, -2.0, 3.0],
    "large": [1000.0, 999.0, -1000.0, 0.0],
    "flat": [0.0] * 7,
    "mixed": [0.3, -1.7, 2.2, 0.9, 2.15, -0.4, 1.05, -3.0],
}


def log_softmax(x):
    """In f64 with the maximum taken off, by hand."""
    top = max(x)
    total = math.log(math.fsum(math.exp(v - top) for v in x))
    return [v - top - total for v in x]


def log_softmax_rows():
    rows = []
    for name, logits in LOGITS.items():
        for temperature in (1.0, 0.6, 2.0):
            lp = log_softmax([v / temperature for v in logits])
            entropy = -math.fsum(math.exp(v) * v for v in lp)
            rows.append({"name": name, "logits": logits, "temperature": temperature, "log_probs": nine(lp),
                         "entropy": nine(entropy)})
    return rows


def keep(logits, temperature, top_k, top_p):
    """Ids kept after temperature, then top-k, then top-p; ties go to the lowest id, the crossing token stays."""
    scaled = [v / temperature for v in logits]
    order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))[: top_k or len(scaled)]
    lp = log_softmax([scaled[i] for i in order])
    kept, mass = [], 0.0
    for i, v in zip(order, lp):
        if kept and mass >= top_p:
            break
        kept.append(i)
        mass += math.exp(v)
    return sorted(kept), scaled


def library_keeps(logits, temperature, top_k, top_p):
    """The same by transformers' warpers; it keeps every tie at the k-th place, so ask it only without ties."""
    scores = TemperatureLogitsWarper(temperature)(None, torch.tensor([logits], dtype=torch.float64))
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1.0:
        scores = TopPLogitsWarper(top_p)(None, scores)
    return [i for i, v in enumerate(scores[0].tolist()) if v > -math.inf]


def filter_rows():
    rows = []
    for name, temperature, top_k, top_p in [
            ("three", 0.6, 0, 1.0), ("three", 1.0, 2, 1.0), ("three", 1.0, 0, 0.8), ("three", 1.0, 0, 0.9),
            ("three", 1.0, 0, 0.1), ("ties", 1.0, 2, 1.0), ("ties", 1.0, 1, 1.0), ("large", 1.0, 0, 0.9),
            ("flat", 1.0, 3, 1.0), ("mixed", 1.0, 0, 0.9), ("mixed", 0.7, 0, 0.9), ("mixed", 1.0, 4, 1.0),
            ("mixed", 1.0, 4, 0.7), ("mixed", 1.3, 5, 0.95), ("mixed", 1.0, 100, 1.0)]:
        logits = LOGITS[name]
        kept, scaled = keep(logits, temperature, top_k, top_p)
        if len(set(logits)) == len(logits):
            assert kept == library_keeps(logits, temperature, top_k, top_p), (name, temperature, top_k, top_p)
        lp = dict(zip(kept, log_softmax([scaled[i] for i in kept])))
        rows.append({"name": name, "logits": logits, "temperature": temperature, "top_k": top_k, "top_p": top_p,
                     "kept": kept, "log_probs": [nine(lp.get(i)) for i in range(len(logits))]})
    return rows


def pass_at_k():
    """1 - C(n - c, k) / C(n, k)."""
    rows = []
    for n in (1, 2, 4, 8, 16, 64):
        for k in (1, 2, 4, 8, 16):
            if k <= n:
                values = [float(1 - Fraction(math.comb(n - c, k), math.comb(n, k))) for c in range(n + 1)]
                rows.append({"samples": n, "k": k, "by_correct": nine(values)})
    return rows


def rope_rows():
    llama3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    rows = []
    for name, theta, head_dim, context, scaling in [
            ("plain", 10000.0, 64, 2048, None), ("smollm2", 100000.0, 64, 8192, None),
            ("llama3_factor_8", 500000.0, 128, 131072, llama3 | {"factor": 8.0}),
            ("llama3_factor_32", 500000.0, 64, 131072, llama3 | {"factor": 32.0}),
            ("linear_factor_4", 10000.0, 64, 8192, {"rope_type": "linear", "factor": 4.0}),
            ("yarn_factor_4", 1000000.0, 128, 131072, yarn)]:
        heads = 4
        config = LlamaConfig(hidden_size=heads * head_dim, num_attention_heads=heads, head_dim=head_dim,
                             rope_theta=theta, max_position_embeddings=context, rope_scaling=scaling)
        kind = scaling["rope_type"] if scaling else "default"
        inv, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        rows.append({"name": name, "theta": theta, "head_dim": head_dim, "scaling": scaling,
                     "inv_freq": nine(inv.double()), "attention_factor": factor})
    return rows


def rotated_rows():
    """A head vector turned by Hugging Face's half split: (x1 cos - x2 sin, x2 cos + x1 sin)."""
    x = [0.5, -1.0, 2.0, 0.25, 1.5, -0.75, 0.125, 3.0]
    rows = []
    for position in (0, 1, 2, 255, 257, 1000, 4095):
        angles = [position * 10000.0 ** (-2 * i / 8) for i in range(4)]
        half = [(x[i], x[i + 4], math.cos(a), math.sin(a)) for i, a in enumerate(angles)]
        out = [a * c - b * s for a, b, c, s in half] + [b * c + a * s for a, b, c, s in half]
        rows.append({"position": position, "theta": 10000.0, "input": x, "output": nine(out)})
    return rows


def bf16_rows():
    """f32 values rounded to bf16 (nearest, ties to even), and what a small update does without a master copy."""
    values = [0.02, -0.02, 1.0, 1.00390625, 1.01171875, 3.14159265, 255.0, 256.0, 257.0, 258.0, 259.0, 1e-40, 3.3895e38,
              65504.0, 0.1]
    rounded = [{"f32": struct.unpack("f", struct.pack("f", v))[0], "bf16": torch.tensor(v).bfloat16().double().item()}
               for v in values]
    start = torch.tensor(0.02).bfloat16()
    step = 1.7e-5
    without = (start.float() - step).bfloat16()
    master = start.float()
    for _ in range(10):
        master = master - step
    return {"rounded": rounded, "start": start.double().item(), "step": step, "after_one_without_master":
            without.double().item(), "master_after_ten": nine(master.double().item()),
            "bf16_of_master_after_ten": master.bfloat16().double().item()}


def kl_rows():
    """k1, k2, k3 of log-probs (policy, reference) and their derivatives by the policy's log-prob."""
    rows = []
    for policy, reference in [(-1.0, -1.0), (-1.0, -2.0), (-2.0, -1.0), (-0.1, -5.0), (-7.5, -0.25)]:
        d = reference - policy
        rows.append({"policy": policy, "reference": reference,
                     "k1": -d, "k2": d * d / 2, "k3": nine(math.expm1(d) - d),
                     "k1_gradient": 1.0, "k2_gradient": -d, "k3_gradient": nine(1 - math.exp(d))})
    return rows


def gae(rewards, values, mask, gamma, lam):
    """Advantages over masked-in tokens only; a masked token hands on what comes after it."""
    out, later, next_value = [0.0] * len(rewards), 0.0, 0.0
    for t in reversed(range(len(rewards))):
        if mask[t]:
            later = rewards[t] + gamma * next_value - values[t] + gamma * lam * later
            next_value = values[t]
            out[t] = later
    return out


def gae_rows():
    rows = []
    for name, rewards, values, mask, gamma, lam in [
            ("return_minus_value", [0, 0, 0, 1], [0.5, 0.25, -0.125, 0.75], [1, 1, 1, 1], 1.0, 1.0),
            ("one_step", [0, 0, 0, 1], [0.5, 0.25, -0.125, 0.75], [1, 1, 1, 1], 1.0, 0.0),
            ("discounted", [0.1, 0, -0.2, 1], [0.5, 0.25, -0.125, 0.75], [1, 1, 1, 1], 0.9, 0.95),
            ("tool_tokens_inside", [0, 0, 0, 0, 1], [0.5, 9.0, 9.0, -0.125, 0.75], [1, 0, 0, 1, 1], 0.9, 0.95),
            ("single_token", [1], [0.25], [1], 1.0, 0.95)]:
        adv = gae(rewards, values, mask, gamma, lam)
        returns = [a + v if m else 0.0 for a, v, m in zip(adv, values, mask)]
        rows.append({"name": name, "rewards": rewards, "values": values, "mask": mask, "gamma": gamma, "lambda": lam,
                     "advantages": nine(adv), "returns": nine(returns)})
    return rows


def normalisation_rows():
    """Item sums and counts; the loss is one division, however the items are cut into micro-batches."""
    rows = []
    for sums, tokens in [([10, 10], [2, 8]), ([10, 10, 0], [2, 8, 0]), ([3, 5, 7, 9], [1, 4, 2, 9]), ([0, 0], [0, 0])]:
        total, counted = sum(tokens), [s / n for s, n in zip(sums, tokens) if n]
        rows.append({"sums": sums, "tokens": tokens, "over_tokens": nine(sum(sums) / total if total else 0.0),
                     "over_samples": nine(sum(counted) / len(counted) if counted else 0.0)})
    return rows


def chi_square_rows():
    """Values that a chi-square variable exceeds with probability 1e-3 and 1e-6."""
    rows = []
    for freedom in (1, 2, 3, 4, 7, 9, 15, 24, 31, 49):
        row = {"freedom": freedom}
        for name, tail in (("p_1e-3", 1e-3), ("p_1e-6", 1e-6)):
            low, high = torch.zeros((), dtype=torch.float64), torch.full((), 1e3, dtype=torch.float64)
            half = torch.full((), freedom / 2, dtype=torch.float64)
            for _ in range(200):
                middle = (low + high) / 2
                low, high = (middle, high) if torch.special.gammaincc(half, middle / 2) > tail else (low, middle)
            row[name] = nine(low.item())
        rows.append(row)
    return rows


def philox(counter, key):
    """Philox 4x32 with ten rounds."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def philox_rows():
    ones = 0xFFFFFFFF
    published = [([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
                 ([ones] * 4, [ones] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
                 ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
                  [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1])]
    for counter, key, expected in published:
        assert philox(counter, key) == expected, [hex(v) for v in philox(counter, key)]
    more = [([1, 2, 3, 4], [5, 6]), ([7, 0, 0, 0], [42, 0])]
    return [{"counter": c, "key": k, "output": philox(c, k)} for c, k in [p[:2] for p in published] + more]


def crc32c(data):
    """Castagnoli's polynomial, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def crc_rows():
    """Also masked as TensorBoard's record files want it."""
    assert crc32c(b"123456789") == 0xE3069283
    rows = []
    for text in ("", "a", "123456789", "the final answer is 42"):
        crc = crc32c(text.encode())
        rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
        rows.append({"text": text, "crc32c": crc, "masked": (rotated + 0xA282EAD8) & 0xFFFFFFFF})
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    write("numeric.json", {
        "log_softmax": log_softmax_rows(), "filters": filter_rows(), "pass_at_k": pass_at_k(), "rope": rope_rows(),
        "rotated": rotated_rows(), "bf16": bf16_rows(), "kl": kl_rows(), "gae": gae_rows(),
        "normalisation": normalisation_rows(), "chi_square": chi_square_rows(), "philox4x32": philox_rows(),
        "crc32c": crc_rows()})
