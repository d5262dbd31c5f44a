#!/usr/bin/env bash
# nanoGPT's small CPU setting: tinyshakespeare by characters, 4 layers, 4 heads, width 128, context 64,
# batch 12, 2000 steps, no dropout. Prints the loss on the whole validation split (the last tenth of the
# characters) for three seeds and their mean. The text is ASCII, so bytes are its characters; of the 256
# ids 65 occur, the others cost nothing.
#
#   bench/nanogpt-shakespeare.sh TINYSHAKESPEARE.txt        SEEDS="1 2 3" LR=1e-3 in the environment
set -euo pipefail
[ -r "${1:-}" ] || { echo "usage: bench/nanogpt-shakespeare.sh TINYSHAKESPEARE.txt" >&2; exit 2; }
text=$(realpath "$1")
cd "$(dirname "$0")/.."
: "${SEEDS:=1 2 3}" "${LR:=1e-3}" "${STEPS:=2000}"

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
echo '{}' >"$dir/none.json" # all comes by --set
n=$(wc -c <"$text")
cut=$((n * 9 / 10))
head -c "$cut" "$text" >"$dir/train.txt"
tail -c +$((cut + 1)) "$text" >"$dir/valid.txt"
# Batches that cover the validation split once: floor((bytes - 1) / 64) samples of which 12 make a batch.
batches=$((((n - cut - 1) / 64 + 11) / 12))

for seed in $SEEDS; do
	./occ-train --config "$dir/none.json" --set model.layers=4 --set model.heads=4 --set model.hidden=128 --set model.seq_len=64 \
		--set model.vocab_size=256 --set batch.micro=12 --set batch.global=12 \
		--set optimizer.lr="$LR" --set optimizer.min_lr=1e-4 --set optimizer.warmup_iters=100 \
		--set optimizer.beta2=0.99 --set optimizer.weight_decay=0.1 --set optimizer.clip_grad=1 \
		--set train.iters="$STEPS" --set train.seed="$seed" --set log.every=100 \
		--set log.dir="$dir/$seed" --set eval.iters="$batches" \
		--set data.train="[\"$dir/train.txt\"]" --set data.valid="[\"$dir/valid.txt\"]" \
		>"$dir/out" 2>&1 || { cat "$dir/out" >&2; exit 1; }
	loss=$(sed -n '/"event": *"eval"/s/.*"loss": *\([0-9.eE+-]*\).*/\1/p' "$dir/$seed/metrics.jsonl" | tail -n 1)
	echo "seed $seed: validation loss $loss"
done | tee "$dir/losses"
awk '{ sum += $NF } END { printf "mean of %d seeds: %.4f nats a character\n", NR, sum / NR }' "$dir/losses"
echo "learning rate $LR (warm-up 100, cosine to 1e-4), validation: $batches batches of 12 x 64"
