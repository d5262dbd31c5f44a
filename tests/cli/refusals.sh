#!/usr/bin/env bash
# Bad input: the right exit code, exactly one line on standard error that names what and where, nothing
# written; in one process, as threads and under mpirun. TIME: 200
. tests/lib.sh

head -c 20000 tests/data/tinyshakespeare.txt >"$tmp/t.txt"
: >"$tmp/empty.txt"
mkdir "$tmp/dir"
head -c 1000 /dev/zero >"$tmp/zeros.bin"
cat >"$tmp/c.json" <<JSON
{"model": {"layers": 2, "hidden": 16, "heads": 4, "seq_len": 16, "vocab_size": 256},
 "batch": {"global": 8}, "train": {"iters": 2, "threads": 1}, "data": {"train": ["$tmp/t.txt"]}}
JSON
printf '{"model": {"layers": 2,}}' >"$tmp/syntax.json"
printf '{"modle": {"layers": 2}}' >"$tmp/unknown.json"
"$OCC_TRAIN" tokenize --vocab bytes --out "$tmp/t.bin" "$tmp/t.txt" >/dev/null
head -c 3000 "$tmp/t.bin" >"$tmp/short.bin"
printf 'x' | cat "$tmp/t.bin" - >"$tmp/long.bin"
printf '\377\377\377\377\377\377\377\177{}' >"$tmp/bad.safetensors"

# refuse CODE TEXT COMMAND...
refuse() {
	local want=$1 text=$2 got=0
	shift 2
	timeout 20 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || got=$?
	check "${*: -4}: exit $got instead of $want: $(head -c 300 "$tmp/err")" [ "$got" = "$want" ]
	check "${*: -4}: one line, not $(cat "$tmp/err")" [ "$(wc -l <"$tmp/err")" = 1 ]
	check "${*: -4}: says $text, not $(cat "$tmp/err")" grep -qF -- "$text" "$tmp/err"
}
c=(--config "$tmp/c.json")

while IFS='|' read -r code text args; do
	# shellcheck disable=SC2046,SC2086
	refuse "$code" "$text" "$OCC_TRAIN" $(printf '%s' "$args" | sed "s|@|$tmp|g")
done <<'ROWS'
2|--config|--set a=1
2|nosuch.json|--config @/nosuch.json
2|syntax.json:1|--config @/syntax.json
2|modle|--config @/unknown.json
2|model.layers|--config @/c.json --set model.layers=two
2|model.layer"|--config @/c.json --set model.layer=2
2|heads|--config @/c.json --set model.heads=3
2|global|--config @/c.json --set batch.micro=3
2|pipeline|--config @/c.json --set parallel.pipeline=4 --ranks 4
2|CUDA|--config @/c.json --set train.device=cuda
2|data.train|--config @/c.json --set data.train=[]
2|needs log.dir|--config @/c.json --set log.trace_iters=[1]
2|dct|--config @/c.json --set compress.pipeline_forward.codec=dct --set compress.pipeline_backward.codec=quant
2|codec|--config @/c.json --set compress.pipeline_backward.codec=zip
2|codec|--config @/c.json --set compress.pipeline_forward.codec=auto
5|ranks|--config @/c.json --set parallel.tensor=2
5|ranks|--config @/c.json --set parallel.tensor=2 --ranks 3
3|nosuch.txt|--config @/c.json --set data.train=["@/nosuch.txt"]
3|empty.txt|--config @/c.json --set data.train=["@/empty.txt"]
3|dir|--config @/c.json --set data.train=["@/dir"]
3|zeros.bin|--config @/c.json --set data.train=["@/zeros.bin"]
3|short.bin|--config @/c.json --set data.train=["@/short.bin"]
3|long.bin|--config @/c.json --set data.train=["@/long.bin"]
3|vocab_size|--config @/c.json --set model.vocab_size=100
3|bad.safetensors|--config @/c.json --set init.load=@/bad.safetensors
3|nosuch|--config @/c.json --set init.load=@/nosuch.safetensors
3|nosuch.bpe|--config @/c.json --set data.tokenizer=@/nosuch.bpe
4|nosuch|--config @/c.json --set checkpoint.resume=@/nosuch
4|/proc/none|--config @/c.json --set checkpoint.dir=/proc/none
4|t.txt/ck|--config @/c.json --set checkpoint.dir=@/t.txt/ck
2|regular|--config /dev/null
4|t.txt/log|--config @/c.json --set log.dir=@/t.txt/log
4|nosuch|export --checkpoint @/nosuch --out @/x.safetensors
3|zeros.bin|inspect @/zeros.bin
3|nosuch|inspect @/nosuch
3|nosuch|tokenize --vocab bytes --out @/new.bin @/nosuch
2|global|plan --config @/c.json --set batch.micro=3
5|ranks|plan --config @/c.json --set parallel.tensor=2 --ranks 3
2|no-such|plan --config @/no-such.json
2|no weights|generate --config @/c.json --prompt x
2|data.valid|eval --config @/c.json --set init.load=@/x
ROWS
check "no partial output" [ ! -e "$tmp/new.bin" ]
check "no partial export" [ ! -e "$tmp/x.safetensors" ]

# More memory than there is. The limit refuses the first large block on any machine; none is filled.
if [ -n "${OCC_SAN:-}" ]; then
	skip "out of memory: sanitizers map more than any limit"
else
	refuse 8 "out of memory" bash -c 'ulimit -v 8000000 && exec "$@"' limited "$OCC_TRAIN" "${c[@]}" \
		--set model.hidden=262144 --set model.heads=1024 --set model.layers=100
fi

# Threads and mpirun: one voice for all ranks.
for how in thread mpi; do
	if [ $how = mpi ] && [ "$OCC_MPI" != 1 ]; then
		skip "mpirun: this build has no MPI or a sanitizer that it does not suit"
		continue
	fi
	run=("$OCC_TRAIN")
	many=(--ranks 4)
	[ $how = thread ] || run=(mpirun -q -n 4 "$OCC_TRAIN") many=()
	refuse 2 heads "${run[@]}" "${c[@]}" "${many[@]}" --set model.heads=3
	refuse 3 nosuch.txt "${run[@]}" "${c[@]}" "${many[@]}" --set 'data.train=["nosuch.txt"]'
	refuse 5 ranks "${run[@]}" "${c[@]}" "${many[@]}" --set parallel.data=3
	refuse 5 "one rank" "${run[@]}" generate "${c[@]}" "${many[@]}" --prompt x
done
if [ "$OCC_MPI" = 1 ]; then
	refuse 2 --confg mpirun -q -n 4 "$OCC_TRAIN" --confg x
	refuse 2 --ranks mpirun -q -n 4 "$OCC_TRAIN" "${c[@]}" --ranks 4
	refuse 5 thread mpirun -q -n 4 "$OCC_TRAIN" "${c[@]}" --set parallel.transport=thread
fi
finish
