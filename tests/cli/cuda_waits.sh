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
# What is late also depends on when messages come, so a dropped wait is seen now and then: two of up to 48.
for at in 1:{30..65..5} 2:{31..66..5} 3:{32..67..5} 4:{33..68..5} 5:{34..69..5} 6:{30..65..5}; do
	[ "$(wc -w <<<"$caught")" -lt 2 ] || break
	train "lazy:${at%:*}" "${at#*:}"
	[ "$losses" = "$right" ] || caught+=" $at"
done
check "of 48 dropped waits only these are seen: ${caught:-none}" [ "$(wc -w <<<"$caught")" -ge 2 ]
finish
