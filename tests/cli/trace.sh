#!/usr/bin/env bash
# trace.json: whole JSON after each traced step, every instruction of every rank once, the bytes of metrics,
# the same losses; and what `plan --trace` writes is the same list. TIME: 150
. tests/lib.sh
json=$BUILD/tests/tools/json

cat >"$tmp/c.json" <<JSON
{"model": {"layers": 4, "hidden": 32, "heads": 4, "seq_len": 16, "vocab_size": 256},
 "batch": {"micro": 1, "global": 8}, "train": {"iters": 4, "threads": 1}, "optimizer": {"decay_iters": 10},
 "data": {"train": ["$PWD/tests/data/tinyshakespeare.txt"]},
 "compress": {"scope": "all", "pipeline_backward": {"codec": "powersgd", "rank": 2},
              "data_parallel": {"codec": "powersgd", "rank": 2, "stages": 1}}}
JSON

# events FILE: of each span: track, iter, name (a blank becomes _), micro-batch, stage of the other end, codec,
# messages, raw, wire, begin, duration.
events() {
	"$json" "$1" traceEvents ph tid args/iter name args/micro_batch args/peer_stage args/codec args/messages \
		args/raw_bytes args/wire_bytes ts dur | tr ' ' _ | awk '$1 == "X"' | cut -f 2-
}
# Those that are inside no other, without their times; fails where two of a track cross. Times are rounded to
# a nanosecond.
outer() {
	awk -F '\t' '{ begin = $10; end = $10 + $11 }
		$1 != track { track = $1; until = -1 }
		begin >= until - 0.0015 { until = end; NF = 9; print; next }
		end > until + 0.0015 { printf "track %s: %s at %s ends in no time\n", track, $3, begin >"/dev/stderr"; bad = 1 }
		END { exit bad }' OFS='\t'
}

# Whether the list is what a step is made of, written apart from the code: counts, marks, codecs, bytes.
# list TP PP DP "ITERS" <outer events
list() {
	awk -F '\t' -v T="$1" -v P="$2" -v D="$3" -v iters="$4" -v M=$((8 / $3)) '
	function least(a, b) { return a < b ? a : b }
	function want(what, n) { if (got[r, t, what] + 0 != n) { print "rank " r ", iter " t ": " got[r, t, what] + 0 " " what ", not " n; bad = 1 } }
	{ stage = int($1 / (T * D)); up = $5 != "-" && $5 > stage
	  all[$1, $2]++; got[$1, $2, $3 ($5 == "-" ? "" : up ? " up" : " down")]++
	  critical = $3 ~ /^critical_/
	  if (critical != ($6 == "powersgd")) { print "codec " $6 " of " $0; bad = 1 }
	  if ($3 ~ /send$/) {
		raw = 4 * 16 / T * 32; wire = critical ? 4 * 2 * (16 / T + 32) : raw
		if ($7 != 1 || $8 != raw || $9 != wire) { print "not " wire " bytes: " $0; bad = 1 } }
	  if ($2 !~ "^(" iters ")$") { print "iter of " $0; bad = 1 } }
	END { n = split(iters, at, "|")
	  for (r = 0; r < T * P * D; r++) for (i = 1; i <= n; i++) {
		t = at[i]; s = int(r / (T * D)); out = s ? least(P - s, M) : 0; back = s < P - 1 ? least(P - s - 1, M) : 0
		want("forward", M); want("backward", M); want("send up", s < P - 1 ? M : 0); want("receive down", s ? M : 0)
		want("critical_send down", out); want("send down", s ? M - out : 0)
		want("critical_receive up", back); want("receive up", s < P - 1 ? M - back : 0)
		want("reduce", 1); want("embedding", P > 1 && (s == 0 || s == P - 1)); want("optimizer", 2)
		waits = 1 + 2 * ((s > 0) + (s < P - 1)) # for the verdict of all ranks; at the end for each wire out
		want("wait", waits)
		if (all[r, t] != 2 * M + (s > 0) * 2 * M + (s < P - 1) * 2 * M + 3 + waits + (P > 1 && (s == 0 || s == P - 1))) {
			print "rank " r ", iter " t ": " all[r, t] " spans"; bad = 1 } }
	  exit bad }' >&2
}

