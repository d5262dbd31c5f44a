"""Sums up the complete runs OUT/VARIANT-RATE-ROUND of scripts/ladder.

    ladder_table.py ladder OUT WARM VARIANT...       tables, and OUT/ladder.svg
    ladder_table.py embedding OUT WARM unfused fused the sum of the tied embedding, with and without fusion

The first WARM steps of a run are not counted in times. Times are medians of all counted steps of all rounds.
"""
import json
import os
import re
import statistics as st
import sys

SENT = ["pp_forward", "pp_backward", "dp", "embedding", "tp"]


class Run:
    def __init__(self, path, warm):
        with open(f"{path}/metrics.jsonl") as f:
            events = [json.loads(line) for line in f]
        start, steps = events[0], [e for e in events if e["event"] == "train"]
        with open(f"{path}/counters") as f:
            names, *rows = [line.split() for line in f]
        self.nodes = [dict(zip(names, row)) for row in rows]
        self.ranks = start["ranks"]
        self.steps = len(steps)
        if self.steps <= warm:
            sys.exit(f"ladder_table.py: {path} has {self.steps} steps, and WARM={warm} are not counted")
        self.tokens = steps[0]["tokens"] / steps[0]["iter"]
        self.ms = [e["step_ms"] for e in steps[warm:]]
        # of a rank, a step: what it waited for each kind of traffic
        self.exposed = {k: [e["comm"][k]["exposed_ms"] / self.ranks for e in steps[warm:]] for k in SENT}
        self.wire = {k: sum(e["comm"][k]["wire_bytes"] for e in steps) / self.steps for k in SENT}
        self.said = sum(e["comm"][k]["inter_node_wire_bytes"] for e in steps for k in SENT) / self.steps
        self.tx = [int(n["tx_bytes"]) / self.steps for n in self.nodes]
        self.median = st.median(self.ms)


def read(out, warm, names):
    """{rate: {variant: {round: Run}}}, rates from slow to fast; a run that is not finished is left out."""
    found = {}
    for d in os.listdir(out) if os.path.isdir(out) else []:
        name, rate, number = (d.rsplit("-", 2) + ["", ""])[:3]
        path = f"{out}/{d}"
        if name not in names or not os.path.exists(f"{path}/counters") or not os.path.getsize(f"{path}/counters"):
            continue
        with open(f"{path}/metrics.jsonl") as f:
            if '"finished"' not in f.read().splitlines()[-1]:
                continue
        found.setdefault(rate, {}).setdefault(name, {})[int(number)] = Run(path, warm)
    return {r: {n: found[r][n] for n in names if n in found[r]} for r in sorted(found, key=bits)}


