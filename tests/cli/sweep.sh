#!/usr/bin/env bash
# scripts/sweep.sh: a run for each combination, in folders of their own; stopped, failed and complete ones when
# it is started again; the table, --list, --only; what it refuses.
. tests/lib.sh

head -c 20000 tests/data/tinyshakespeare.txt >"$tmp/t.txt"
cat >"$tmp/c.json" <<JSON
{"model": {"layers": 2, "hidden": 16, "heads": 4, "seq_len": 16, "vocab_size": 256},
 "parallel": {"pipeline": 2}, "batch": {"global": 8}, "train": {"iters": 3, "threads": 1},
 "data": {"train": ["$tmp/t.txt"], "valid": ["$tmp/t.txt"]}, "eval": {"iters": 1},
 "compress": {"scope": "all", "pipeline_backward": {"codec": "powersgd"}}, "log": {"dir": "elsewhere"}}
JSON
sweep() { # DIR ARGS...
	local dir=$tmp/$1
	shift
	scripts/sweep.sh --out "$dir" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
}
code_is() { # CODE COMMAND...
	local want=$1 got=0
	shift
	"$@" || got=$?
	[ "$got" = "$want" ] || { echo "exit $got instead of $want: $(cat "$tmp/err")" >&2; false; }
}
row() { awk -v n="$1" -v i="$2" '/^ *N /{ seen = 1 } seen && $1 == n { print i == "end" ? $NF : $i }' "$tmp/out"; }

# Three ranks by two codecs; rank 0 is none, so that two combinations fail.
grid=(--config "$tmp/c.json" --ranks 4 --set parallel.data=2 --grid "compress.pipeline_backward.rank=1,0,2"
	--grid "compress.data_parallel.codec=none,quant")
check "a failed run: exit 1" code_is 1 sweep a "${grid[@]}"
check "all combinations, the last grid fastest" [ "$(awk '/^N /{ t = 1; next } t { printf "%s-%s ", $2, $3 }' "$tmp/out")" = \
	"1-none 1-quant 0-none 0-quant 2-none 2-quant " ]
for n in 1 2 5 6; do
	check "run $n: exit 0" [ "$(row $n 10)" = 0 ]
	check "run $n: a loss" awk -v x="$(row $n 4)" -v v="$(row $n 5)" 'BEGIN { exit !(x > 5 && x < 6 && v > 5 && v < 6) }'
	check "run $n: time and speed" awk -v x="$(row $n 6)" -v v="$(row $n 7)" 'BEGIN { exit !(x > 0 && v > 0) }'
done
check "run 3: its exit code and what it said" grep -qE '^3 .* 2  occ-train: .*pipeline_backward.rank: 0 is out of range' "$tmp/out"
first=$tmp/a/rank=1,codec=quant
check "a run has its own log.dir" [ -s "$first/metrics.jsonl" ]
said() { # what the program said of its last step's wire, in per cent, against the table's column
	awk -v a="$(sed -n 's/^step 3.*wire saved \([0-9-]*\)%.*/\1/p' "$1/out")" -v b="$2" \
		'BEGIN { exit !(a - b < 1 && b - a < 1 && a > 5) }'
}
check "saved is the program's" said "$first" "$(row 2 9)"
sum=$(sed -n '/"event":"train"/s/[^{]*//gp' "$first/metrics.jsonl" | wc -l)
check "three steps" [ "$sum" = 3 ]
mb=$(grep -o '"wire_bytes":[0-9]*' "$first/metrics.jsonl" | awk -F : '{ s += $2 } END { printf "%.3f", s / 3e6 }')
check "MB a step" [ "$(row 2 8)" = "$mb" ]
cp "$tmp/out" "$tmp/first"

# Again: complete ones are left alone, failed ones are not; DIR alone is enough.
stamp=$(stat -c %Y.%s "$first/out")
check "again: exit 1" code_is 1 sweep a
check "complete runs are left out" [ "$(grep -c ': is complete$' "$tmp/out")" = 4 ]
check "failed ones are not" [ "$(grep -c ': exit 2: ' "$tmp/out")" = 2 ]
check "untouched" [ "$(stat -c %Y.%s "$first/out")" = "$stamp" ]
check "--table runs nothing" sweep a --table
check "and shows the same" cmp -s <(sed -n '/^N /,$p' "$tmp/first") "$tmp/out"
check "more values: only new ones run" code_is 0 sweep a "${grid[@]:0:6}" --grid compress.pipeline_backward.rank=1,2,3 \
	--grid compress.data_parallel.codec=quant
check "one new" [ "$(grep -c ': is complete$' "$tmp/out")" = 2 ]
check "other settings are refused" code_is 2 sweep a "${grid[@]}" --set train.seed=2
check "and say so" grep -q 'was run with other settings' "$tmp/err"

