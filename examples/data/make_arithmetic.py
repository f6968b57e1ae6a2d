#!/usr/bin/env python3
"""Writes arithmetic_train.jsonl (800 rows) and arithmetic_test.jsonl (200 rows) beside itself.

    python3 make_arithmetic.py

Each row is {"question": text, "answer": whole number as text}. The question is plain text to be continued, not a chat:
three solved lines that show the form, then the one to finish, as in

    7 * 3 = 21
    5 + 8 = 13
    19 - 7 = 12
    9 + 8 =

A reply is right when the first number of its first line is the answer. Two fifths each are sums and differences, one
fifth are products. Every fifth equation is kept for the test rows: the training rows neither ask nor show it. The same rows come out every
time.
"""
import json
import pathlib
import random

ROWS = {"train": 800, "test": 200}
SIGNS = "+-*"
ASKED = "+-+-*"


def equations(sign):
    """All (text, answer) of one kind: sums and differences of 2..15, products of 2..12."""
    top = 12 if sign == "*" else 15
    pairs = [(a, b) for a in range(2, top + 1) for b in range(2, top + 1)]
    if sign == "+":
        return [(f"{a} + {b}", a + b) for a, b in pairs]
    if sign == "-":
        return [(f"{a + b} - {b}", a) for a, b in pairs]
    return [(f"{a} * {b}", a * b) for a, b in pairs]


def split(rng):
    """Per sign, the equations of the training rows and those of the test rows."""
    train, test = {}, {}
    for sign in SIGNS:
        found = equations(sign)
        rng.shuffle(found)
        cut = len(found) // 5
        test[sign], train[sign] = found[:cut], found[cut:]
    return train, test


def row(rng, shown, asked, sign):
    lines = [f"{text} = {answer}" for text, answer in (rng.choice(shown[s]) for s in rng.sample(SIGNS, 3))]
    text, answer = rng.choice(asked[sign])
    return {"question": "\n".join(lines + [f"{text} ="]), "answer": str(answer)}


def rows(rng, shown, asked, count):
    found = {}
    while len(found) < count:
        made = row(rng, shown, asked, ASKED[len(found) % len(ASKED)])
        found.setdefault(made["question"], made)
    out = list(found.values())
    rng.shuffle(out)
    return out


def main():
    here, rng = pathlib.Path(__file__).resolve().parent, random.Random(11)
    train, test = split(rng)
    for name, asked in (("train", train), ("test", test)):
        made = rows(rng, train, asked, ROWS[name])
        (here / f"arithmetic_{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in made))


if __name__ == "__main__":
    main()
