#!/usr/bin/python3
"""PowerSGD on a link in PyTorch on the CPU, as bench/codecs.sh compares with.

    torch_codecs.py THREADS MESSAGES

The same step as bench/codecs.c: E += X, Q = orth(Q), P = orth(E Q), Q = E^T P, E -= P Q^T; then P Q^T as the
receiver makes it. orth is Householder QR, the fastest that PyTorch has here. Prints "msg N M RANK ENCODE_MS
DECODE_MS" lines, two untimed messages before each.
"""
import sys
import time

import torch


def orth(a):
    return torch.linalg.qr(a)[0]


def main():
    threads, messages = map(int, sys.argv[1:])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    for n, m in (1024, 1920), (1024, 3072), (2048, 12288):
        x, y = torch.randn(n, m), torch.empty(n, m)
        for rank in range(8, 41, 8):
            e, q = torch.zeros(n, m), torch.randn(m, rank)
            for i in range(-2, messages):
                start = time.perf_counter()
                e.add_(x)
                p = orth(e @ orth(q))
                q = e.T @ p
                e.addmm_(p, q.T, alpha=-1)
                middle = time.perf_counter()
                torch.mm(p, q.T, out=y)
                end = time.perf_counter()
                if i >= 0:
                    print(f"msg {n} {m} {rank} {1e3 * (middle - start):.3f} {1e3 * (end - middle):.3f}")


if __name__ == "__main__":
    with torch.no_grad():
        main()
