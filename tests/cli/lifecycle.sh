#!/usr/bin/env bash
# Restart, stopping on request, skipped steps, weights in and out, generate and eval: the real program.
# TIME: 200
. tests/lib.sh

head -c 60000 tests/data/tinyshakespeare.txt >"$tmp/train.txt"
tail -c 20000 tests/data/tinyshakespeare.txt >"$tmp/valid.txt"
cat >"$tmp/c.json" <<JSON
{"model": {"layers": 4, "hidden": 32, "heads": 4, "seq_len": 32, "vocab_size": 256, "dropout": 0.1},
 "batch": {"micro": 2, "global": 8}, "optimizer": {"lr": 0.003, "warmup_iters": 2},
 "train": {"iters": 12, "threads": 1},
 "data": {"train": ["$tmp/train.txt"], "valid": ["$tmp/valid.txt"]}, "eval": {"every": 5, "iters": 3},
 "checkpoint": {"keep": 3}}
JSON

# train NAME RANKS ARGS...: thread transport, log and checkpoint under $tmp/NAME
train() {
	local name=$1 ranks=$2
	shift 2
	"$OCC_TRAIN" --config "$tmp/c.json" --set parallel.transport=thread --ranks "$ranks" \
		--set checkpoint.dir="$tmp/$name" --set log.dir="$tmp/$name" "$@" >"$tmp/$name.out" 2>"$tmp/$name.err"
}
export_to() { "$OCC_TRAIN" export --checkpoint "$tmp/$1" --out "$tmp/$2.safetensors" >/dev/null; }
losses() { sed -n '/"event":"train"/s/.*"iter":\([0-9]*\),"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2 \3/p' "$tmp/$1/metrics.jsonl"; }
code_is() { # CODE COMMAND...
	local want=$1 got=0
	shift
	"$@" || got=$?
	[ "$got" = "$want" ] || { echo "exit $got instead of $want" >&2; false; }
}

# N steps = some + save + load + the rest, bit for bit, for each layout and compute type.
while read -r ranks tp pp extra; do
	shape=(--set parallel.tensor="$tp" --set parallel.pipeline="$pp")
	[ -z "$extra" ] || shape+=(--set "$extra")
	name="r$ranks-$tp-$pp-${extra//[^a-z0-9]/}"
	check "$name: whole run" train "$name-a" "$ranks" "${shape[@]}"
	check "$name: first part" train "$name-b" "$ranks" "${shape[@]}" --set train.iters=5 --set optimizer.decay_iters=12
	check "$name: second part" train "$name-b" "$ranks" "${shape[@]}"
	export_to "$name-a" "$name-a"
	export_to "$name-b" "$name-b"
	check "$name: the same weights" cmp "$tmp/$name-a.safetensors" "$tmp/$name-b.safetensors"
	losses "$name-a" >"$tmp/la"
	losses "$name-b" >"$tmp/lb"
	check "$name: the same metrics" cmp "$tmp/la" "$tmp/lb"
	check "$name: 12 lines" [ "$(wc -l <"$tmp/la")" = 12 ]
done <<'ROWS'
1 1 1
8 2 2
4 1 4 model.recompute=full
2 1 1 train.precision=bf16
2 2 1 model.tie_embeddings=false
1 1 1 train.device=ref
1 1 1 train.device=strict
ROWS

# A checkpoint of one layout continues on another.
cp -r "$tmp/r8-2-2--b" "$tmp/other"
check "another layout" train other 2 --set parallel.pipeline=2 --set train.iters=14
check "its lines go on" [ "$(losses other | wc -l)" = 14 ]

# strike NAME RANKS LINES CODE ACTION ARGS...: `train NAME RANKS ARGS...`, and ACTION PID once it has written
# LINES lines; it must then end with CODE
strike() {
	local name=$1 ranks=$2 lines=$3 want=$4 action=$5 pid got=0
	shift 5
	train "$name" "$ranks" --set train.iters=1000000 --set optimizer.decay_iters=12 --set eval.every=0 "$@" &
	pid=$!
	for _ in $(seq 100); do
		[ -s "$tmp/$name/metrics.jsonl" ] && [ "$(losses "$name" | wc -l)" -ge "$lines" ] && break
		sleep 0.1
	done
	"$action" "$pid"
	wait "$pid" || got=$?
	check "$name: exit $got instead of $want" [ "$got" = "$want" ]
}
send() { pkill -"$1" -P "$2" -x occ-train || kill -"$1" "$2" 2>/dev/null; } # SIGNAL PID: to the program in it
once() { send USR1 "$1"; }
twice() { send TERM "$1"; sleep 0.02; send TERM "$1"; } # it may be gone already
shrink() { truncate -s 100 "$tmp/shrinks.txt"; }

