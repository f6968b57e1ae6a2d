"""Group advantages and clipped policy losses with their gradients: tests/fixtures/losses.json.

    python make_losses.py

Everything is written out by hand in f64 (autograd differentiates it); README.md defines each quantity.
"""
import math
import random

import torch

from common import nine, write

EPS = 1e-6


# ---- advantages ---------------------------------------------------------------------------------------------------

def spread(values, scale):
    """Standard deviation of the values, exactly 0 when they are all equal or when there is only one."""
    n = len(values)
    if scale == "none" or n < 2 or max(values) == min(values):
        return 0.0
    mean = math.fsum(values) / n
    squares = math.fsum((v - mean) ** 2 for v in values)
    return math.sqrt(squares / (n if scale == "population" else n - 1))


def group_advantages(rewards, baseline, scale):
    """One group; None is a failed reward: it leaves the group and gets advantage 0."""
    valid = [i for i, r in enumerate(rewards) if r is not None]
    out = [0.0] * len(rewards)
    if len(valid) < 2 and baseline != "none":
        return out
    for i in valid:
        others = [rewards[j] for j in valid if baseline != "leave_one_out" or j != i]
        # A group whose rewards are all equal has difference 0 whatever the mean rounds to.
        mean = others[0] if max(others) == min(others) else math.fsum(others) / len(others)
        difference = rewards[i] - (0.0 if baseline == "none" else mean)
        s = spread(others, scale)
        out[i] = difference / (s + EPS) if s > 0 else difference
    return out


GROUPS = {
    "one_against_all": [[1, 0, 0, 0]],
    "three_against_one": [[1, 1, 0, 1]],
    "zero_spread": [[0, 0, 0, 0], [1, 1, 1, 1]],
    "equal_but_not_exact_in_binary": [[0.1, 0.1, 0.1], [0.35, 0.35, 0.35, 0.0]],
    "graded": [[0.2, 0.9, 0.4, 0.1], [-1.5, 2.25, 0.5, 0.0]],
    "two": [[1, 0], [0.25, 0.75]],
    "one": [[1]],
    "unequal_groups": [[1, 0, 1], [0.5, 0, 0, 1, 0.25]],
    "failed_rewards": [[1, None, 0, 0], [None, 1, None, 1], [None, 0.5, None], [None, None]],
}


def advantage_cases():
    rows = []
    for name, groups in GROUPS.items():
        for baseline in ("leave_one_out", "mean", "none"):
            for scale in ("none", "population", "sample"):
                adv = [nine(group_advantages(g, baseline, scale)) for g in groups]
                rows.append({"name": name, "baseline": baseline, "scale": scale, "eps": EPS, "rewards": groups,
                             "advantages": adv})
    return rows


# ---- losses -------------------------------------------------------------------------------------------------------

DEFAULT = {"clip_low": 0.2, "clip_high": 0.2, "dual": None, "log_ratio_clamp": 20.0, "over": "tokens",
           "kl": None, "correction": None}


def policy_term(config, cur, old, sampler, advantage):
    """Clipped objective of one sample's tokens, times the correction for the sampler's own log-probs."""
    clamp = config["log_ratio_clamp"]
    ratio = (cur - old).clamp(-clamp, clamp).exp()
    clipped = ratio.clamp(1 - config["clip_low"], 1 + config["clip_high"])
    loss = torch.maximum(-advantage * ratio, -advantage * clipped)
    if config["dual"] is not None and advantage < 0:
        loss = torch.minimum(loss, torch.full_like(loss, -advantage * config["dual"]))
    if config["correction"] is not None:
        loss = loss * correction(config["correction"], old, sampler)
    return loss


def correction(rule, old, sampler):
    """exp(old - sampler), truncated; no gradient flows through it because neither input is live."""
    weight = (old - sampler).exp()
    if rule["kind"] == "plain":
        return weight
    if rule["kind"] == "tis":
        return weight.clamp(max=rule["max"])
    inside = (weight >= rule["min"]) & (weight <= rule["max"])
    return torch.where(inside, weight, torch.zeros_like(weight))


def kl_term(rule, cur, ref):
    """k1, k2 or k3 of the current policy to the reference, times the weight."""
    d = (ref - cur).clamp(-rule["log_ratio_clamp"], rule["log_ratio_clamp"])
    value = {"k1": -d, "k2": d * d / 2, "k3": d.exp() - 1 - d}[rule["kind"]]
    if rule["gradient"] == "score":  # value unchanged, gradient + k * d(log-prob): the sampled expectation's own
        value = value * (cur - cur.detach()).exp()
    if rule["output_clamp"] is not None:
        value = value.clamp(-rule["output_clamp"], rule["output_clamp"])
    return rule["weight"] * value


def total_loss(config, samples, live):
    """Sum of item terms over a count fixed beforehand; a sample without trained tokens is not counted."""
    sums, counts = [], []
    for s, cur in zip(samples, live):
        old, sampler, ref = (torch.tensor(s[k], dtype=torch.float64) for k in ("old", "sampler", "reference"))
        term = policy_term(config, cur, old, sampler, s["advantage"])
        if config["kl"] is not None:
            term = term + kl_term(config["kl"], cur, ref)
        mask = torch.tensor(s["mask"], dtype=torch.bool)
        sums.append(torch.where(mask, term, torch.zeros_like(term)).sum())
        counts.append(int(mask.sum()))
    if sum(counts) == 0:
        return torch.zeros((), dtype=torch.float64)
    if config["over"] == "tokens":
        return sum(sums) / sum(counts)
    return sum(x / n for x, n in zip(sums, counts) if n) / sum(n > 0 for n in counts)


