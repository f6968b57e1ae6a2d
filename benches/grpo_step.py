#!/usr/bin/env python3
"""Seconds of one GRPO step, nrlc and TRL side by side in one sitting: the same model, prompts, lengths, f32, threads.

    python benches/grpo_step.py --nrlc target/release/nrlc --model DIR [--rounds 2]

Alternates between the two (A B A B), leaves the first step of each out, prints every step and the medians.
`benches/requirements-trl.txt` has what TRL needs.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

here = pathlib.Path(__file__).resolve().parent


def nrlc(binary, model):
    """Steps of `grpo_step.nrl`, from its metrics."""
    with tempfile.TemporaryDirectory() as tmp:
        out = pathlib.Path(tmp) / "run"
        command = [binary, "run", str(here / "grpo_step.nrl"), "--quiet", "--out", str(out),
                   "--set", f"policy.path={pathlib.Path(model).resolve()}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k.split("/")[1]: round(v, 3) for k, v in r.items() if k.startswith("seconds/")} for r in rows[1:]]


def trl(model):
    command = [sys.executable, str(here / "trl_grpo_step.py"), "--model", model]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    return [r for r in rows if "median_of" not in r]


a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
a.add_argument("--nrlc", default="target/release/nrlc")
a.add_argument("--model", required=True)
a.add_argument("--rounds", type=int, default=2)
a = a.parse_args()
seen = {"nrlc": [], "trl": []}
for _ in range(a.rounds):
    for name, rows in (("nrlc", nrlc(a.nrlc, a.model)), ("trl", trl(a.model))):
        for row in rows:
            print(json.dumps({"system": name, **row}), flush=True)
        seen[name] += [r["step"] for r in rows if isinstance(r.get("step"), (int, float))]
medians = {name: round(statistics.median(steps), 2) for name, steps in seen.items()}
print(json.dumps({"median step seconds": medians, "ratio": round(medians["trl"] / medians["nrlc"], 2)}))
