#!/usr/bin/env bash
# Losses and final weights do not depend on the layout (1e-5 relative, over all and per tensor), over pp
# and over transports not in one bit where no sum changes its order. TIME: 240
. tests/lib.sh
cd tests/golden || exit 1

# train NAME HOW TP PP DP ARGS...: 20 steps from the golden weights to $tmp/NAME.{losses,safetensors}.
# A gentle rate: Adam makes full-size steps of gradients that are all rounding.
train() {
	local name=$1 how=$2 tp=$3 pp=$4 dp=$5
	shift 5
	rm -rf "$tmp/log" "$tmp/ckpt"
	launch "$how" $((tp * pp * dp)) --set parallel.tensor="$tp" --set parallel.pipeline="$pp" \
		--set parallel.data="$dp" --set optimizer.lr=1e-3 --set batch.micro=2 \
		--set log.dir="$tmp/log" --set checkpoint.dir="$tmp/ckpt" "$@" >"$tmp/out" 2>&1 &&
		"$OCC_TRAIN" export --checkpoint "$tmp/ckpt" --out "$tmp/$name.safetensors" >"$tmp/out" 2>&1 &&
		sed -n '/"event": *"train"/s/.*"loss": *\([^,}]*\).*/\1/p' "$tmp/log/metrics.jsonl" >"$tmp/$name.losses" &&
		[ "$(wc -l <"$tmp/$name.losses")" = 20 ] && return
	tail -n 3 "$tmp/out" >&2
	return 1
}

near() { # NAME NAME: losses and weights within 1e-5
	paste "$tmp/$1.losses" "$tmp/$2.losses" |
		awk '($1 - $2) ^ 2 > (1e-5 * $1) ^ 2 { print "step", NR, $1, $2; bad = 1 } END { exit bad }' >&2 &&
		"$BUILD/tests/tools/weights" "$tmp/$1.safetensors" "$tmp/$2.safetensors" |
		awk '$3 > 1e-5 { print; bad = 1 } END { exit bad || !NR }' >&2
}

equal() { # NAME NAME: the same bits
	cmp "$tmp/$1.losses" "$tmp/$2.losses" && cmp "$tmp/$1.safetensors" "$tmp/$2.safetensors"
}

tied=(--config cosine.json)
untied=(--config untied.json)
check "tied, one rank" train one thread 1 1 1 "${tied[@]}"
for at in "2 1 1" "4 1 1" "1 2 1" "1 4 1" "1 1 2" "1 1 4" "2 2 1" "2 1 2" "1 2 2" "4 2 1" "4 1 2" \
	"2 4 1" "1 4 2" "2 1 4" "1 2 4" "2 2 2"; do
	# shellcheck disable=SC2086
	check "tied, tp pp dp = $at" train some thread $at "${tied[@]}" &&
		check "tied, tp pp dp = $at against one rank" near one some
done

check "untied, one rank" train one thread 1 1 1 "${untied[@]}"
for pp in 2 4; do
	check "untied, pp $pp" train some thread 1 $pp 1 "${untied[@]}" &&
		check "untied, pp $pp has other bits than pp 1" equal one some
done
check "untied, tp 2 dp 2" train one thread 2 1 2 "${untied[@]}"
check "untied, tp 2 pp 2 dp 2" train some thread 2 2 2 "${untied[@]}" &&
	check "untied, tp 2 dp 2: pp 2 has other bits than pp 1" equal one some
check "untied, 2 threads a rank" train threads thread 2 2 2 "${untied[@]}" --set train.threads=2 &&
	check "the number of threads changes bits" equal some threads
if [ "$OCC_MPI" = 1 ]; then
	check "untied, mpi" train mpi mpi 2 2 2 "${untied[@]}" &&
		check "mpi has other bits than thread" equal some mpi
fi
finish
