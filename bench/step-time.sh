#!/usr/bin/env bash
# Time of a training step of GPT-2 (124 M by default) on this machine's CPU, beside PyTorch where
# /usr/bin/python3 has it (scripts/install-deps torch), run by run in turns. `make bench` calls it.
#
#   ROUNDS=3 STEPS=5 BATCH=4 CONTEXTS="64 256" PRECISIONS="fp32 bf16" MODEL="12 768 12" bench/step-time.sh
#
# GFLOP of a step = tokens x (6 x parameters without positions + 12 x layers x hidden x context); the
# peak is that of matrix products, measured by bench/kernels. The median of all steps decides.
set -euo pipefail
cd "$(dirname "$0")/.."

: "${ROUNDS:=3}" "${STEPS:=5}" "${BATCH:=4}" "${CONTEXTS:=64 256}" "${PRECISIONS:=fp32 bf16}"
: "${MODEL:=12 768 12}" "${BUILD:=build/native-mpi1-onednn}" "${THREADS:=$(nproc)}"
read -r layers hidden heads <<<"$MODEL"

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
echo '{}' >"$dir/none.json" # all comes by --set
# Random ids in the token format of llm.c.
perl -e 'my $n = 200000; srand(1); print pack("l<256", 20240520, 1, $n, (0) x 253);
	print pack("S<*", map { int(rand(50257)) } 1 .. $n)' >"$dir/tokens.bin"

ours() { # T PRECISION: "ms" lines
	rm -rf "$dir/log"
	./occ-train --config "$dir/none.json" --set model.layers="$layers" --set model.hidden="$hidden" --set model.heads="$heads" \
		--set model.seq_len="$1" --set batch.micro="$BATCH" --set batch.global="$BATCH" \
		--set train.precision="$2" --set train.threads="$THREADS" --set train.iters=$((STEPS + 2)) \
		--set data.train="[\"$dir/tokens.bin\"]" --set log.dir="$dir/log" >"$dir/out" 2>&1 ||
		{ cat "$dir/out" >&2; exit 1; }
	sed -n '/"event": *"train"/s/.*"step_ms": *\([0-9.eE+-]*\).*/ms \1/p' "$dir/log/metrics.jsonl" | tail -n +3
}

torch() { # T PRECISION. The OpenMP build of OpenBLAS and kept mappings are worth 2 x and 1.3 x to PyTorch here.
	LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/openblas-openmp MALLOC_TRIM_THRESHOLD_=-1 \
		MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=268435456 \
		/usr/bin/python3 bench/torch_step.py "$layers" "$hidden" "$heads" "$BATCH" "$1" "$2" "$STEPS" \
		"$THREADS"
}

stat_of() { # FILE: "best median"
	sort -k 2n "$1" | awk '{ ms[NR] = $2 } END { print ms[1], (ms[int((NR + 1) / 2)] + ms[int(NR / 2) + 1]) / 2 }'
}

have_torch=
/usr/bin/python3 -c 'import torch' 2>/dev/null && have_torch=1

for ((round = 1; round <= ROUNDS; round++)); do
	for t in $CONTEXTS; do
		for p in $PRECISIONS; do
			echo "round $round of $ROUNDS: context $t, $p" >&2
			ours "$t" "$p" >>"$dir/ours-$t-$p"
			[ -z "$have_torch" ] || torch "$t" "$p" >>"$dir/torch-$t-$p"
		done
	done
done

# The first line of bench/kernels ends in "best product N GFLOP/s"; the rest of its work is not waited for.
for p in $PRECISIONS; do
	{ "$BUILD/bench/kernels" "$p" "$THREADS" "$BATCH" 64 2>/dev/null || true; } |
		sed -n "s/.*best product \([0-9.]*\) GFLOP.*/peak $p \1/p;T;q"
done >"$dir/peak"

echo "GPT-2 $layers x $hidden, batch $BATCH, $THREADS threads, $((ROUNDS * STEPS)) steps each"
echo "context type  occ-train ms best/median  tok/s  GFLOP/s  of peak | PyTorch ms best/median  tok/s | torch/occ"
for t in $CONTEXTS; do
	for p in $PRECISIONS; do
		read -r best median < <(stat_of "$dir/ours-$t-$p")
		tbest=- tmedian=-
		[ -z "$have_torch" ] || read -r tbest tmedian < <(stat_of "$dir/torch-$t-$p")
		awk -v L="$layers" -v C="$hidden" -v B="$BATCH" -v T="$t" -v p="$p" -v best="$best" -v ms="$median" \
			-v tbest="$tbest" -v tms="$tmedian" -v peak="$(sed -n "s/^peak $p //p" "$dir/peak")" 'BEGIN {
			n = 50257 * C + L * (12 * C * C + 13 * C) + 2 * C
			gflop = B * T * (6 * n + 12 * L * C * T) / 1e9
			rate = gflop / ms * 1000
			printf "%7d %s %12.0f / %-10.0f %7.0f %8.0f %7.0f %% |", T, p, best, ms, B * T / ms * 1000,
				rate, peak ? 100 * rate / peak : 0
			if (tms == "-")
				print " not installed"
			else
				printf " %10.0f / %-9.0f %6.0f | %.2f\n", tbest, tms, B * T / tms * 1000, tms / ms
		}'
	done
done
awk '{ printf "peak of matrix products, %s: %.0f GFLOP/s\n", $2, $3 }' "$dir/peak"
