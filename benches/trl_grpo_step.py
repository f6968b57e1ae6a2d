#!/usr/bin/env python3
"""Seconds of one GRPO step by TRL on the CPU, to be read beside nrlc's own: the same model, prompts and lengths.

    pip install -r benches/requirements-trl.txt
    python benches/trl_grpo_step.py --model DIR [--prompts 4] [--group 4] [--new 64] [--steps 3] [--threads 2]

A step samples prompts x group completions of exactly `new` tokens (the end token is suppressed), scores them, and makes
one AdamW update of all weights in f32; on-policy, no reference model. The prompts are "Question: What is 10+10?
Answer:" and so on. The first step is left out. One JSON line per step, and one of medians at the end, in seconds:
sample, train (forward and backward), other (optimizer, rewards, bookkeeping), step.
"""
import argparse
import json
import logging
import os
import statistics
import tempfile
import time
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def prompts():
    return Dataset.from_list([{"prompt": f"Question: What is {a}+{b}? Answer:"}
                              for a in range(10, 26) for b in range(10, 26)])


def digits(completions, **_):
    """Digits in the text, and a little more for every third completion, so that no group is flat."""
    return [sum(c.isdigit() for c in text) + 0.1 * (i % 3) for i, text in enumerate(completions)]


class Timed(GRPOTrainer):
    """Notes how long sampling and the training step around it take."""

    sampling = training = 0.0

    def _generate_single_turn(self, *args, **kwargs):
        start = time.perf_counter()
        out = super()._generate_single_turn(*args, **kwargs)
        self.sampling += time.perf_counter() - start
        lengths = {len(ids) for ids in out[1]}
        if lengths != {self.args.max_completion_length}:
            raise SystemExit(f"completions of {sorted(lengths)} tokens, {self.args.max_completion_length} were asked for")
        return out

    def training_step(self, *args, **kwargs):
        start = time.perf_counter()
        out = super().training_step(*args, **kwargs)
        self.training += time.perf_counter() - start
        return out

    def log(self, *args, **kwargs):
        """No metrics on the screen."""


class Clock(TrainerCallback):
    def __init__(self):
        self.rows, self.trainer = [], None

    def on_step_begin(self, *args, **kwargs):
        self.trainer.sampling = self.trainer.training = 0.0
        self.start = time.perf_counter()

    def on_step_end(self, *args, **kwargs):
        step = time.perf_counter() - self.start
        sample, train = self.trainer.sampling, self.trainer.training - self.trainer.sampling
        row = {"sample": sample, "train": train, "other": step - sample - train, "step": step}
        self.rows.append({k: round(v, 3) for k, v in row.items()})
        print(json.dumps({"system": "trl", "number": len(self.rows)} | self.rows[-1]), flush=True)


def run(args, scratch):
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    settings = GRPOConfig(
        output_dir=scratch, use_cpu=True, per_device_train_batch_size=args.prompts * args.group,
        num_generations=args.group, max_completion_length=args.new, max_prompt_length=None, max_steps=args.steps + 1,
        num_iterations=1, beta=0.0, temperature=1.0, learning_rate=1e-6, bf16=False, fp16=False,
        gradient_checkpointing=False, save_strategy="no", report_to=[], disable_tqdm=True,
        generation_kwargs={"suppress_tokens": [tokenizer.eos_token_id], "min_new_tokens": args.new})
    clock = Clock()
    clock.trainer = Timed(
        model=AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32), reward_funcs=digits, args=settings,
        train_dataset=prompts(), processing_class=tokenizer, callbacks=[clock])
    clock.trainer.train()
    return clock.rows[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    for name, value in (("prompts", 4), ("group", 4), ("new", 64), ("steps", 3), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        rows = run(args, scratch)
    medians = {k: statistics.median(r[k] for r in rows) for k in rows[0]}
    print(json.dumps({"system": "trl", "dtype": "f32", "median_of": len(rows), "threads": args.threads} | medians))


if __name__ == "__main__":
    main()