# --list is what is run; --only one of it, with its exit code.
check "--list" sweep b "${grid[@]}" --list
cp "$tmp/out" "$tmp/list"
check "a line each" [ "$(wc -l <"$tmp/list")" = 6 ]
check "it makes nothing" [ ! -e "$tmp/b" ]
check "--only 4 fails as the program does" code_is 2 sweep b "${grid[@]}" --only 4
check "--only 5" code_is 0 sweep b --only 5
check "nothing else ran" [ "$(find "$tmp/b" -name metrics.jsonl)" = "$tmp/b/rank=2,codec=none/metrics.jsonl" ]
check "a listed line runs" eval "$(sed -n 6p "$tmp/list") >/dev/null"
check "the table of a part" sweep b --table
check "not run, run by hand" [ "$(row 1 end)-$(row 6 10)" = run-0 ]

# Values with commas, blanks and slashes; the same last word in two keys; a launcher.
check "lists as values" sweep c --config "$tmp/c.json" --list --launch "env A=1" \
	--grid "data.train=[\"$tmp/t.txt\",\"$tmp/t.txt\"],[\"a, b.txt\"]" --grid 'compress.data_parallel.rank=1' \
	--grid=compress.pipeline_backward.rank=2
check "two combinations" [ "$(wc -l <"$tmp/out")" = 2 ]
check "the value is whole" grep -qF "'data.train=[\"a, b.txt\"]'" "$tmp/out"
check "the launcher comes first" grep -q "^'env' 'A=1' '.*occ-train' " "$tmp/out"
check "names tell keys apart" grep -qE "/train=[^/ ]*,data_parallel.rank=1,pipeline_backward.rank=2'" "$tmp/out"

# Stopped in a run: 75; started again it goes on from its checkpoint, and ends as if it had not been stopped.
long=(--config "$tmp/c.json" --ranks 2 --set train.iters=400 --set checkpoint.dir=any --set log.every=5
	--grid "optimizer.lr=0.001,0.0001")
stop() { # SIGNAL: once the first run is under way
	local pid got=0
	scripts/sweep.sh --out "$tmp/d" "${long[@]}" >"$tmp/out" 2>"$tmp/err" </dev/null &
	pid=$!
	for _ in $(seq 200); do grep -q '"iter":10,' "$tmp/d/lr=0.001/metrics.jsonl" 2>/dev/null && break; sleep 0.05; done
	kill -"$1" "$pid"
	wait "$pid" || got=$?
	[ "$got" = 75 ] || { echo "exit $got" >&2; false; }
}
check "stopped by TERM" stop TERM
check "a checkpoint is there" [ -n "$(ls -d "$tmp"/d/lr=0.001/checkpoint/step-* 2>/dev/null)" ]
check "the second was not begun" [ ! -e "$tmp/d/lr=0.0001" ]
check "the table of a stopped one" sweep d --table
check "says so" [ "$(row 1 end)" = stopped ]
check "it goes on" code_is 0 sweep d
check "from the checkpoint" grep -q 'resumed from' "$tmp/d/lr=0.001/out"
check "and is complete" [ "$(row 1 9)-$(row 2 9)" = 0-0 ]
check "the same run uninterrupted" code_is 0 sweep e "${long[@]}" --only 1
last() { grep '"event":"train"' "$1" | tail -n 1 | sed 's/,"tokens":.*//'; }
check "the same bits" [ "$(last "$tmp/d/lr=0.001/metrics.jsonl")" = "$(last "$tmp/e/lr=0.001/metrics.jsonl")" ]

# A diverged run is a result: it is not made again.
wild=(--config "$tmp/c.json" --grid optimizer.lr=1000000 --set parallel.pipeline=1 --set train.iters=9)
check "diverged" code_is 1 sweep f "${wild[@]}"
check "once more" code_is 1 sweep f
check "it is not made again" grep -q ': diverged, exit 6$' "$tmp/out"

# Bad arguments: 2, one line that names them, nothing made.
while IFS='|' read -r text args; do
	# shellcheck disable=SC2046,SC2086
	check "$args: exit 2" code_is 2 sweep g $(printf '%s' "$args" | sed "s|@|$tmp|g")
	check "$args: one line, not $(cat "$tmp/err")" [ "$(wc -l <"$tmp/err")" = 1 ]
	check "$args: says $text, not $(cat "$tmp/err")" grep -qF -- "$text" "$tmp/err"
done <<'ROWS'
--config|--grid train.seed=1
--grid|--config @/c.json
--grud|--config @/c.json --grud train.seed=1
needs a value|--config @/c.json --grid
key=value|--config @/c.json --grid train.seed
train.sed|--config @/c.json --grid train.sed=1,2
twice|--config @/c.json --grid train.seed=1 --grid train.seed=2
twice|--config @/c.json --grid train.seed=1,1
empty value|--config @/c.json --grid train.seed=1,,2
log.dir|--config @/c.json --grid log.dir=a,b
from 1 to 2|--config @/c.json --grid train.seed=1,2 --only 3
--ranks|--config @/c.json --grid train.seed=1,2 --ranks x
--launch|--config @/c.json --grid train.seed=1,2 --ranks 2 --launch mpirun
nosuch.json|--config @/nosuch.json --grid train.seed=1,2
modle|--config @/c.json --grid train.seed=1,2 --set modle.layers=2
no value|--config @/c.json --grid train.seed=1,2 --table=x
ROWS
check "nothing was made" [ ! -e "$tmp/g" ]
finish