def bits(rate):
    m = re.match(r"([0-9.]+)([kmg]?)bit$", rate)
    return float(m[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[m[2]] if m else float("inf")


def pooled(runs, what):
    return [x for r in runs.values() for x in what(r)]


def quartiles(x):
    return st.quantiles(x, n=4, method="inclusive") if len(x) > 1 else [x[0]] * 3


def ratios(base, runs, what=lambda r: r.median):
    """Of each round that both have: this over the base."""
    return [what(runs[i]) / what(base[i]) for i in sorted(runs) if i in base]


def spread(x, how):
    return f"{st.median(x):{how}} ({min(x):{how}}..{max(x):{how}})" if x else "-"


def predicted(out, name, rate, mark):
    """What the plan expected of a step, in ms; None if it was not asked."""
    path = f"{out}/{name}-{rate}.plan"
    if not os.path.exists(path) or not os.path.getsize(path):
        return None
    with open(path) as f:
        return json.load(f)["step_ms"][mark]


def order(times):
    return " < ".join(sorted(times, key=times.get))


def ladder(found, out):
    print("ms/step: median (quartiles) of all steps and rounds n; tok/s: from that median; time / baseline: median (least..")
    print("most) over rounds of the ratio of medians at the same rate in the same round; MB/step: between nodes, all ranks,")
    print("as the program says, and sent by all interfaces as the kernel counts (mpirun's start included); waited: of a rank,")
    print("ms a step with nothing else to do, for pp_forward + pp_backward, dp, embedding; plan: predicted ms/step (and over")
    print("the measured), by plan --measure told that all nodes share this machine's cores\n")
    row = "{:8} {:13} {:>2} {:>22} {:>7} {:>22} {:>8} {:>8} {:>8} {:>8} {:>8} {:>14}"
    print(row.format("rate", "variant", "n", "ms/step", "tok/s", "time / baseline", "MB said", "MB sent", "w. pp", "w. dp",
                     "w. emb", "plan"))
    orders = []
    for rate, variants in found.items():
        base = variants.get("baseline", {})
        took, plan = {}, {}
        for name, runs in variants.items():
            low, mid, high = quartiles(pooled(runs, lambda r: r.ms))
            first = next(iter(runs.values()))
            wait = {k: st.median(pooled(runs, lambda r, k=k: r.exposed[k])) for k in SENT}
            guess = predicted(out, name, rate, "all" if name.endswith("_all") else "tail")
            took[name] = mid
            if guess:
                plan[name] = guess
            print(row.format(rate, name, len(runs), f"{mid:.0f} ({low:.0f}..{high:.0f})", f"{1e3 * first.tokens / mid:.0f}",
                             spread(ratios(base, runs), ".3f"), f"{st.mean(r.said for r in runs.values()) / 1e6:.3f}",
                             f"{st.mean(sum(r.tx) for r in runs.values()) / 1e6:.3f}",
                             f"{wait['pp_forward'] + wait['pp_backward']:.0f}", f"{wait['dp']:.0f}",
                             f"{wait['embedding']:.0f}", f"{guess:.0f} ({guess / mid:.2f})" if guess else "-"))
        orders.append((rate, order(took), order(plan)))
    print("\nfrom fast to slow, as measured and as predicted")
    for rate, is_so, was_said in orders:
        print(f"{rate:8} {is_so}\n{'':8} {was_said}")
    print("\nMB a step that each node's interface sent, mean over rates and rounds")
    names = {n: None for v in found.values() for n in v}
    for name in names:
        tx = [r.tx for v in found.values() for r in v.get(name, {}).values()]
        print(f"{name:13}", *(f"{st.mean(node) / 1e6:7.3f}" for node in zip(*tx)))
    picture(found, list(names), f"{out}/ladder.svg")
    print(f"\npicture: {out}/ladder.svg")


COLOURS = ["#555555", "#c6dbef", "#6baed6", "#2171b5", "#08306b", "#fdd0a2", "#fd8d3c", "#d94801"]


def picture(found, names, path):
    """Bars of the median step time, grouped by rate, with lines from quartile to quartile."""
    width, height, left, right, top, bottom = 960, 480, 60, 130, 20, 40
    data = {(rate, n): quartiles(pooled(v[n], lambda r: r.ms)) for rate, v in found.items() for n in v}
    most = max(q[2] for q in data.values())
    unit = 10 ** (len(str(int(most))) - 1)
    tick = next(t for t in (unit / 5, unit / 2, unit, 2 * unit) if most / t <= 8)
    group = (width - left - right) / len(found)
    bar = group * 0.85 / len(names)

    def y(ms):
        return height - bottom - ms / (1.05 * most) * (height - top - bottom)

    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>',
           f'<text x="{-(height - bottom + top) / 2:.0f}" y="14" transform="rotate(-90)" text-anchor="middle">ms a step</text>']
    for i in range(int(1.05 * most / tick) + 1):
        svg.append(f'<path d="M{left} {y(i * tick):.1f}H{width - right}" stroke="#dddddd"/>'
                   f'<text x="{left - 6}" y="{y(i * tick) + 4:.1f}" text-anchor="end">{i * tick:g}</text>')
    for g, rate in enumerate(found):
        svg.append(f'<text x="{left + (g + 0.5) * group:.1f}" y="{height - 14}" text-anchor="middle">{rate}/s a link</text>')
        for b, name in enumerate(names):
            if (rate, name) not in data:
                continue
            low, mid, high = data[rate, name]
            x = left + g * group + 0.075 * group + b * bar
            svg.append(f'<rect x="{x:.1f}" y="{y(mid):.1f}" width="{bar - 1:.1f}" height="{y(0) - y(mid):.1f}" '
                       f'fill="{COLOURS[b % len(COLOURS)]}"><title>{name}, {rate}: {mid:.0f} ms</title></rect>'
                       f'<path d="M{x + bar / 2:.1f} {y(low):.1f}V{y(high):.1f}" stroke="black"/>')
    for b, name in enumerate(names):
        svg.append(f'<rect x="{width - right + 10}" y="{top + 18 * b}" width="12" height="12" '
                   f'fill="{COLOURS[b % len(COLOURS)]}"/><text x="{width - right + 28}" y="{top + 18 * b + 11}">{name}</text>')
    with open(path, "w") as f:
        f.write("\n".join(svg + ["</svg>\n"]))


def embedding(found):
    print("Unfused, the embedding's gradient is summed with the rest over D = 4 replicas (dp), then over 2 stages (embedding);")
    print("fused, in one sum over 8 ranks (embedding), and dp holds the rest alone. So its own time is, of what a rank waits")
    print("a step, dp + embedding unfused - dp fused, and embedding fused. By bytes: (3D-2)/(2D-1) = 10/7 = 1.429.")
    print("Per round from medians over steps; median (least..most) over rounds n. step: difference of step times. line: what")
    print("the embedding's bytes take at the rate, where packets carry 1448 of 1514 bytes: the least that is possible.\n")
    row = "{:8} {:>2} {:>20} {:>20} {:>21} {:>18} {:>18} {:>12}"
    print(row.format("rate", "n", "unfused ms", "fused ms", "unfused / fused", "difference ms", "step ms", "line ms"))
    for rate, variants in found.items():
        if len(variants) < 2:
            continue
        one, two = variants["unfused"], variants["fused"]
        both = [i for i in sorted(one) if i in two]

        def wait(run, *kinds):
            return st.median(sum(x) for x in zip(*(run.exposed[k] for k in kinds)))

        apart = [wait(one[i], "dp", "embedding") - wait(two[i], "dp") for i in both]
        fused = [wait(two[i], "embedding") for i in both]
        steps = [one[i].median - two[i].median for i in both]
        sent = [two[i].wire["embedding"] for i in both]  # over 2D ranks, 2 (2D - 1) tables in all
        table = st.mean(sent) / 14
        line = [f"{parts * table * 8e3 / bits(rate) * 1514 / 1448:.0f}" for parts in (10 / 4, 14 / 8)]
        print(row.format(rate, len(both), spread(apart, ".0f"), spread(fused, ".0f"),
                         spread([a / f for a, f in zip(apart, fused)], ".3f"),
                         spread([a - f for a, f in zip(apart, fused)], ".0f"), spread(steps, ".0f"),
                         " / ".join(line)))


mode, out, warm, *names = sys.argv[1:]
found = read(out, int(warm), names)
if not found:
    sys.exit(f"ladder_table.py: {out} holds no complete run")
ladder(found, out) if mode == "ladder" else embedding(found)
