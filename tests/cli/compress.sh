#!/usr/bin/env bash
# Compression in the life of a run: what was saved goes on bit for bit, moves to other layouts, and a step
# that is skipped leaves no trace; replicas and transports agree. TIME: 150
. tests/lib.sh
cd tests/golden || exit 1
back=compress.pipeline_backward forward=compress.pipeline_forward sums=compress.data_parallel
base=(--config cosine.json --set parallel.pipeline=2 --set parallel.data=2 --set batch.micro=1
	--set compress.scope=all --set optimizer.decay_iters=20 --set train.iters=20)

# run HOW DIR ARGS...: a run of base over 4 ranks with its checkpoint in $tmp/DIR.
run() {
	launch "$1" 4 "${base[@]}" --set checkpoint.dir="$tmp/$2" "${@:3}" >"$tmp/out" 2>&1 && return
	tail -n 3 "$tmp/out" >&2
	return 1
}
same() { # DIR DIR: all files of step 20 have the same bytes
	diff -r "$tmp/$1/step-00000020" "$tmp/$2/step-00000020" >"$tmp/diff" && return
	head -n 3 "$tmp/diff" >&2
	return 1
}

codecs=(
	"$back.codec=powersgd $back.rank=2 $sums.codec=powersgd $sums.rank=3 compress.embedding.fused=true"
	"$back.codec=topk $back.fraction=0.1 $back.mark=all $sums.codec=dct $sums.fraction=0.1 $sums.period=6"
	"$back.codec=errbound $back.epsilon=1e-4 $sums.codec=errbound $sums.epsilon=1e-3"
	"$forward.codec=dct $forward.fraction=0.3 $sums.codec=auto $sums.rank=8"
	"$forward.codec=quant $forward.feedback=lazy $back.codec=cast $sums.codec=quant $sums.bits=4"
	"$back.codec=powersgd $back.rank=2 $back.start_iter=15 $sums.codec=topk train.precision=bf16"
	"$back.codec=powersgd $back.rank=2 $sums.codec=powersgd $sums.rank=3 parallel.ranks_per_node=1 train.device=strict"
)
for codec in "${codecs[@]}"; do
	args=()
	for set in $codec; do args+=(--set "$set"); done
	rm -rf "$tmp/whole" "$tmp/parts"
	check "20 steps: $codec" run thread whole "${args[@]}" &&
		check "13 steps: $codec" run thread parts "${args[@]}" --set train.iters=13 &&
		check "7 more: $codec" run thread parts "${args[@]}" &&
		check "stopped and resumed, other bytes: $codec" same whole parts
done

args=(--set "$back.codec=powersgd" --set "$back.rank=2" --set "$sums.codec=powersgd" --set "$sums.rank=3")
rm -rf "$tmp/whole" "$tmp/mpi"
check "threads" run thread whole "${args[@]}"
if [ "$OCC_MPI" = 1 ]; then
	check "mpi" run mpi mpi "${args[@]}" && check "mpi and threads, other bytes" same whole mpi
fi

# A step that is not finite on one rank is skipped by all, and what compression keeps goes back: the run
# is the one that never had that step's number.
nan() { # DIR: like whole, but its sixth step is poisoned
	OCC_FAULT=loss.nan:3:6 run thread "$1" "${args[@]}" --set train.max_skipped=1
}
check "a skipped step" nan skipped
check "the run with a skipped step ended differently" grep -q '"skipped":[[:space:]]*1' "$tmp/skipped/step-00000020/manifest.json"

# Another layout: the sum of what weights still owe is kept, links keep theirs over replicas only, and the
# line says what went.
moved() { # TP PP DP WORDS: resumes the checkpoint of `whole`
	rm -rf "$tmp/moved"
	cp -r "$tmp/whole" "$tmp/moved"
	launch thread $(($1 * $2 * $3)) "${base[@]}" --set train.iters=24 --set parallel.tensor="$1" \
		--set parallel.pipeline="$2" --set parallel.data="$3" "${args[@]}" \
		--set checkpoint.dir="$tmp/moved" >"$tmp/out" 2>&1 && grep -q "^compression state: $4" "$tmp/out" && return
	grep -h "compression state" "$tmp/out" >&2
	tail -n 1 "$tmp/out" >&2
	return 1
}
check "the same layout" moved 1 2 2 '[0-9]* residuals kept as they were, 0 moved to this layout, 0 new; norm [^ ]*, of which 0 dropped'
check "more replicas" moved 1 2 4 '0 residuals kept as they were, [1-9][0-9]* moved to this layout, 0 new; norm [^ ]*, of which 0 dropped'
check "more stages" moved 1 4 2 '0 residuals kept as they were, [1-9][0-9]* moved to this layout, 6 new'
check "tensor ranks" moved 2 1 2 '0 residuals kept as they were, [1-9][0-9]* moved to this layout, 0 new'
check "one replica" moved 1 2 1 '0 residuals kept as they were, 1 moved to this layout, 0 new'

# Codec auto: most of the norm gets across, so the rank is halved after the tenth step and bytes fall, once.
adapts() {
	rm -rf "$tmp/auto" "$tmp/log"
	run thread auto --set "$sums.codec=auto" --set "$sums.rank=8" --set log.dir="$tmp/log" || return
	sed -n '/"event":"train"/s/.*"dp":{[^}]*"wire_bytes":\([0-9]*\).*/\1/p' "$tmp/log/metrics.jsonl" |
		awk '{ b[NR] = $1 } END { exit !(NR == 20 && b[1] == b[10] && b[11] < b[10] && b[11] == b[20]) }'
}
check "codec auto does not halve its rank after ten steps" adapts

# Damage is found, an unreadable state is not passed over in silence.
damage() {
	rm -rf "$tmp/moved"
	cp -r "$tmp/whole" "$tmp/moved"
	printf 'x' | dd of="$tmp/moved/step-00000020/stream-1.bin" bs=1 seek=400 conv=notrunc 2>/dev/null
	run thread moved "${args[@]}" --set checkpoint.resume="$tmp/moved/step-00000020"
	[ "$(grep -c 'stream-1.bin: damaged' "$tmp/out")" = 1 ]
}
check "a damaged state of compression" damage 2>/dev/null
finish
