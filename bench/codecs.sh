#!/usr/bin/env bash
# Throughput of powersgd on the slices that a tensor rank of the paper's models sends (2.5B, 8.3B, and 175B
# with 2048 tokens), over ranks, beside PyTorch where /usr/bin/python3 has it, run by run in turns.
#
#   ROUNDS=3 MESSAGES=5 DEVICE=cpu THREADS=2 bench/codecs.sh        after make benches
#
# Encoding makes 6 n m r operations and passes over 7 matrices of the slice's size (E += X, three products
# with E, E -= P Q^T), decoding 2 n m r and one. Medians of all messages; "peak" is the share of the best fp32
# product, "band" that of the bytes a second of y += x, both measured in the same run.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${ROUNDS:=3}" "${MESSAGES:=5}" "${DEVICE:=cpu}" "${BUILD:=build/native-mpi1-onednn}" "${THREADS:=$(nproc)}"

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
have_torch=
/usr/bin/python3 -c 'import torch' 2>/dev/null && have_torch=1
for ((round = 1; round <= ROUNDS; round++)); do
	echo "round $round of $ROUNDS" >&2
	OMP_WAIT_POLICY=passive "$BUILD/bench/codecs" "$DEVICE" "$THREADS" "$MESSAGES" >>"$dir/ours"
	[ -z "$have_torch" ] || LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/openblas-openmp \
		/usr/bin/python3 bench/torch_codecs.py "$THREADS" "$MESSAGES" >>"$dir/torch"
done
touch "$dir/torch"

awk '
	function median(list,    a, n, i, j, t) {
		n = split(list, a, " ")
		for (i = 2; i <= n; i++)
			for (j = i; j > 1 && a[j] + 0 < a[j - 1] + 0; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
		return n ? (a[int((n + 1) / 2)] + a[int(n / 2) + 1]) / 2 : 0
	}
	$1 == "peak" { flops = flops " " $2; band = band " " $3 }
	$1 == "msg" {
		key = $2 " " $3 " " $4
		if (FILENAME ~ /ours$/) {
			if (!(key in enc)) order[++n] = key
			enc[key] = enc[key] " " $5; dec[key] = dec[key] " " $6
		} else {
			tenc[key] = tenc[key] " " $5; tdec[key] = tdec[key] " " $6
		}
	}
	END {
		F = median(flops); B = median(band)
		printf "peak: %.0f GFLOP/s, %.1f GB/s\n", F, B
		print "slice         rank  ratio   encode ms  peak  band   decode ms  peak  band     GB/s   PyTorch/occ-train"
		for (i = 1; i <= n; i++) {
			split(order[i], k, " ")
			nm = k[1] * k[2]; e = median(enc[order[i]]); d = median(dec[order[i]])
			te = median(tenc[order[i]]); td = median(tdec[order[i]])
			printf "%-12s %5d %6.1f %11.2f %4.0f%% %4.0f%% %11.2f %4.0f%% %4.0f%% %8.2f   %s\n", k[1] "x" k[2], k[3],
				nm / k[3] / (k[1] + k[2]), e, 6 * nm * k[3] / e / 1e4 / F, 28 * nm / e / 1e4 / B, d,
				2 * nm * k[3] / d / 1e4 / F, 4 * nm / d / 1e4 / B, 4 * nm / (e + d) / 1e6,
				te ? sprintf("%.2f encode, %.2f decode", te / e, td / d) : "not measured"
		}
	}' "$dir/ours" "$dir/torch"