# Bytes of all spans of a step are those of metrics, over all kinds.
bytes() { # TRACE LOG ITER
	local kinds=() kind
	for kind in pp_forward pp_backward dp embedding tp; do kinds+=("comm/$kind/wire_bytes" "comm/$kind/messages"); done
	grep '"event":"train","iter":'"$3", "$2/metrics.jsonl" >"$tmp/line"
	"$json" "$tmp/line" . "${kinds[@]}" | awk '{ for (i = 1; i < NF; i += 2) { b += $i; m += $(i + 1) } print m + 0, b + 0 }' >"$tmp/said"
	events "$1" | awk -F '\t' -v t="$3" '$2 == t { m += $7; b += $9 } END { print m + 0, b + 0 }' >"$tmp/counted"
	cmp "$tmp/said" "$tmp/counted" >&2 && [ "$4" = "$(cut -d ' ' -f 2 <"$tmp/said" | sed 's/^[1-9].*/some/')" ]
}
losses() { grep -o '"iter":[0-9]*,"loss":[^,]*' "$1/metrics.jsonl"; }
tracks() { "$json" "$1" traceEvents name tid args/name | awk -F '\t' '$1 == "thread_name"' | cut -f 2-; }

# The trace of a run, that of another without a trace, and the plan's.
whole() { # HOW TP PP DP
	local how=$1 n=$(($2 * $3 * $4)) sets r
	sets=(--config "$tmp/c.json" --set parallel.tensor="$2" --set parallel.pipeline="$3" --set parallel.data="$4")
	rm -rf "$tmp/traced" "$tmp/plain" "$tmp/plan.json"
	launch "$how" "$n" "${sets[@]}" --set log.dir="$tmp/traced" --set "log.trace_iters=[2,4]" >"$tmp/out" 2>&1
	check "$*: a traced run: $(tail -n 1 "$tmp/out")" [ $? = 0 ]
	launch thread "$n" "${sets[@]}" --set log.dir="$tmp/plain" >"$tmp/out" 2>&1
	check "$*: a trace changes the losses" cmp <(losses "$tmp/plain") <(losses "$tmp/traced")
	check "$*: no trace is wanted, none is written" [ ! -e "$tmp/plain/trace.json" ]
	check "$*: trace.json is not whole" "$json" "$tmp/traced/trace.json" . displayTimeUnit >"$tmp/out"
	events "$tmp/traced/trace.json" >"$tmp/events"
	check "$*: spans overlap" outer <"$tmp/events" >"$tmp/outer"
	check "$*: the list of a step" list "$2" "$3" "$4" '2|4' <"$tmp/outer"
	for r in 2 4; do
		check "$*: bytes of step $r" bytes "$tmp/traced/trace.json" "$tmp/traced" $r "$([ "$n" = 1 ] && echo 0 || echo some)"
	done
	for ((r = 0; r < n; r++)); do
		printf '%d\trank %d: stage %d, replica %d, tensor %d\n' $r $r $((r / ($2 * $4))) $((r / $2 % $4)) $((r % $2))
	done >"$tmp/want"
	check "$*: names of tracks" cmp "$tmp/want" <(tracks "$tmp/traced/trace.json")

	"$OCC_TRAIN" plan "${sets[@]}" --ranks "$n" --trace "$tmp/plan.json" >"$tmp/out" 2>&1
	check "$*: plan --trace" [ $? = 0 ]
	for ((r = 0; r < $3; r++)); do printf '%d\tstage %d\n' $r $r; done >"$tmp/want"
	check "$*: names of the plan's tracks" cmp "$tmp/want" <(tracks "$tmp/plan.json")
	check "$*: the plan's spans overlap" bash -c "$(declare -f events outer); json=$json events '$tmp/plan.json' | outer >'$tmp/planned'"
	# Of each stage its first rank's, but for what is no instruction; of sends the bytes too.
	awk -F '\t' -v T="$2" -v D="$4" '$2 == 2 && $1 % (T * D) == 0 && $3 != "optimizer" && $3 != "wait" {
		print $1 / (T * D), $3, $4, $5, $6, $3 ~ /send$/ ? $9 : "" }' "$tmp/outer" >"$tmp/did"
	awk -F '\t' '{ print $1, $3, $4, $5, $6, $3 ~ /send$/ ? $9 : "" }' "$tmp/planned" >"$tmp/should"
	check "$*: the plan's list is another" diff "$tmp/should" "$tmp/did"
}
for at in "thread 1 1 1" "thread 1 2 2" "thread 2 2 1" "thread 1 4 1"; do
	# shellcheck disable=SC2086
	whole $at
