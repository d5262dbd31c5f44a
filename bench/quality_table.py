"""Sums up the complete runs OUT/VARIANT-SEED/metrics.jsonl of bench/quality.sh.

    quality_table.py table OUT VARIANT...    prints a line for each variant
    quality_table.py means OUT VARIANT...    writes the mean training loss as OUT/mean/VARIANT/metrics.jsonl, and
                                             of five lines each the mean difference as OUT/difference/VARIANT/...

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


def write(path, losses):
    """{step: loss} as plot-loss reads it; of nothing, nothing."""
    if not losses:
        return
    os.makedirs(path, exist_ok=True)
    with open(f"{path}/metrics.jsonl", "w") as f:
        for step, loss in losses.items():
            print(json.dumps({"event": "train", "iter": step, "loss": loss}), file=f)


def over_seeds(curves):
    return {step: st.mean(c[step] for c in curves) for step in curves[0]} if curves else {}


def means(runs, out):
    curves = {name: {seed: {e["iter"]: e["loss"] for e in only(events, "train")} for seed, events in mine.items()}
              for name, mine in runs.items()}
    base = curves["baseline"]
    for name, mine in curves.items():
        write(f"{out}/mean/{name}", over_seeds(list(mine.values())))
        far = over_seeds([{k: c[k] - base[s][k] for k in c} for s, c in mine.items() if s in base])
        steps = list(far)
        if name != "baseline":
            write(f"{out}/difference/{name}", {steps[i]: st.mean(far[k] for k in steps[i - 4:i + 1])
                                               for i in range(4, len(steps))})


mode, out, *names = sys.argv[1:]
found = read(out, names)
if not any(found.values()):
    sys.exit(f"quality_table.py: {out} holds no complete run")
table(found) if mode == "table" else means(found, out)
