"""What the generators of this folder share: numbers with nine digits and JSON that diffs line by line."""
import json
import pathlib

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"


def nine(x):
    """Numbers, nested lists or tensors of them, rounded to nine digits."""
    if hasattr(x, "tolist"):
        x = x.tolist()
    if isinstance(x, list):
        return [nine(v) for v in x]
    return x if x is None else float(f"{x:.9g}")


def dump(value, depth=2):
    """JSON with one line per row at the given depth."""
    if depth == 0 or not isinstance(value, (dict, list)) or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f"{json.dumps(k)}: {dump(v, depth - 1)}" for k, v in value.items()) + "\n}"
    return "[\n" + ",\n".join(dump(v, depth - 1) for v in value) + "\n]"


def write(name, value):
    path = FIXTURES / name
    path.write_text(dump(value) + "\n")
    print(f"{name}: {path.stat().st_size} bytes, " + ", ".join(f"{k} {len(v)}" for k, v in value.items()))
