#!/usr/bin/python3
"""The golden reference: GPT-2 and its training step written once more, in float64 PyTorch.

    gpt2_ref.py [DIR]      (default: the folder of this script)

reads DIR/text.txt and writes, the same bytes each time,
    tokens.bin              the text as 61 ids, in the token format of llm.c
    tied.safetensors        initial weights in Hugging Face's names (untied: with lm_head.weight)
    untied.safetensors
    NAME.txt, NAME.json     for each run of RUNS: what must come out, and its configuration
tests/cli/golden.sh compares occ-train with the .txt files; nobody needs PyTorch for that. A .txt file
has lines "step T LOSS GRAD_NORM LR" and, after the last step, "weight NAME NORM PROBE", where PROBE is
the sum over all elements i (from 0, in the file's order) of w_i * sin(i + 1). There the key third of a
qkv bias counts as 0: its exact gradient is 0, so what moves it is rounding alone.

Nothing here is taken from the C code but the contract: LayerNorm eps 1e-5, GELU in its tanh form, scores
over the root of the head size, loss as the mean over the global batch, gradient norm before clipping,
AdamW with decoupled decay of the 2-D tensors only.
"""
import json
import math
import os
import struct
import sys

import numpy
import torch

LAYERS, HIDDEN, HEADS, SEQ, VOCAB = 4, 24, 4, 16, 61
STEPS = 20

BASE = dict(batch=8, tied=True, lr=1e-2, min_lr=1e-3, warmup=4, decay=20, schedule="cosine", wsd=0,
            beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.0)
RUNS = {
    "cosine": BASE,
    "untied": dict(BASE, tied=False, schedule="linear", warmup=0, clip=0.0, weight_decay=0.0),
    "wsd": dict(BASE, schedule="wsd", warmup=3, wsd=8, decay=18, clip=0.4, beta2=0.99, eps=1e-6),
    "constant": dict(BASE, tied=False, schedule="constant", warmup=30, weight_decay=0.3),
}


class Draw:
    """Normal-looking numbers whose bits depend on no library: twelve uniforms of splitmix64."""

    def __init__(self, seed):
        self.state = seed

    def uniform(self):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return ((z ^ (z >> 31)) >> 40) / (1 << 24)

    def tensor(self, shape, mean, std):
        n = math.prod(shape)
        x = [mean + std * (sum(self.uniform() for _ in range(12)) - 6.0) for _ in range(n)]
        return numpy.array(x, dtype=numpy.float32).reshape(shape)


def draw_weights():
    """Every tensor differs from what it would be by default, so that none can be forgotten."""
    d = Draw(1)
    C = HIDDEN
    w = {"wte.weight": d.tensor((VOCAB, C), 0, 0.1), "wpe.weight": d.tensor((SEQ, C), 0, 0.1)}
    for i in range(LAYERS):
        h = f"h.{i}."
        for ln in ("ln_1", "ln_2"):
            w[h + ln + ".weight"] = d.tensor((C,), 1, 0.1)
            w[h + ln + ".bias"] = d.tensor((C,), 0, 0.1)
        for name, rows, cols in (("attn.c_attn", C, 3 * C), ("attn.c_proj", C, C),
                                 ("mlp.c_fc", C, 4 * C), ("mlp.c_proj", 4 * C, C)):
            w[h + name + ".weight"] = d.tensor((rows, cols), 0, 0.15)  # (in, out)
            w[h + name + ".bias"] = d.tensor((cols,), 0, 0.1)
    w["ln_f.weight"] = d.tensor((C,), 1, 0.1)
    w["ln_f.bias"] = d.tensor((C,), 0, 0.1)
    w["lm_head.weight"] = d.tensor((VOCAB, C), 0, 0.1)
    return w


def write_safetensors(path, tensors):
    head, at, names = {"__metadata__": {"format": "pt"}}, 0, sorted(tensors)
    for name in names:
        t = tensors[name]
        head[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            f.write(tensors[name].astype("<f4").tobytes())


def token_ids(text):
    kinds = sorted(set(text))
    ids = {b: i * (VOCAB - 1) // (len(kinds) - 1) for i, b in enumerate(kinds)}  # 0 and 60 occur
    return [ids[b] for b in text]


def write_tokens(path, tokens):
    with open(path, "wb") as f:
        f.write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253))
        f.write(struct.pack(f"<{len(tokens)}H", *tokens))


def layer_norm(x, w, b):
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(var + 1e-5) * w + b


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def attention(x, p, h):
    B, T, C = x.shape
    size = C // HEADS
    q, k, v = (y.reshape(B, T, HEADS, size).transpose(1, 2)
               for y in (x @ p[h + "attn.c_attn.weight"] + p[h + "attn.c_attn.bias"]).split(C, 2))
    scores = q @ k.transpose(2, 3) / math.sqrt(size)
    scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
    y = (scores.softmax(3) @ v).transpose(1, 2).reshape(B, T, C)
    return y @ p[h + "attn.c_proj.weight"] + p[h + "attn.c_proj.bias"]


def mlp(x, p, h):
    y = gelu(x @ p[h + "mlp.c_fc.weight"] + p[h + "mlp.c_fc.bias"])
    return y @ p[h + "mlp.c_proj.weight"] + p[h + "mlp.c_proj.bias"]


def embed(tokens, p):
    return p["wte.weight"][tokens[:, :-1]] + p["wpe.weight"]