done
if [ "$OCC_MPI" = 1 ]; then
	whole mpi 1 2 1
	whole mpi 2 2 1
else
	skip "mpirun: this build has no MPI or a sanitizer that it does not suit"
fi

# The file is whole as soon as a step is over, also where the run never ends.
sets=(--config "$tmp/c.json" --set parallel.pipeline=2 --set parallel.transport=thread --ranks 2)
rm -rf "$tmp/log"
"$OCC_TRAIN" "${sets[@]}" --set train.iters=1000000 --set log.dir="$tmp/log" --set "log.trace_iters=[2,3,900000]" >"$tmp/out" 2>&1 &
pid=$!
for _ in $(seq 200); do grep -q '^step 4/' "$tmp/out" && break; sleep 0.1; done
kill -KILL $pid
wait $pid 2>/dev/null
check "killed in step 5 or later: trace.json holds steps 2 and 3" \
	[ "$(events "$tmp/log/trace.json" | cut -f 2 | sort -u | tr '\n' ' ')" = "2 3 " ]

# A resumed run traces what it does itself.
rm -rf "$tmp/log"
sets+=(--set log.dir="$tmp/log" --set checkpoint.dir="$tmp/ckpt")
"$OCC_TRAIN" "${sets[@]}" --set train.iters=2 --set "log.trace_iters=[1]" >"$tmp/out" 2>&1
check "a trace before the checkpoint" [ "$(events "$tmp/log/trace.json" | cut -f 2 | sort -u)" = 1 ]
"$OCC_TRAIN" "${sets[@]}" --set "log.trace_iters=[1,3]" >"$tmp/out" 2>&1
check "it was resumed" grep -q 'resumed from' "$tmp/out"
check "a trace after it" [ "$(events "$tmp/log/trace.json" | cut -f 2 | sort -u)" = 3 ]
"$OCC_TRAIN" "${sets[@]}" --set train.iters=5 --set "log.trace_iters=[1]" >"$tmp/out" 2>&1
check "none to trace: the file stays" [ "$(events "$tmp/log/trace.json" | cut -f 2 | sort -u)" = 3 ]

# What cannot be written ends the run, in one line that names it.
refused() { # HOW RANKS
	rm -rf "$tmp/log"
	mkdir -p "$tmp/log"
	case $3 in full) ln -s /dev/full "$tmp/log/trace.json" ;; *) mkdir "$tmp/log/trace.json" ;; esac
	code=0
	launch "$1" "$2" --config "$tmp/c.json" --set parallel.pipeline="$2" --set log.dir="$tmp/log" \
		--set "log.trace_iters=[2]" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
	check "$*: exit $code" [ $code = 4 ]
	check "$*: one line, not $(cat "$tmp/err")" [ "$(grep -c occ-train: "$tmp/err")" = 1 ]
	check "$*: it names the file" grep -q "log/trace.json: cannot be written" "$tmp/err"
}
for what in full folder; do
	refused thread 1 $what
	refused thread 2 $what
	[ "$OCC_MPI" = 1 ] && refused mpi 2 $what
done
code=0
"$OCC_TRAIN" plan --config "$tmp/c.json" --trace "$tmp/none/trace.json" >"$tmp/out" 2>"$tmp/err" || code=$?
check "plan --trace to no folder: exit $code, $(cat "$tmp/err")" [ "$code $(wc -l <"$tmp/err")" = "4 1" ]
finish
