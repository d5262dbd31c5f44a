"""Sums up the complete runs OUT/VARIANT-SEED/metrics.jsonl of bench/quality.sh.

    quality_table.py table OUT VARIANT...    prints a line for each variant
    quality_table.py means OUT VARIANT...    writes the mean training loss as OUT/mean/VARIANT/metrics.jsonl

Differences are to the baseline of the same seed. Seconds are the median of all lines, since the machine may
have other work. Bytes are those of training steps.
"""
import json
import os
import statistics as st
import sys

KINDS = ["pp_forward", "pp_backward", "dp", "embedding"]


def read(out, names):
    """{variant: {seed: events}}; a run that is not finished is left out."""
    runs = {name: {} for name in names}
    for d in sorted(os.listdir(out)) if os.path.isdir(out) else []:
        name, _, seed = d.rpartition("-")
        path = f"{out}/{d}/metrics.jsonl"
        if name not in runs or not os.path.exists(path):
            continue
        with open(path) as f:
            lines = f.read().splitlines()
        if lines and '"finished"' in lines[-1]:
            runs[name][seed] = [json.loads(line) for line in lines]
    return runs


def only(events, kind):
    return [e for e in events if e["event"] == kind]


def loss(events):
    return only(events, "eval")[-1]["loss"]


def number(x, how):
    return format(x, how) if x is not None else "-"


def table(runs):
    print("loss: nats a byte of the validation text; diff: to the baseline, mean over seeds; se: its standard error")
    print("wire / raw bytes: of all = pp_backward + dp + embedding, and of each kind; MB: of all on the wire, a step\n")
    row = "{:22} {:>2} {:>7} {:>8} {:>7} {:>7} {:>10} {:>11} {:>7} {:>9} {:>8} {:>7}"
    print(row.format("variant", "n", "loss", "diff", "se", "all", *KINDS, "MB/step", "s/step"))
    base = runs["baseline"]
    for name, mine in runs.items():
        if not mine:
            continue
        losses = {seed: loss(e) for seed, e in mine.items()}
        diffs = [losses[s] - loss(base[s]) for s in mine if s in base and name != "baseline"]
        se = st.stdev(diffs) / len(diffs) ** 0.5 if len(diffs) > 1 else None
        train = [e for events in mine.values() for e in only(events, "train")]
        steps = sum(only(events, "train")[-1]["iter"] for events in mine.values())
        wire = {k: sum(e["comm"][k]["wire_bytes"] for e in train) for k in KINDS}
        raw = {k: sum(e["comm"][k]["raw_bytes"] for e in train) for k in KINDS}
        for sums in wire, raw:
            sums["all"] = sum(sums[k] for k in KINDS[1:])
        shares = [number(wire[k] / raw[k] if raw[k] else None, ".4f") for k in ["all", *KINDS]]
        print(row.format(name, len(mine), f"{st.mean(losses.values()):.4f}",
                         number(st.mean(diffs) if diffs else None, "+.4f"), number(se, ".4f"), *shares,
                         f"{wire['all'] / steps / 1e6:.3f}", f"{st.median(e['step_ms'] for e in train) / 1000:.3f}"))


def means(runs, out):
    for name, mine in runs.items():
        if not mine:
            continue
        os.makedirs(f"{out}/mean/{name}", exist_ok=True)
        with open(f"{out}/mean/{name}/metrics.jsonl", "w") as f:
            for same in zip(*(only(events, "train") for events in mine.values())):
                mean = st.mean(e["loss"] for e in same)
                print(json.dumps({"event": "train", "iter": same[0]["iter"], "loss": mean}), file=f)


mode, out, *names = sys.argv[1:]
found = read(out, names)
if not any(found.values()):
    sys.exit(f"quality_table.py: {out} holds no complete run")
table(found) if mode == "table" else means(found, out)
