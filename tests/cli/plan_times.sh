#!/usr/bin/env bash
# The times of `plan`: the figures that follow from the paper's scripts, to the digits given; parts that add up;
# what each technique saves, against bytes and rates; where compression stops paying; thousands of ranks;
# profiles that are refused; --measure with every codec on every site. TIME: 400
. tests/lib.sh
json=$BUILD/tests/tools/json
a100=(--hardware "$root/configs/hardware/a100-200g.json")
holds() { awk "BEGIN { exit !($1) }"; }
near() { holds "($1 - $2) ^ 2 <= ($3 * ($2)) ^ 2"; } # A B RELATIVE
plan() { "$OCC_TRAIN" plan "$@" --json >"$tmp/plan" 2>"$tmp/err" || { cat "$tmp/err" >&2; return 1; }; }
get() { "$json" "$tmp/plan" "$@"; }

# ---- The paper's runs on 128 GPUs (T 8, P 4, D 4, M 16), 25 GB/s out of a node of 8. ----
# Of a transfer: MB, compressed kB, ratio, ms dense and compressed, MB of residual; ratios of a layer as a whole and
# of its four matrices; ms of stage 1's sums; the tied embedding's MB and ms.
while IFS='|' read -r model transfer ratios sums embedding; do
	plan --config "configs/gpt2-$model.json" --ranks 128 "${a100[@]}"
	check "$model: plan" [ $? = 0 ]
	got=$(get links kind transfers compressed inter_node dense_bytes compressed_bytes dense_ms compressed_ms | awk -F '\t' '
		{ n[$1] += $3; links++; odd += $2 != 16 || $4 != "true"
		  if ($1 == "pp_backward") line = sprintf("%.2f %.0f %.1f %.2f %.2f", $5 / 1e6, $6 / 1e3, $5 / $6, $7, $8) }
		END { print line, n["pp_backward"], n["pp_forward"] + 0, links, odd + 0 }')
	check "$model: transfers: $got" [ "$got" = "$transfer 6 0 6 0" ]
	# Stage 3 sums dense and compresses one link: a residual of the matrix n x m, and r(n + m) and r(n + 3m) beside it.
	read -r n m < <(get links dense_bytes | awk 'NR == 1 { print 1024, $1 / 4096 }')
	got=$(get memory/3 compression_bytes | awk -v n="$n" -v m="$m" '{ printf "%.1f", ($1 - 4 * 16 * (2 * n + 4 * m)) / 1e6 }')
	check "$model: residual: $got MB" [ "$got" = "$(awk -v n="$n" -v m="$m" 'BEGIN { printf "%.1f", 4 * n * m / 1e6 }')" ]
	got=$(get sums stage dense_ms wire_ms | awk -F '\t' '$1 == 1 { printf "%.0f %.0f", $2, $3 }')
	check "$model: sums of stage 1: $got ms" [ "$got" = "$sums" ]
	got=$(get embedding_sum shard_bytes unfused_ms fused_ms | awk -F '\t' '{ printf "%.0f %.0f %.0f", $1 / 1e6, $2, $3 }')
	check "$model: embedding: $got" [ "$got" = "$embedding" ]

	# Techniques are added in this order; what each leaves is what bytes and rates allow. The last micro-batch's
	# gradient passes three links in a row, six transfers are compressed in all.
	check "$model: rungs" [ "$(get ladder name | tr '\n' ,)" = "dense,+ back-propagation,+ fused embedding,+ data-parallel," ]
	read -r cb fe sc < <(get ladder at/0/total_ms | awk 'NR > 1 { printf "%.9g ", last - $1 } { last = $1 }')
	read -r saves < <(get links kind dense_ms compressed_ms | awk -F '\t' '$1 == "pp_backward" { print $2 - $3; exit }')
	check "$model: back-propagation saves $cb ms, a transfer $saves" holds "$cb >= 0.85 * 3 * $saves && $cb <= 6 * $saves"
	read -r one < <(get embedding_sum unfused_ms fused_ms | awk '{ print $1 - $2 }')
	check "$model: the fused embedding saves $fe ms, its bytes $one" holds "$fe > 0.95 * $one && $fe < 1.05 * $one"
	read -r least most < <(get sums stage dense_ms wire_ms | awk -F '\t' '
		{ d = $2 - $3; if ($1 == 1) a = d; if (d > b) b = d } END { print 0.85 * a, b }')
	check "$model: sums save $sc ms, of $least to $most" holds "$sc >= $least && $sc <= $most"

	plan --config "configs/gpt2-$model.json" --ranks 128 "${a100[@]}" --set compress.data_parallel.min_ratio=0
	got=$(get tensors rows columns ratio | awk -F '\t' '
		{ raw += $1 * $2; wire += $1 * $2 / $3; each = each sprintf(" %.2f", $3) } END { printf "%.2f%s", raw / wire, each }')
	check "$model: ratios of a layer: $got" [ "$got" = "$ratios" ]
done <<'ROWS'
335m|4.19 131 32.0 1.34 0.04|2.18 2.18 0.89 2.67 2.67|18 8|26 21 15
2.5b|7.86 188 41.7 2.52 0.06|4.09 4.09 1.67 5.00 5.00|138 34|49 39 28
8.3b|12.58 262 48.0 4.03 0.08|6.55 6.55 2.67 8.00 8.00|490 75|79 63 44
ROWS

# ---- Parts add up, rungs agree with plans of their own. ----
parts=(compute_ms bubble_ms pipeline_ms data_parallel_ms embedding_ms optimizer_ms total_ms)
back=compress.pipeline_backward forward=compress.pipeline_forward sums=compress.data_parallel
adds_up() { # every `time`, every rung at every rate; none is negative
	local mark i
	for mark in none tail slack all; do
		get "time/$mark" "${parts[@]}"
		near "$(get . "step_ms/$mark")" "$(get . "time/$mark/total_ms")" 1e-12 || return
	done >"$tmp/rows"
	for ((i = 0; i < $1; i++)); do get "ladder/$i/at" "${parts[@]}" || return; done >>"$tmp/rows"
	awk -v want=$((4 + 4 * $1)) '{ s = 0; for (i = 1; i < NF; i++) { s += $i; bad += $i < -1e-9 * $NF } bad += (s - $NF) ^ 2 > ($NF * 1e-9) ^ 2 || !($NF > 0) }
		END { exit bad || NR != want }' "$tmp/rows"
}
while IFS='|' read -r rungs names sets; do
	args=(--config configs/gpt2-335m-small.json --ranks 8 --set parallel.ranks_per_node=2)
	dense=()
	for set in $sets; do args+=(--set "$set"); done
	for site in $back $forward $sums; do dense+=(--set "$site.codec=none"); done
	plan "${args[@]}"
	check "$sets: plan" [ $? = 0 ]
	check "$sets: parts" adds_up "$rungs"
	check "$sets: rungs" [ "$(get ladder name | tr '\n' ,)" = "$names" ]
	# The first rung is the plan with all codecs off, the last the plan itself.
	mark=$("$OCC_TRAIN" --print-config "${args[@]:0:2}" "${args[@]:4}" >"$tmp/conf" && "$json" "$tmp/conf" . compress/pipeline_backward/mark)
	check "$sets: the last rung" [ "$(get "ladder/$((rungs - 1))/at/0" "${parts[@]}")" = "$(get "time/$mark" "${parts[@]}")" ]
	get ladder/0/at/0 "${parts[@]}" >"$tmp/first"
	plan "${args[@]}" "${dense[@]}" --set compress.embedding.fused=false
	check "$sets: the first rung" cmp "$tmp/first" <(get time/none "${parts[@]}")
	check "$sets: no codec, one rung, nothing that pays" [ "$(get . ladder break_even_gbytes_per_s)" = "$(printf '1 values\t0')" ]
done <<'ROWS'
4|dense,+ back-propagation,+ fused embedding,+ data-parallel,|
2|dense,+ activations,|compress.pipeline_backward.codec=none compress.data_parallel.codec=none compress.embedding.fused=false compress.pipeline_forward.codec=dct
3|dense,+ activations,+ data-parallel,|compress.pipeline_backward.codec=none compress.embedding.fused=false compress.pipeline_forward.codec=quant compress.data_parallel.codec=auto
5|dense,+ activations,+ back-propagation,+ fused embedding,+ data-parallel,|compress.pipeline_forward.codec=cast compress.pipeline_backward.mark=all
2|dense,+ data-parallel,|compress.pipeline_backward.codec=none compress.embedding.fused=false compress.data_parallel.codec=topk parallel.pipeline=1 parallel.data=8 compress.data_parallel.stages=all
ROWS

# The step with the sums of k stages compressed is that of a plan with k stages.
plan --config configs/gpt2-335m-small.json --ranks 8 --set parallel.ranks_per_node=2
get stages_ms . >"$tmp/stages"
check "a step for 0 to 4 stages" [ "$(wc -l <"$tmp/stages")" = 5 ]
for k in 1 2 3 4; do
	plan --config configs/gpt2-335m-small.json --ranks 8 --set parallel.ranks_per_node=2 --set $sums.stages=$k
	check "$k stages" near "$(sed -n "$((k + 1))p" "$tmp/stages")" "$(get . time/tail/total_ms)" 1e-9
done

# ---- Break-even: it pays just below, not just above. The rate is found to 1 %. ----
saved() { # RATE ARGS...: milliseconds
	plan "${@:2}" --hardware "node.gbytes_per_s=$1" && get ladder at/0/total_ms | awk 'NR == 1 { d = $1 } END { printf "%.9g", d - $1 }'
}
found=0
while read -r config ranks sets; do
	args=(--config "configs/$config.json" --ranks "$ranks")
	for set in $sets; do args+=(--set "$set"); done
	plan "${args[@]}"
	even=$(get . break_even_gbytes_per_s)
	if [ "$even" = null ]; then
		check "$config $sets: pays at any rate" holds "$(saved 1e5 "${args[@]}") > 0"
	elif [ "$even" = 0 ]; then
		check "$config $sets: pays at no rate" holds "$(saved 1e-5 "${args[@]}") <= 0"
	else
		found=$((found + 1))
		below=$(awk "BEGIN { print 0.98 * $even }") above=$(awk "BEGIN { print 1.03 * $even }")
		check "$config $sets: pays below $even" holds "$(saved "$below" "${args[@]}") > 0"
		check "$config $sets: does not pay above $even" holds "$(saved "$above" "${args[@]}") <= 0"
	fi
done <<'ROWS'
gpt2-335m 32
gpt2-335m-small 8 parallel.ranks_per_node=2
gpt2-335m-small 8 parallel.ranks_per_node=1 compress.data_parallel.codec=none
gpt2-335m-small 8 parallel.ranks_per_node=2 compress.data_parallel.codec=topk
gpt2-335m-small 8 parallel.ranks_per_node=2 compress.pipeline_forward.codec=cast
gpt2-335m-small 8 parallel.ranks_per_node=8
ROWS
check "a rate where compression stops paying was found $found times" [ $found -ge 3 ]

# ---- Thousands of ranks: soon, and not slower than the bytes of a stage allow. ----
many() { # RANKS ARGS...
	local user
	TIMEFORMAT=%U
	{ time plan --config configs/gpt2-8.3b.json --ranks "$1" "${@:2}" "${a100[@]}"; } 2>"$tmp/time" || return
	user=$(tail -n 1 "$tmp/time")
	get sums dense_ms | sort -g | tail -n 1 >"$tmp/most"
	holds "$user < 20" || [ -n "${OCC_SAN-}" ] || { echo "$user s" >&2; return 1; }
	[ "$(get . ranks placement)" = "$(printf '%s\t%s values' "$1" "$1")" ] || return
	holds "$(get . time/tail/data_parallel_ms) < 1.5 * $(<"$tmp/most")" && holds "$(get . time/tail/embedding_ms) < $(<"$tmp/most")"
}
check "9984 ranks" many 9984 --set parallel.tensor=8 --set parallel.pipeline=4 --set batch.global=9984
check "10000 ranks" many 10000 --set parallel.tensor=8 --set parallel.pipeline=10 --set batch.global=10000 --set compress.data_parallel.stages=0.75
check "8192 ranks in 64 stages" many 8192 --set parallel.tensor=8 --set parallel.pipeline=64 --set batch.global=512

# ---- Refusals. ----
refuse() { # CODE TEXT COMMAND...
	local got=0
	timeout 60 "${@:3}" >"$tmp/out" 2>"$tmp/err" </dev/null || got=$?
	check "${*: -4}: exit $got instead of $1" [ "$got" = "$1" ]
	check "${*: -4}: one line, not $(cat "$tmp/err")" [ "$(grep -c occ-train: "$tmp/err")" = 1 ]
	check "${*: -4}: says $2, not $(cat "$tmp/err")" grep -qF -- "$2" "$tmp/err"
}
small=(--config configs/gpt2-335m-small.json --ranks 8)
echo '{"node": {"gbytes_per_s": -1}}' >"$tmp/negative.json"
echo '{"node": {"gbytes": 1}}' >"$tmp/unknown.json"
echo '{"node": {"gbytes_per_s": "fast"}}' >"$tmp/type.json"
echo '{"node": {"gbytes_per_s": 1}' >"$tmp/syntax.json"
while IFS='|' read -r text word; do
	refuse 2 "$text" "$OCC_TRAIN" plan "${small[@]}" --hardware "${word//@/$tmp}"
done <<'ROWS'
node.gbytes_per_s|@/negative.json
gbytes|@/unknown.json
node.gbytes_per_s|@/type.json
syntax.json|@/syntax.json
nosuch.json|@/nosuch.json
node.gbyte_per_s|node.gbyte_per_s=1
node.gbytes_per_s|node.gbytes_per_s=fast
node.gbytes_per_s|node.gbytes_per_s=0
device.call_us|device.call_us=-1
node.ranks|node.ranks=1.5
host.cores|host.cores=-2
ROWS
for flag in --measure --trace=F --hardware=F; do
	refuse 2 "${flag%=*} is not a flag of" "$OCC_TRAIN" --config configs/demo.json $flag
	for mode in eval generate tokenize inspect export; do
		refuse 2 "${flag%=*} is not a flag of" "$OCC_TRAIN" $mode $flag
	done
done
refuse 2 "--hardware needs a value" "$OCC_TRAIN" plan "${small[@]}" --hardware
refuse 4 "none/trace.json" "$OCC_TRAIN" plan "${small[@]}" --trace "$tmp/none/trace.json"
refuse 4 "full" "$OCC_TRAIN" plan "${small[@]}" --trace /dev/full

# ---- Measured on this machine. ----
# A small model; a positive step, parts that add up, and it is said what was measured.
measured() { # WHAT COMMAND...
	"${@:2}" --json >"$tmp/plan" 2>"$tmp/err" </dev/null || { cat "$tmp/err" >&2; return 1; }
	[ "$(get . measured)" = "$1" ] && adds_up "$("$json" "$tmp/plan" ladder name | wc -l)" &&
		holds "$(get . time/tail/compute_ms) > 0 && $(get . time/tail/optimizer_ms) > 0"
}
tiny=(plan --measure --config tests/golden/cosine.json --set batch.micro=1 --set compress.scope=all)
check "--measure, for people" bash -c "'$OCC_TRAIN' ${tiny[*]} | grep -qx 'measured on this machine: device'"
check "without, for people" bash -c "'$OCC_TRAIN' ${tiny[*]/--measure/} | grep -qx 'reckoned for: one CPU core, 10 Gb/s'"
check "--measure" measured device "$OCC_TRAIN" "${tiny[@]}"
check "--measure --ranks" measured device "$OCC_TRAIN" "${tiny[@]}" --ranks 8 --set parallel.pipeline=4
check "--measure of a transport of its own" measured device "$OCC_TRAIN" "${tiny[@]}" --ranks 2 --set parallel.transport=thread
check "--measure --hardware" measured device "$OCC_TRAIN" "${tiny[@]}" --hardware node.ranks=1 --ranks 2
check "... whose network counts" [ "$(get . nodes hardware/node/ranks)" = "$(printf '2\t1')" ]
check "--measure --trace" measured device "$OCC_TRAIN" "${tiny[@]}" --trace "$tmp/trace.json"
check "... is whole" "$json" "$tmp/trace.json" . displayTimeUnit >"$tmp/out"
for layout in "parallel.pipeline=4" "parallel.pipeline=2 parallel.tensor=2" "parallel.pipeline=2 train.precision=bf16" \
	"parallel.pipeline=2 model.recompute=full" "parallel.pipeline=2 train.device=ref" "parallel.pipeline=2 train.device=strict"; do
	args=()
	for set in $layout; do args+=(--set "$set"); done
	for site in $back $forward $sums; do
		for codec in none cast quant topk dct powersgd errbound; do
			[ "$codec $site" = "dct $sums" ] && continue
			check "--measure, $layout, $site.codec=$codec" measured device "$OCC_TRAIN" "${tiny[@]}" --ranks 8 \
				"${args[@]}" --set "$site.codec=$codec"
		done
	done
	check "--measure, $layout, auto" measured device "$OCC_TRAIN" "${tiny[@]}" --ranks 8 "${args[@]}" --set $sums.codec=auto
done
if [ "$OCC_MPI" = 1 ]; then
	check "--measure under mpirun" measured "device and network" mpirun -q -n 2 "$OCC_TRAIN" "${tiny[@]}" --set parallel.pipeline=2
	check "... two ranks" [ "$(get . ranks nodes)" = "$(printf '2\t1')" ]
	read -r rate us < <(get hardware/inside gbytes_per_s latency_us)
	check "... the network inside the node: $rate GB/s, $us us" holds "$rate > 0 && $rate != 5 && $us > 0 && $us != 5"
	check "--measure under mpirun, for more ranks" measured "device and network" mpirun -q -n 2 "$OCC_TRAIN" "${tiny[@]}" \
		--ranks 8 --set parallel.pipeline=2
	check "... eight ranks" [ "$(get . ranks)" = 8 ]
	refuse 2 node.gbytes_per_s mpirun -q -n 2 "$OCC_TRAIN" "${tiny[@]}" --hardware node.gbytes_per_s=-1
else
	skip "mpirun: this build has no MPI or a sanitizer that it does not suit"
fi
finish