# A signal: complete checkpoint, 75, and the run continues bit for bit.
strike sig 2 3 75 once
check "sig: nothing on standard error" [ ! -s "$tmp/sig.err" ]
check "sig: the end event says so" grep -q '"why":"stopped"' "$tmp/sig/metrics.jsonl"
check "sig: a checkpoint is there" export_to sig sig

# The same signal delivered twice at once, as launchers and timeout(1) do, is one wish.
strike twice 2 3 75 twice
check "twice: a checkpoint is there" export_to twice twice

# Weights that are not finite are never the newest checkpoint.
check "6 on weights that overflow" code_is 6 train wild 1 --set optimizer.lr=1000000 --set optimizer.warmup_iters=0 --set train.iters=4
check "one line" [ "$(wc -l <"$tmp/wild.err")" = 1 ]
check "no checkpoint" [ -z "$(ls -d "$tmp"/wild/step-* 2>/dev/null)" ]

# A file that shrinks while it is mapped: one line and 3.
cp "$tmp/train.txt" "$tmp/shrinks.txt"
strike shrinks 1 1 3 shrink --set "data.train=[\"$tmp/shrinks.txt\"]"
check "shrinks: one line" [ "$(wc -l <"$tmp/shrinks.err")" = 1 ]

# Output that cannot be written is a failure.
for mode in --help --version --print-config "inspect $tmp/sig.safetensors"; do
	# shellcheck disable=SC2086
	check "$mode to a full device" code_is 4 eval "\$OCC_TRAIN $mode >/dev/full 2>$tmp/full.err"
	check "$mode: one line" [ "$(wc -l <"$tmp/full.err")" = 1 ]
done

# Non-finite steps: skipped up to max_skipped in a row, agreed by all; one more is exit 6 and one line.
check "6 at once" code_is 6 env OCC_FAULT=loss.nan:1:3 "$OCC_TRAIN" --config "$tmp/c.json" \
	--set parallel.transport=thread --ranks 2 >"$tmp/nan.out" 2>"$tmp/nan.err"
check "one line" [ "$(wc -l <"$tmp/nan.err")" = 1 ]
check "it names the step" grep -q 'step 3: the loss is not finite' "$tmp/nan.err"
OCC_FAULT=loss.nan:1:3 check "one is skipped" train nan 2 --set train.max_skipped=1
check "it is counted" grep -q '"iter":12,.*"skipped":1' "$tmp/nan/metrics.jsonl"
check "the step's line says so" grep -q '^step 3/.*norm [^ ]*  skipped  lr' "$tmp/nan.out"
check "and written as null" grep -q '"iter":3,"loss":null.*"nonfinite":true' "$tmp/nan/metrics.jsonl"

# Weights out and in again; eval agrees with the run's last; generate is deterministic.
last=$(sed -n '/"event":"eval"/s/.*"loss":\([^,]*\),.*/\1/p' "$tmp/r1-1-1--a/metrics.jsonl" | tail -n 1)
"$OCC_TRAIN" eval --config "$tmp/c.json" --set checkpoint.resume=never --set init.load="$tmp/r1-1-1--a.safetensors" >"$tmp/eval"
check "eval equals the run's last" awk -v a="$last" '{ exit !($2 - a < 1e-5 && a - $2 < 1e-5) }' "$tmp/eval"
check "iters 0 loads and saves" train again 1 --set train.iters=0 --set init.load="$tmp/r1-1-1--a.safetensors"
export_to again again
check "in and out are the same bytes" cmp "$tmp/again.safetensors" "$tmp/r1-1-1--a.safetensors"
cp -r "$tmp/r8-2-2--b" "$tmp/fewer"
check "iters 0 after a resume" train fewer 1 --set train.iters=0
check "saves in this layout" [ "$(find "$tmp"/fewer/step-00000012 -name 'shard-*' | wc -l)" = 1 ]
export_to fewer fewer
check "and the same weights" cmp "$tmp/fewer.safetensors" "$tmp/r8-2-2--b.safetensors"
for i in 1 2; do
	"$OCC_TRAIN" generate --config "$tmp/c.json" --set checkpoint.dir="$tmp/r8-2-2--a" --prompt "First " \
		--tokens 40 --seed 7 --top-k 20 >"$tmp/gen$i"
done
check "generate repeats" cmp "$tmp/gen1" "$tmp/gen2"
check "it starts with the prompt" grep -q '^First ' "$tmp/gen1"
check "inspect names a checkpoint" grep -qi checkpoint <("$OCC_TRAIN" inspect "$tmp"/again/step-*)
finish
