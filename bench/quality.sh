#!/usr/bin/env bash
# What compression costs in quality: one small model, trained with and without it on tests/data/tinyshakespeare
# (nine tenths, the last tenth validates), pipeline 4 x data 2 as threads. Seeds are pairs: a seed fixes
# weights and data, all variants of one run before the next seed's, and differences are taken within a seed.
#
#   bench/quality.sh            runs what is missing, then prints the table; stopped, it goes on where it was
#   bench/quality.sh --table    the table of the runs that are complete
#   bench/quality.sh --plot     the mean loss curves and differences to the baseline, also into $OUT/loss.svg and
#                               $OUT/difference.svg (without those where all gradients are compressed: far above)
#
# In the environment: OUT=quality-out SEEDS="1 2 3 4 5" STEPS=600 MODEL="layers hidden heads seq_len"
# VARIANTS="baseline cb" (default: all), SET="key=value ..." (last, in every run), CB=rank, DP=rank. A run that
# diverges is left out of the table: it shows in n. Needs python3.
#
# As in the paper: 16 micro-batches a replica, so that 6 of 48 transfers are compressed; its rate, LR=1.5e-4; the
# ratios of its 335M model, RATIOS="32 2.18": on a link (rows x columns over rank x (rows + columns), here
# seq_len x hidden) and of a layer's QKV matrix (hidden x 3 hidden), which is rank 2 and rank 66 of the default model
# of 2.7 M parameters. RATIOS="48 6.55" MODEL="6 192 3 64" are those of its 8.3B model, ranks 1 and 22. All codecs
# start after a tenth of the steps.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${OUT:=quality-out}" "${SEEDS:=1 2 3 4 5}" "${STEPS:=600}" "${MODEL:=6 192 3 96}" "${VARIANTS:=}" "${SET:=}"
: "${LR:=1.5e-4}" "${RATIOS:=32 2.18}"
read -r layers hidden heads seq <<<"$MODEL"
read -r link_ratio sum_ratio <<<"$RATIOS"
min_lr=$(awk -v lr="$LR" 'BEGIN { print lr / 10 }')

rank() { # ROWS COLUMNS RATIO: the nearest, at least 1
	awk -v n="$1" -v m="$2" -v c="$3" 'BEGIN { r = int(n * m / (n + m) / c + 0.5); print(r > 1 ? r : 1) }'
}
: "${CB:=$(rank "$seq" "$hidden" "$link_ratio")}" "${DP:=$(rank "$hidden" $((3 * hidden)) "$sum_ratio")}"

# NAME KEY=VALUE... a line; back, dp, fwd stand for the sections of compress.
cb="back.codec=powersgd back.rank=$CB"
dp="dp.codec=powersgd dp.rank=$DP dp.feedback=true"
variants() {
	cat <<-END
		baseline
		cb $cb back.mark=tail back.feedback=lazy
		cb_fe $cb back.mark=tail back.feedback=lazy compress.embedding.fused=true
		cb_fe_sc $cb back.mark=tail back.feedback=lazy compress.embedding.fused=true $dp dp.stages=3
		cb_no_feedback $cb back.mark=tail back.feedback=none
		cb_all $cb back.mark=all back.feedback=lazy
		dp_all $dp dp.stages=all
		dct fwd.codec=dct fwd.fraction=0.1
		cb_forget $cb back.mark=tail back.feedback=lazy back.forget=0.5
		cb_fe_sc_forget $cb back.mark=tail back.feedback=lazy back.forget=0.5 compress.embedding.fused=true $dp dp.stages=3
		cb_all_no_feedback $cb back.mark=all back.feedback=none
		cb_all_forget $cb back.mark=all back.feedback=lazy back.forget=0.5
		cb_mild $cb back.rank=$((8 * CB)) back.mark=tail back.feedback=lazy
		cb_mild_no_feedback $cb back.rank=$((8 * CB)) back.mark=tail back.feedback=none
		dp_all_no_feedback $dp dp.stages=all dp.feedback=false
	END
}

