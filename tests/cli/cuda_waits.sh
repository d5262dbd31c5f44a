#!/usr/bin/env bash
# The waits between queues are tested: streams that run as late as they may give the losses of those that are
# never late; where the emulation drops one wait of the program, some do not. And a GPU that runs empty whenever CUDA
# may want it (to load code, say) keeps nobody waiting for ever. TIME: 120
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

# hurried LOAD STREAMS KEY=VALUE...: as the program trains when nothing waits
hurried() {
	local load=$1 streams=$2 way sets=() key
	shift 2
	for key in "$@"; do sets+=(--set "${key/#back./compress.pipeline_backward.}"); done
	for way in '' "$load"; do
		rm -rf "$tmp/log$way"
		OCC_EMU_LOAD=$way OCC_EMU_STREAMS=$streams OCC_EMU_GPUS=4 timeout -k 5 20 mpirun -q -n 4 "$OCC_TRAIN" \
			--config cosine.json --set train.device=cuda --set train.iters=2 --set log.dir="$tmp/log$way" \
			--set compress.scope=all "${sets[@]}" >"$tmp/out" 2>&1 </dev/null || { tail -n 3 "$tmp/out" >&2; return 1; }
		grep -o '"loss":[^,]*,"grad_norm":[^,]*' "$tmp/log$way/metrics.jsonl" >"$tmp/losses$way"
	done
	[ -s "$tmp/losses" ] && cmp "$tmp/losses" "$tmp/losses$load"
}
late="back.codec=powersgd back.rank=2 back.start_iter=1"
while read -r often load streams keys; do
	[ "$often" = always ] || long || continue
	# shellcheck disable=SC2086
	check "$load, $streams: $keys" hurried "$load" "$streams" $keys
done <<-END
	always waits eager parallel.pipeline=4 $late
	always always lazy:1 parallel.pipeline=2 parallel.tensor=2 batch.micro=1
	long waits lazy:2 parallel.pipeline=4 $late model.recompute=full
	long always eager parallel.pipeline=4 back.codec=errbound back.epsilon=1e-5 back.mark=all
	long waits eager parallel.pipeline=2 parallel.data=2 model.dropout=0.1 eval.every=1 data.valid=["tokens.bin"]
	long always lazy:3 parallel.pipeline=4 compress.pipeline_forward.codec=topk compress.pipeline_forward.fraction=0.1
END
finish
