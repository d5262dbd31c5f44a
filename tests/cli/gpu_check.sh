#!/usr/bin/env bash
# scripts/gpu-check with GPU code on the CPU: every step runs, the table and the JSON agree and say that no GPU was
# there; a machine without one is told so; a step that fails does not stop the others. TIME: 300
. tests/lib.sh
on_cuda
unset LD_LIBRARY_PATH # the script finds the emulation itself
json() { "$BUILD/tests/tools/json" "$tmp/out/gpu-check.json" "$@"; }
export OCC_CHECK_SIZE=smallest

code=0
PATH=$tmp:$PATH scripts/gpu-check --out "$tmp/none" >"$tmp/text" 2>&1 || code=$?
if command -v nvidia-smi >/dev/null; then
	skip "a machine without GPU: this one has one"
else
	check "without a GPU: exit $code" [ "$code" = 8 ]
	check "in one line that says what to do" [ "$(grep -c -- --emulated "$tmp/text")/$(wc -l <"$tmp/text")" = 1/1 ]
fi
code=0
scripts/gpu-check --wrong >"$tmp/text" 2>&1 || code=$?
check "an unknown option: exit $code" [ "$code" = 2 ]

if ! scripts/gpu-check --emulated --out "$tmp/out" >"$tmp/text" 2>&1; then
	check "it failed: $(grep -E 'FAILED|WRONG' "$tmp/text" || tail -n 3 "$tmp/text")" false
fi
check "no step is missing from the table" [ "$(grep -c '^-- ' "$tmp/text")" = 11 ]
check "it says that no GPU was there" grep -q '^\* not from a GPU' "$tmp/text"
check "so does the JSON" [ "$(json . emulated)" = true ]
check "in each row" [ "$(json rows from_gpu | sort -u)" = false ]
check "versions" [ -n "$(json versions runtime)" ]
json rows what verdict | sort >"$tmp/rows"
for what in copy adamw residual_norm_forward quantise 'gemm A qkv' 'attention A plain backward' step; do
	check "$what is right" grep -q "^$what	right$" "$tmp/rows"
done
check "bytes of adamw: 30 a parameter" [ "$(json rows what bytes | sed -n 's/^adamw\t//p')" = 103680 ]
check "tokens a second of a step" [ "$(json rows what tokens_per_s | sed -n "s/^step\t//p")" -gt 0 ]
check "graphs are launched" [ "$(json rows what launched | sed -n 's/^OCC_GRAPHS=on\t//p' | sort -g | head -n 1)" -gt 0 ]
check "and give the same losses" [ "$(json rows what losses_apart | grep -c '^OCC_GRAPHS=.*	0$')" = 2 ]
json rows what losses_apart | grep '^OCC_GELU=' >"$tmp/gelu"
check "GELU both ways" [ "$(wc -l <"$tmp/gelu")" = 2 ]
check "fused GELU was taken: it rounds once less" [ "$(grep -c '	0$' "$tmp/gelu")" = 1 ]
for what in tests/unit/device 'fp32 2 tensor=2' 'fp32 4 pipeline=2 data=2' 'bf16 2 data=2' 'fp32 2 data=2'; do
	[ "$OCC_MPI" = 1 ] || [[ $what = tests* ]] || continue
	check "$what: $(grep "^$what" "$tmp/rows")" grep -q "^$what	ok$" "$tmp/rows"
done
check "six shapes of attention" [ "$(grep -c '^attention B.*right' "$tmp/rows")" -ge 6 ]
check "what needs a GPU says so" [ "$(grep -c 'needs a GPU' "$tmp/rows")" = 3 ]
check "the table has every row" [ "$(grep -c . "$tmp/rows")" = "$(grep -cE '^(build|[a-zA-Z0-9].* (right|ok|needs a GPU))' \
	"$tmp/out/gpu-check.txt")" ]

# The GPU's memory gives out, in the middle of things.
code=0
OCC_EMU_MEM=1000000 scripts/gpu-check --emulated --out "$tmp/out" >"$tmp/text" 2>&1 || code=$?
check "it fails if something fails, not with $code" [ "$code" = 1 ]
check "the JSON says what" [ "$(json rows verdict | grep -c FAILED)" -ge 1 ]
check "as the table does" grep -q 'FAILED *exit 8' "$tmp/text"
finish