data() { # once: the two parts of the text, and how many batches the second fills
	local text=tests/data/tinyshakespeare.txt n cut
	n=$(wc -c <$text)
	cut=$((n * 9 / 10))
	mkdir -p "$OUT"
	batches=$(((n - cut - 1) / seq / 32))
	cat "$OUT"/{train,valid}.txt 2>/dev/null | cmp -s - $text && return
	head -c "$cut" $text >"$OUT/train.txt"
	tail -c +$((cut + 1)) $text >"$OUT/valid.txt"
}

complete() { tail -n 1 "$1/metrics.jsonl" 2>/dev/null | grep -q '"event": *"end".*"why": *"finished"'; }

one() { # NAME SEED KEY=VALUE...
	local dir=$OUT/$1-$2 args=() key code=0
	# shellcheck disable=SC2086
	for key in model.layers="$layers" model.hidden="$hidden" model.heads="$heads" model.seq_len="$seq" \
		model.vocab_size=256 parallel.pipeline=4 parallel.data=2 parallel.transport=thread \
		batch.micro=1 batch.global=32 optimizer.lr="$LR" optimizer.min_lr="$min_lr" optimizer.warmup_iters=50 \
		optimizer.beta2=0.99 train.iters="$STEPS" train.seed="$2" log.every=10 log.dir="$dir" \
		eval.iters="$batches" data.train="[\"$OUT/train.txt\"]" data.valid="[\"$OUT/valid.txt\"]" \
		compress.scope=all fwd.start_iter=$((STEPS / 10)) back.start_iter=$((STEPS / 10)) \
		dp.start_iter=$((STEPS / 10)) "${@:3}" $SET; do
		key=${key/#back./compress.pipeline_backward.} key=${key/#fwd./compress.pipeline_forward.}
		args+=(--set "${key/#dp./compress.data_parallel.}")
	done
	if complete "$dir"; then
		[ "$(<"$dir/args")" = "${args[*]}" ] && return
		echo "quality.sh: $dir was run with other settings; take another OUT" >&2
		exit 2
	fi
	rm -rf "$dir"
	mkdir "$dir"
	echo "${args[*]}" >"$dir/args"
	echo '{}' >"$OUT/none.json" # all comes by --set
	nice ./occ-train --config "$OUT/none.json" --ranks 8 "${args[@]}" >"$dir/out" 2>&1 || code=$?
	case $code in
	0) echo "$1, seed $2: $(tail -n 1 "$dir/out")" ;;
	6) echo "$1, seed $2: diverged: $(tail -n 1 "$dir/out")" ;; # a result too
	*) echo "quality.sh: $dir, exit $code: $(tail -n 1 "$dir/out")" >&2; exit 1 ;;
	esac
}

run() {
	local seed name flags
	data
	for seed in $SEEDS; do
		while read -r name flags; do
			[[ -n $VARIANTS && " $VARIANTS " != *" $name "* ]] && continue
			# shellcheck disable=SC2086
			one "$name" "$seed" $flags </dev/null
		done < <(variants)
	done
}

names() { variants | cut -d ' ' -f 1; }

summary() { # table|means
	# shellcheck disable=SC2046
	python3 bench/quality_table.py "$1" "$OUT" $(names)
}

case ${1:-} in
'') run; summary table ;;
--table) summary table ;;
--plot)
	rm -rf "$OUT"/{mean,difference}
	summary means
	scripts/plot-loss "$OUT"/mean/*/metrics.jsonl "$OUT/loss.svg"
	find "$OUT/difference" -name metrics.jsonl ! -path '*/cb_all*' -print0 | sort -z |
		xargs -0 sh -c 'scripts/plot-loss "$@" "$0"' "$OUT/difference.svg"
	;;
*) echo "usage: bench/quality.sh [--table | --plot]" >&2; exit 2 ;;
esac; exit # in one line: bash reads as it goes, and this file may change within hours
