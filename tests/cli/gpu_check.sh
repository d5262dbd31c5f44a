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

# A machine with several GPUs of which it asks for one; there is none, so it ends at the libraries.
mkdir "$tmp/bin"
cat >"$tmp/bin/nvidia-smi" <<-'SH'
	#!/bin/sh
	echo "${CUDA_VISIBLE_DEVICES:-none} $*" >>"$0.log"
	case $* in
	*=uuid*) printf 'GPU-first\nGPU-second\n' ;;
	*"-i GPU-first "* | *"-i 3 "*) echo 'NVIDIA H200, 580.1, 700.00, 143771, 9.0' ;;
	esac
SH
chmod +x "$tmp/bin/nvidia-smi"
for chosen in '' 3,1; do
	rm -f "$tmp/bin/nvidia-smi.log"
	code=0
	PATH=$tmp/bin:$PATH CUDA_VISIBLE_DEVICES=$chosen OCC_CUDA=$OCC_CUDA scripts/gpu-check --out "$tmp/many" >"$tmp/text" 2>&1 || code=$?
	check "several GPUs, ${chosen:-none chosen}: exit $code" [ "$code" = 1 ]
	check "one is asked about: $(cat "$tmp/bin/nvidia-smi.log")" \
		[ "$(tail -n 1 "$tmp/bin/nvidia-smi.log" | cut -d ' ' -f 1-3)" = "$([ -n "$chosen" ] && echo "3,1 -i 3" || echo GPU-first -i GPU-first)" ]
	check "it is in the versions" grep -q '^gpu=NVIDIA H200 driver=580.1 power_limit_W=700.00 memory_MiB=143771' "$tmp/text"
done

if ! OCC_EMU_GPUS=2 scripts/gpu-check --emulated --out "$tmp/out" >"$tmp/text" 2>&1; then
	check "it failed: $(grep -E 'FAILED|WRONG' "$tmp/text" || tail -n 3 "$tmp/text")" false
fi
check "no step is missing from the table" [ "$(grep -c '^-- ' "$tmp/text")" = 12 ]
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
for what in tests/unit/device 'fp32 2 tensor=2' 'fp32 4 pipeline=2 data=2' 'bf16 2 data=2' 'fp32 2 data=2' 'fp32 2 pipeline=2' \
	'fp32 2 GPUs data=2' 'fp32 2 GPUs tensor=2' 'fp32 2 GPUs pipeline=2'; do
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
