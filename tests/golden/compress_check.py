#!/usr/bin/python3
"""Checks compress_ref.py by itself; prints what was found and exits 1 if anything is wrong.

    compress_check.py      (takes a minute)

What it must fulfil whatever the C code does: at full rank it is gpt2_ref.py; nothing that a message lost is
lost for good, or all of it without feedback; as many messages as the marks ask for are compressed, to the
rank and no worse than the best approximation; power iterations in float32 in the place of the singular
value decomposition, as occ-train has them, stay far within the bounds of tests/cli/compress_golden.sh;
and compression changes the losses by more than these.
"""
import os
import sys

import torch

import compress_ref as own
import gpt2_ref as ref

WEIGHTS, TOKENS = own.inputs(os.path.dirname(os.path.abspath(__file__)))
LOSS_BOUND, NORM_BOUND = 5e-4, 1e-2  # of the test
failed = 0


def check(ok, words):
    global failed
    failed += not ok
    print("ok  " if ok else "FAIL", words)


def curve(training):
    return [[float(x) for x in line.split()[2:4]] for line in own.curve(WEIGHTS, TOKENS, training)]


def apart(a, b, column):
    return max(abs(x[column] - y[column]) / abs(y[column]) for x, y in zip(a, b))


class Audit(own.Training):
    """Keeps the sum of what was lost, and compares each message with its singular values."""

    def __init__(self, *run):
        super().__init__(*run)
        self.lost, self.messages, self.worst = {}, 0, 0.0

    def note(self, key, before, x, sent, rank):
        left = torch.linalg.svdvals(x)[rank:]
        self.messages += 1
        # As far from x as the best approximation of this rank, and of this rank itself.
        self.worst = max(self.worst, abs(float((x - sent).norm() / left.norm()) - 1),
                         float(torch.linalg.svdvals(sent)[rank:].max() / sent.norm()))
        self.lost[key] = self.lost.get(key, 0) + before - sent

    def send_back(self, d, s, k, g):
        held = self.residual.get((d, s), 0)
        sent = super().send_back(d, s, k, g)
        if sent is not g:
            flat = g.reshape(-1, ref.HIDDEN)
            self.note((d, s), flat, flat + held, sent.reshape(flat.shape), self.link["rank"])
        return sent

    def sum_replicas(self, s, name, parts):
        held = self.held((s, name))
        result = super().sum_replicas(s, name, parts)
        dense = sum(parts)
        if not torch.equal(result, dense):
            dense = own.outputs_first(name, dense)
            sent = own.outputs_first(name, result)
            self.note((s, name), dense, dense + held, sent, self.sums["rank"])
        return result

    def held(self, key):
        if isinstance(key[1], int):  # a link: replica, stage
            return self.residual.get(key, 0)
        return sum(self.residual.get((d, *key), 0) for d in range(self.D))

    def unaccounted(self):
        """The largest part of what was lost that no residual holds."""
        return max(float((x - self.held(key)).norm() / x.norm()) for key, x in self.lost.items())


def expected_messages(stages, replicas, compress):
    link, sums = compress.get("pipeline_backward"), compress.get("data_parallel")
    n = 0
    if link:  # pp 4: links of 3, 2 and 1 micro-batches in the tail, of 8 each otherwise
        n += replicas * (3 + 2 + 1 if link["mark"] == "tail" else 3 * 8)
    if sums:  # four matrices a layer, wpe, and wte once or twice
        n += 4 * (3 if sums["stages"] == 3 else 4) + 1
        n += 0 if "embedding" in compress else 2 if stages > 1 and sums["stages"] == "all" else 1
    return n * ref.STEPS


def at_rank(compress, rank):
    return {site: dict(o, rank=rank) if "rank" in o else o for site, o in compress.items()}


class Powers(own.Training):
    """Iterates powers from where the last message of a stream ended, in float32, as occ-train does."""

    def __init__(self, *run):
        super().__init__(*run)
        self.q, self.start = {}, torch.Generator().manual_seed(1)

    def basis(self, key, x, rank):
        q = self.q.get(key)
        if q is None:
            q = torch.randn(x.shape[1], min(rank, *x.shape), generator=self.start)
        x32 = x.float()
        for _ in range((self.sums if isinstance(key[1], str) else self.link)["iterations"]):
            u = torch.linalg.qr(x32 @ torch.linalg.qr(q)[0])[0]
            q = x32.T @ u
        self.q[key] = q
        return u.double()


def check_run(name, stages, replicas, compress, dense):
    def say(words, a, b):
        return f"{name}: {words}: loss {apart(a, b, 0):.1e} norm {apart(a, b, 1):.1e}"

    full = curve(own.Training(stages, replicas, at_rank(compress, 1000)))
    near = max(apart(full, dense, 0), apart(full, dense, 1)) < 2e-12  # 12 digits
    check(near, say("full rank against dense training", full, dense))
    if not compress:
        return
    audit = Audit(stages, replicas, compress)
    exact = curve(audit)
    wanted = expected_messages(stages, replicas, compress)
    check(audit.messages == wanted, f"{name}: {audit.messages} messages of {wanted}")
    check(audit.worst < 1e-12, f"{name}: off rank and best approximation by {audit.worst:.1e}")
    gone = audit.unaccounted()
    check(gone == 1 if name.endswith("forget") else gone < 1e-12, f"{name}: lost, not held: {gone:.1e}")
    power = curve(Powers(stages, replicas, compress))
    near = apart(power, exact, 0) < LOSS_BOUND / 5 and apart(power, exact, 1) < NORM_BOUND / 5
    check(near, say("power iterations against exact", power, exact))
    check(apart(exact, dense, 0) > 2 * LOSS_BOUND, say("against dense training", exact, dense))


def main():
    torch.set_num_threads(1)
    dense = curve(ref.gradients)
    for name, run in own.RUNS.items():
        check_run(name, *run, dense)
    sys.exit(failed > 0)


main()