def layer(x, p, i):
    h = f"h.{i}."
    x = x + attention(layer_norm(x, p[h + "ln_1.weight"], p[h + "ln_1.bias"]), p, h)
    return x + mlp(layer_norm(x, p[h + "ln_2.weight"], p[h + "ln_2.bias"]), p, h)


def head(x, tokens, p):
    x = layer_norm(x, p["ln_f.weight"], p["ln_f.bias"])
    logits = x @ p.get("lm_head.weight", p["wte.weight"]).T
    target = tokens[:, 1:].unsqueeze(2)
    return (logits.logsumexp(2) - logits.gather(2, target).squeeze(2)).mean()


def loss_of(tokens, p):
    x = embed(tokens, p)
    for i in range(LAYERS):
        x = layer(x, p, i)
    return head(x, tokens, p)


def gradients(rows, p):
    """The loss of a global batch and a gradient for each weight."""
    loss = loss_of(rows, p)
    return loss.item(), dict(zip(p, torch.autograd.grad(loss, list(p.values()))))


def learning_rate(t, o):
    if t < o["warmup"]:
        return o["lr"] * (t + 1) / o["warmup"]
    if o["schedule"] == "constant":
        return o["lr"]
    if t >= o["decay"]:
        return o["min_lr"]
    span = o["lr"] - o["min_lr"]
    r = (t - o["warmup"]) / (o["decay"] - o["warmup"])
    if o["schedule"] == "cosine":
        return o["min_lr"] + 0.5 * (1 + math.cos(math.pi * r)) * span
    if o["schedule"] == "linear":
        return o["lr"] - r * span
    left = o["decay"] - t
    return o["lr"] if left > o["wsd"] else o["min_lr"] + span * left / o["wsd"]


def batch(tokens, t, size):
    samples = (len(tokens) - 1) // SEQ
    rows = [(t * size + j) % samples * SEQ for j in range(size)]
    return torch.tensor([tokens[r:r + SEQ + 1] for r in rows])


def train(weights, tokens, o, gradients=gradients):
    """The lines of the golden file. `gradients` is another way to them (compress_ref.py)."""
    p = {n: torch.tensor(w, dtype=torch.float64, requires_grad=True) for n, w in weights.items()}
    m = {n: torch.zeros_like(x) for n, x in p.items()}
    v = {n: torch.zeros_like(x) for n, x in p.items()}
    for t in range(STEPS):
        loss, grads = gradients(batch(tokens, t, o["batch"]), p)
        norm = math.sqrt(sum(float((g ** 2).sum()) for g in grads.values()))
        scale = min(1.0, o["clip"] / (norm + 1e-6)) if o["clip"] else 1.0
        lr = learning_rate(t, o)
        yield f"step {t + 1} {loss:.12g} {norm:.12g} {lr:.12g}"
        with torch.no_grad():
            for n, x in p.items():
                g = grads[n] * scale
                m[n] = o["beta1"] * m[n] + (1 - o["beta1"]) * g
                v[n] = o["beta2"] * v[n] + (1 - o["beta2"]) * g * g
                update = (m[n] / (1 - o["beta1"] ** (t + 1))) / (
                    (v[n] / (1 - o["beta2"] ** (t + 1))).sqrt() + o["eps"])
                x -= lr * (update + (o["weight_decay"] * x if x.dim() == 2 else 0))
    for n in sorted(p):
        x = p[n].detach().reshape(-1).clone()
        if n.endswith("attn.c_attn.bias"):
            x[HIDDEN:2 * HIDDEN] = 0
        probe = (x * torch.sin(torch.arange(1, len(x) + 1, dtype=torch.float64))).sum()
        yield f"weight {n} {x.norm():.12g} {probe:.12g}"


def config(o):
    """The run as a configuration of occ-train; paths are relative to DIR."""
    return {
        "model": {"layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "seq_len": SEQ,
                  "vocab_size": VOCAB, "vocab_multiple": 1, "tie_embeddings": o["tied"]},
        "batch": {"micro": 1, "global": o["batch"]},
        "optimizer": {"lr": o["lr"], "min_lr": o["min_lr"], "warmup_iters": o["warmup"],
                      "decay_iters": o["decay"], "schedule": o["schedule"], "wsd_iters": o["wsd"],
                      "beta1": o["beta1"], "beta2": o["beta2"], "eps": o["eps"],
                      "weight_decay": o["weight_decay"], "clip_grad": o["clip"]},
        "train": {"iters": STEPS, "precision": "fp32", "timeout_s": 60},
        "init": {"load": ("tied" if o["tied"] else "untied") + ".safetensors"},
        "data": {"train": ["tokens.bin"], "shuffle": False},
    }


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    os.chdir(folder)
    torch.set_num_threads(1)
    with open("text.txt", "rb") as f:
        tokens = token_ids(f.read())
    write_tokens("tokens.bin", tokens)
    untied = draw_weights()
    tied = {n: w for n, w in untied.items() if n != "lm_head.weight"}
    write_safetensors("tied.safetensors", tied)
    write_safetensors("untied.safetensors", untied)
    for name, o in RUNS.items():
        with open(name + ".txt", "w", encoding="ascii") as f:
            f.writelines(line + "\n" for line in train(tied if o["tied"] else untied, tokens, o))
        with open(name + ".json", "w", encoding="ascii") as f:
            json.dump(config(o), f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
