#!/usr/bin/env bash
# Training with GPU code, which runs on the CPU: losses, gradient norms and weights of 20 steps against the
# independent implementations of tests/golden, and where those have no run against the ref device, by tensor,
# pipeline and data parallel layouts, on threads and under mpirun, with every codec. TIME: 300
. tests/lib.sh
on_cuda
. tests/golden/lib.sh
gpu=(--set train.device=cuda)

for at in "1 1 1" "2 1 1" "4 1 1" "1 2 1" "1 4 1" "1 1 2" "1 1 4" "2 2 2"; do
	# shellcheck disable=SC2086
	golden cosine thread $at 2 none "${gpu[@]}"
done
golden cosine thread 2 2 2 1 full "${gpu[@]}"
for name in untied wsd constant; do
	golden $name thread 2 2 2 2 none "${gpu[@]}" --set checkpoint.dir="$tmp/ckpt-$name"
	golden_weights $name "$tmp/ckpt-$name"
done
if [ "$OCC_MPI" = 1 ]; then
	golden cosine mpi 2 2 2 1 none "${gpu[@]}"
else
	skip "mpirun: this build has no MPI or a sanitizer that it does not suit"
fi

# Two to three digits of bf16, as on the other devices.
loss_bound=3e-3 norm_bound=4e-2
golden cosine thread 2 2 2 2 none "${gpu[@]}" --set train.precision=bf16

# Compressed: what compress_golden asks of the other devices.
loss_bound=5e-4 norm_bound=1e-2
for run in "cb 4 2" "cb-forget 4 2" "dp 1 4" "sc 4 2" "optimus 4 2"; do
	read -r name pp dp <<<"$run"
	golden "compress-$name" thread 1 "$pp" "$dp" 1 none "${gpu[@]}"
done
[ "$OCC_MPI" = 0 ] || golden compress-optimus mpi 1 4 2 1 none "${gpu[@]}"

# Every other codec, wherever it may stand: as the ref device trains.
losses() { sed -n '/"event": *"train"/s/.*"loss": *\([^,}]*\).*/\1/p' "$1/metrics.jsonl"; }
trace() { # DEVICE ARGS...
	rm -rf "$tmp/$1"
	launch thread 4 --config compress-none.json --set parallel.pipeline=2 --set parallel.data=2 \
		--set compress.scope=all --set train.device="$1" --set log.dir="$tmp/$1" "${@:2}" >"$tmp/out" 2>&1 ||
		{ tail -n 3 "$tmp/out" >&2; return 1; }
}
same() {
	paste <(losses "$tmp/ref") <(losses "$tmp/cuda") |
		awk '($1 - $2) ^ 2 > (1e-4 * $1) ^ 2 { print "step", NR, $1, $2; bad = 1 } END { exit bad || NR < 20 }' >&2
}
while read -r -a keys; do
	sets=()
	for key in "${keys[@]}"; do
		key=${key/#back./compress.pipeline_backward.} key=${key/#fwd./compress.pipeline_forward.}
		sets+=(--set "${key/#dp./compress.data_parallel.}")
	done
	check "ref: ${keys[*]}" trace ref "${sets[@]}" && check "cuda: ${keys[*]}" trace cuda "${sets[@]}" &&
		check "cuda is not ref: ${keys[*]}" same
done <<-END
	back.codec=topk back.fraction=0.1 back.mark=all dp.codec=topk dp.fraction=0.05
	back.codec=quant back.bits=4 back.mark=all dp.codec=quant dp.bits=8
	back.codec=cast back.mark=all dp.codec=cast dp.type=fp16
	back.codec=errbound back.epsilon=1e-5 back.mark=all dp.codec=errbound dp.epsilon=1e-5
	fwd.codec=dct fwd.fraction=0.25
END
finish
