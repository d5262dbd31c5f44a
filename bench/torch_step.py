#!/usr/bin/python3
"""Times training steps of GPT-2 in PyTorch on the CPU, as bench/step-time.sh compares with.

    torch_step.py LAYERS HIDDEN HEADS BATCH T PRECISION STEPS THREADS

PRECISION is fp32 or bf16 (autocast). Prints one line "ms MS" per timed step (two untimed ones first).
The model is plain GPT-2 with a vocabulary of 50304 rows and tied embeddings; AdamW and clipping are part
of the step, as in occ-train. Random tokens: the time does not depend on them.
"""
import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

VOCAB = 50304


class Block(nn.Module):
    def __init__(self, c, heads, t):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.qkv, self.proj = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.fc, self.out = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.heads = heads
        self.register_buffer("mask", torch.full((t, t), -math.inf).triu(1), persistent=False)

    def attend(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).split(c, 2))
        scores = q @ k.transpose(2, 3) * (c // self.heads) ** -0.5 + self.mask
        return self.proj((scores.softmax(3) @ v).transpose(1, 2).reshape(b, t, c))

    def forward(self, x):
        x = x + self.attend(self.ln1(x))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers, c, heads, t):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, c), nn.Embedding(1024, c)
        self.blocks = nn.ModuleList(Block(c, heads, t) for _ in range(layers))
        self.ln = nn.LayerNorm(c)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens):
        x, y = tokens[:, :-1], tokens[:, 1:]
        h = self.wte(x) + self.wpe.weight[:x.shape[1]]
        for block in self.blocks:
            h = block(h)
        logits = self.ln(h) @ self.wte.weight.T
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def main():
    layers, c, heads, b, t = map(int, sys.argv[1:6])
    precision, steps, threads = sys.argv[6], int(sys.argv[7]), int(sys.argv[8])
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    model = GPT(layers, c, heads, t)
    decay = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1},
                                   {"params": rest, "weight_decay": 0.0}],
                                  lr=3e-4, betas=(0.9, 0.95), foreach=True)
    for step in range(steps + 2):
        tokens = torch.randint(50257, (b, t + 1))
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step >= 2:
            print(f"ms {(time.perf_counter() - began) * 1000:.1f}", flush=True)


main()
