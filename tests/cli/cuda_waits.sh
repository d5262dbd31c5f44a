#!/usr/bin/env bash
# The waits between queues are tested: streams that run as late as they may give the losses of those that are
# never late; where the emulation drops one wait of the program, some do not. TIME: 120
. tests/lib.sh
on_cuda
if [ "$OCC_MPI" != 1 ]; then
	skip "mpirun: this build has no MPI or a sanitizer that it does not suit"
	finish
fi
cd tests/golden || exit 1

# train STREAMS WAIT: two steps by NCCL, of which the WAIT-th wait for an event is dropped; into `losses`
train() {
	rm -rf "$tmp/log"
	OCC_EMU_GPUS=4 OCC_EMU_STREAMS=$1 OCC_EMU_SKIP=$2 timeout -k 5 20 mpirun -q -n 4 "$OCC_TRAIN" \
		--config cosine.json --set train.device=cuda --set parallel.pipeline=2 --set parallel.data=2 \
		--set train.iters=2 --set train.timeout_s=5 --set log.dir="$tmp/log" >"$tmp/out" 2>&1 </dev/null
	losses=$(grep -o '"loss":[^,]*,"grad_norm":[^,]*' "$tmp/log/metrics.jsonl" 2>/dev/null)
}

check "never late" train eager 0
right=$losses
for seed in 1 2; do
	check "late, seed $seed" train lazy:$seed 0
	check "late, seed $seed: $losses" [ "$losses" = "$right" ]
done
caught=''
for wait in 30 35 40 45 50 55 60 65; do
	train lazy:1 $wait
	[ "$losses" = "$right" ] || caught+=" $wait"
done
check "of eight dropped waits only these are seen: ${caught:-none}" [ "$(wc -w <<<"$caught")" -ge 2 ]
finish
