#!/usr/bin/env python3
"""Times training steps of GPT-2 in PyTorch on a GPU, as scripts/gpu-check compares with.

    gpt2_torch.py LAYERS HIDDEN HEADS BATCH T STEPS

bf16 by autocast, fp32 weights and moments, torch.compile, scaled_dot_product_attention, fused AdamW with
clipping: PyTorch at its best without other packages. One line "ms MS" per timed step, after ten untimed ones.
Random tokens: the time does not depend on them.
"""
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

VOCAB = 50304


class Block(nn.Module):
    def __init__(self, c, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.qkv, self.proj = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.fc, self.out = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.heads = heads

    def attend(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))

    def forward(self, x):
        x = x + self.attend(self.ln1(x))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers, c, heads, t):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, c), nn.Embedding(t, c)
        self.blocks = nn.ModuleList(Block(c, heads) for _ in range(layers))
        self.ln = nn.LayerNorm(c)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe.weight[:x.shape[1]]
        for block in self.blocks:
            h = block(h)
        logits = F.linear(self.ln(h), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def main():
    layers, c, heads, b, t, steps = map(int, sys.argv[1:7])
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    model = GPT(layers, c, heads, t).cuda()
    decay = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1},
                                   {"params": rest, "weight_decay": 0.0}],
                                  lr=3e-4, betas=(0.9, 0.95), fused=True)
    compiled = torch.compile(model)
    for step in range(steps + 10):
        tokens = torch.randint(50257, (b, t + 1), device="cuda")
        torch.cuda.synchronize()
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch.cuda.synchronize()
        if step >= 10:
            print(f"ms {(time.perf_counter() - began) * 1000:.2f}", flush=True)


main()
