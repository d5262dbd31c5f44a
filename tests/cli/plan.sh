#!/usr/bin/env bash
# What `plan` says of messages and bytes is what a run counts, to the byte, over layouts, nodes and every
# codec whose wires have a fixed length; and the paper's models have the paper's ratios. TIME: 120
. tests/lib.sh
cd tests/golden || exit 1

# flat FILE...: one line, no blanks.
flat() { tr -d ' \n\t' <"$1"; }
# counts TEXT: of each kind the five counters, in order.
counts() {
	grep -o '"[a-z_]*":{"messages":[0-9]*,"raw_bytes":[0-9]*,"wire_bytes":[0-9]*,"inter_node_raw_bytes":[0-9]*,"inter_node_wire_bytes":[0-9]*' <<<"$1"
}

same() { # TP PP DP ARGS...
	local ranks=$(($1 * $2 * $3)) args plan run
	args=(--set parallel.tensor="$1" --set parallel.pipeline="$2" --set parallel.data="$3"
		--set batch.micro=1 --set train.iters=1 "${@:4}")
	rm -rf "$tmp/log"
	"$OCC_TRAIN" plan --config cosine.json --ranks "$ranks" --json "${args[@]}" >"$tmp/plan" || return
	launch thread "$ranks" --config cosine.json "${args[@]}" --set log.dir="$tmp/log" >"$tmp/out" 2>&1 || return
	plan=$(counts "$(flat "$tmp/plan")")
	grep '"event":"train"' "$tmp/log/metrics.jsonl" | tr -d ' ' >"$tmp/train"
	run=$(counts "$(<"$tmp/train")")
	[ "$(wc -l <<<"$run")" = 5 ] && [ "$plan" = "$run" ] && return
	diff <(echo "$plan") <(echo "$run") >&2
	return 1
}

back=compress.pipeline_backward forward=compress.pipeline_forward sums=compress.data_parallel
codecs=(
	"$back.codec=none"
	"$back.codec=powersgd $back.rank=3 $sums.codec=powersgd $sums.rank=3 $sums.stages=1 compress.embedding.fused=true"
	"$back.codec=powersgd $back.rank=2 $back.mark=all $sums.codec=powersgd $sums.rank=2 $sums.iterations=2"
	"$back.codec=cast $back.mark=slack $sums.codec=cast $sums.min_ratio=0"
	"$back.codec=cast $back.type=fp16 $forward.codec=cast $forward.type=fp16"
	"$back.codec=quant $back.bits=4 $sums.codec=quant $sums.group=32"
	"$back.codec=topk $back.fraction=0.1 $sums.codec=topk $sums.fraction=0.05"
	"$forward.codec=dct $forward.fraction=0.2"
	"$forward.codec=quant $forward.mark=tail"
	"$back.codec=quant $back.start_iter=0 train.precision=bf16 model.recompute=full"
)
for at in "1 1 1" "2 1 1" "1 2 2" "2 2 2" "1 4 2" "1 1 4" "4 1 2"; do
	for codec in "${codecs[@]}"; do
		for nodes in "compress.scope=all" "parallel.ranks_per_node=2" "parallel.ranks_per_node=3 compress.scope=inter-node"; do
			args=()
			for set in $codec $nodes; do args+=(--set "$set"); done
			# shellcheck disable=SC2086
			check "plan and run differ: tp pp dp $at, $codec, $nodes" same $at "${args[@]}"
		done
	done
done

# A wire whose length depends on the data is reckoned at its longest; there are fewer token rows than tensor
# ranks here too.
for site in $back $forward $sums; do
	check "plan with errbound on $site" "$OCC_TRAIN" plan --config cosine.json --ranks 8 --set parallel.tensor=2 \
		--set parallel.pipeline=2 --set compress.scope=all --set "$site.codec=errbound" >"$tmp/out"
done
check "plan and run differ: fewer token rows than tensor ranks" same 4 2 1 --set model.seq_len=1 \
	--set compress.scope=all --set "$back.codec=cast" --set train.device=strict

# The traffic of the paper's runs on 128 GPUs: 6 of 48 transfers of a replica's tensor rank, their ratio.
paper() { # CONFIG RATIO
	"$OCC_TRAIN" plan --config "$root/configs/$1" --ranks 128 --set parallel.ranks_per_node=8 --json >"$tmp/plan" || return
	flat "$tmp/plan" | grep -o '"codec":"powersgd","why":"onthecriticalpath","count":192,"raw_bytes":[0-9]*,"wire_bytes":[0-9]*' |
		tr -c '0-9\n' ' ' | awk -v want="$2" '{ got = sprintf("%.1f", $2 / $3) } END { exit got != want }'
}
check "gpt2-335m: 192 compressed transfers at 32.0" paper gpt2-335m.json 32.0
check "gpt2-2.5b: 192 compressed transfers at 41.7" paper gpt2-2.5b.json 41.7
check "gpt2-8.3b: 192 compressed transfers at 48.0" paper gpt2-8.3b.json 48.0

# Nothing leaves a node: plan and run say so in one line, and count no saving.
check "inactive compression is not said" bash -c "'$OCC_TRAIN' --config cosine.json --ranks 2 \
	--set parallel.pipeline=2 --set $back.codec=powersgd --set train.iters=1 | grep -q '^compression inactive: '"
check "plan does not say that compression is inactive" bash -c "'$OCC_TRAIN' plan --config cosine.json --ranks 2 \
	--set parallel.pipeline=2 --set $back.codec=powersgd | grep -q '^compression inactive: '"
finish