def case(name, samples, **settings):
    config = DEFAULT | settings
    live = [torch.tensor(s["current"], dtype=torch.float64, requires_grad=True) for s in samples]
    loss = total_loss(config, samples, live)
    if loss.requires_grad:
        loss.backward()
    gradient = [nine(x.grad if x.grad is not None else torch.zeros_like(x)) for x in live]
    return {"name": name, "config": config, "samples": samples, "loss": nine(loss.item()), "gradient": gradient}


def sample(rng, advantage, n, masked=(), shift=0.5):
    """Random log-probs with six decimals; the four vectors differ by about `shift`."""
    old = [round(-rng.uniform(0.05, 4), 6) for _ in range(n)]
    near = lambda width: [round(v + rng.gauss(0, width), 6) for v in old]
    return {"advantage": advantage, "mask": [int(i not in masked) for i in range(n)], "current": near(shift),
            "old": old, "sampler": near(0.3), "reference": near(shift)}


def exact(advantage, differences, old=-1.0, mask=None):
    """A sample whose log-ratios are given."""
    n = len(differences)
    return {"advantage": advantage, "mask": mask or [1] * n, "current": [round(old + d, 6) for d in differences],
            "old": [old] * n, "sampler": [old] * n, "reference": [old] * n}


def kl(kind, weight=0.1, gradient="plain", log_ratio_clamp=20.0, output_clamp=None):
    return {"kind": kind, "weight": weight, "gradient": gradient, "log_ratio_clamp": log_ratio_clamp,
            "output_clamp": output_clamp}


def loss_cases():
    rng = random.Random(20)
    batch = [sample(rng, 1.25, 5, masked=(0,)), sample(rng, -0.75, 3), sample(rng, -2.0, 7, masked=(2, 3)),
             sample(rng, 0.5, 1)]
    empty = {"advantage": 0.5, "mask": [], "current": [], "old": [], "sampler": [], "reference": []}
    masked = batch[0] | {"mask": [0] * 5}
    up, down = round(math.log(1.5), 6), round(math.log(0.6), 6)
    first = [s | {"current": s["old"]} for s in batch]
    rows = []
    for over in ("tokens", "samples"):
        rows += [
            case(f"clip_over_{over}", batch, over=over),
            case(f"asymmetric_clip_over_{over}", batch, over=over, clip_high=0.28),
            case(f"empty_completion_over_{over}", [batch[1], empty, batch[2]], over=over, clip_high=0.28),
            case(f"one_masked_sample_over_{over}", [batch[1], masked, batch[2]], over=over, clip_high=0.28),
            case(f"no_masked_sample_over_{over}", [batch[1], batch[2]], over=over, clip_high=0.28),
            case(f"fully_masked_batch_over_{over}", [masked, empty], over=over, kl=kl("k3")),
            case(f"first_update_over_{over}", first, over=over, clip_high=0.28),
            case(f"everything_over_{over}", batch, over=over, clip_high=0.28, dual=1.5, kl=kl("k3", 0.05),
                 correction={"kind": "tis", "max": 1.2}),
        ]
    rows += [
        case("four_quadrants", [exact(1.0, [up, down]), exact(-1.0, [up, down])], clip_high=0.28),
        case("bounds_are_not_swapped", [exact(1.0, [round(math.log(1.25), 6)]), exact(-1.0, [round(math.log(0.78), 6)])],
             clip_high=0.28),
        case("dual_clip", [exact(-1.0, [2.0, 0.1, -2.0]), exact(1.0, [2.0, 0.1, -2.0])], clip_high=0.28, dual=3.0),
        case("zero_advantage_log_ratio_100", [exact(0.0, [100.0, 0.1, -100.0])]),
        case("negative_advantage_log_ratio_100", [exact(-1.0, [100.0, 0.1])]),
        case("negative_advantage_log_ratio_100_dual", [exact(-1.0, [100.0, 0.1])], dual=10.0),
        case("positive_advantage_log_ratio_100", [exact(1.0, [100.0, -100.0, 0.1])]),
        case("log_ratio_clamp_2", [exact(-1.0, [3.0, 1.0, -3.0])], log_ratio_clamp=2.0),
        case("wild_values_under_the_mask", [exact(1.0, [0.1, 500.0, -500.0], mask=[1, 0, 0])], kl=kl("k3")),
        case("correction_plain", batch, correction={"kind": "plain"}),
        case("correction_tis", batch, correction={"kind": "tis", "max": 1.1}),
        case("correction_icepop", batch, correction={"kind": "icepop", "min": 0.8, "max": 1.25}),
        case("zero_spread_group", [s | {"advantage": 0.0} for s in batch]),
        case("one_against_all_group", [s | {"advantage": a} for s, a in
                                       zip(batch, nine(group_advantages([1, 0, 0, 0], "leave_one_out", "sample")))]),
    ]
    for kind in ("k1", "k2", "k3"):
        for gradient in ("plain", "score"):
            rows.append(case(f"{kind}_{gradient}", batch, kl=kl(kind, gradient=gradient)))
    far = exact(0.0, [30.0, -30.0, 3.0, -3.0])
    rows += [case("k3_clamped_input", [far], kl=kl("k3")),
             case("k3_clamped_input_and_output", [far], kl=kl("k3", output_clamp=10.0)),
             case("k1_clamped_output_score", [far], kl=kl("k1", gradient="score", output_clamp=10.0)),
             case("kl_only_over_samples", [s | {"advantage": 0.0} for s in batch], kl=kl("k3", 1.0), over="samples")]
    return rows


if __name__ == "__main__":
    write("losses.json", {"advantages": advantage_cases(), "losses": loss_cases()})
