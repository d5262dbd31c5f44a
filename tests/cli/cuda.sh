#!/usr/bin/env bash
# Training with GPU code, which runs on the CPU: losses, gradient norms and weights against the independent
# implementations of tests/golden, and where those have no run against the ref device; by NCCL and through host
# memory the same bits, however late streams run; checkpoints go on. TIME: 1500
. tests/lib.sh
on_cuda
. tests/golden/lib.sh
gpu=(--set train.device=cuda)

few=8 layouts=("1 1 1" "4 1 1" "1 4 1" "1 1 4")
if long; then
	few=20
	layouts+=("2 1 1" "1 2 1" "1 1 2" "2 2 1" "2 1 2" "1 2 2" "2 2 2" "2 4 1" "1 4 2")
fi
steps=$few
for at in "${layouts[@]}"; do
	# shellcheck disable=SC2086
	golden cosine thread $at 2 none "${gpu[@]}"
done
# GELU on the way out of its products, everywhere.
export OCC_GELU=fused OCC_LOG=info:0
golden cosine thread 2 2 2 1 full "${gpu[@]}"
unset OCC_GELU OCC_LOG
without() { ! grep "$1" "$tmp/out" >&2; }
check "a product with GELU took another way" without "cublasLt: no product.*GELU"
# The power iterations' kernels are slow here: two steps, of which the second has what the first left behind; 20 in
# the long tier.
steps=2 loss_bound=5e-4 norm_bound=3e-2
long && steps=20
golden compress-dp-16 thread 1 1 4 1 none "${gpu[@]}"
golden compress-cb-all-16 thread 1 4 2 1 none "${gpu[@]}"
# Two to three digits of bf16, as on the other devices.
steps=$few loss_bound=3e-3 norm_bound=4e-2
golden cosine thread 2 2 2 2 none "${gpu[@]}" --set train.precision=bf16
steps=20 loss_bound=2e-6 norm_bound=2e-5
golden untied thread 2 1 2 2 none "${gpu[@]}" --set checkpoint.dir="$tmp/untied"
golden_weights untied "$tmp/untied"

# What was computed and what travelled, without what a clock says.
numbers() {
	sed -nE '/"event": *"train"/{s/"(step_ms|tokens_per_s|mfu|encode_ms|decode_ms|exposed_ms)":[^,}]*,?//g;p}' "$1/metrics.jsonl"
}
alike() { # STEPS DIR DIR
	[ "$(numbers "$2" | wc -l)" = "$1" ] || { echo "not $1 steps" >&2; return 1; }
	diff <(numbers "$2") <(numbers "$3") | head -n 4 | cut -c 1-300 >&2
	[ "${PIPESTATUS[0]}" = 0 ]
}
show() { tail -n 3 "$tmp/out" >&2; false; }

# ---- CUDA graphs (OCC_GRAPHS=on): what is recorded and launched again gives the same bits. ----

# "STREAMS RANKS KEY=VALUE...": four steps without and with; each rank launches
graphs() {
	local streams=$1 ranks=$2 way key launching sets=()
	shift 2
	for key in "$@"; do sets+=(--set "$key"); done
	for way in off on; do
		rm -rf "${tmp:?}/$way"
		launching=0
		[ "$way" = off ] || launching=$ranks
		OCC_GRAPHS=$way OCC_LOG=info OCC_EMU_STREAMS=$streams launch thread "$ranks" --config cosine.json "${gpu[@]}" \
			--set train.iters=4 --set log.dir="$tmp/$way" "${sets[@]}" >"$tmp/out" 2>&1 || show || return
		[ "$(grep -c 'CUDA graphs: [1-9].* launched [1-9]' "$tmp/out")" = "$launching" ] || show || return
	done
	alike 4 "$tmp/off" "$tmp/on"
}
while read -r often line; do
	[ "$often" = always ] || long || continue
	# shellcheck disable=SC2086
	check "graphs: $line" graphs $line
done <<-END
	always eager 2 parallel.pipeline=2
	long lazy:1 2 parallel.pipeline=2 model.recompute=full
	long lazy:2 4 parallel.pipeline=4
	long lazy:3 4 parallel.pipeline=2 parallel.data=2 train.precision=bf16
	long lazy:4 1 model.recompute=full train.precision=bf16
END

# ---- By NCCL and through host memory. ----

# train WAY NAME KEY=VALUE...: eight ranks under mpirun. nccl: each has a GPU; late: and what is not waited
# for comes as late as it may, threads in any order; staged: all share one
train() {
	local way=$1 name=$2 key sets=() settings=(OCC_EMU_GPUS=8) says="travels by NCCL"
	shift 2
	for key in "$@"; do sets+=(--set "$key"); done
	case $way in
	late) settings+=(OCC_EMU_STREAMS=lazy:1 OCC_EMU_ORDER=random:1) ;;
	staged) settings=(OCC_EMU_GPUS=1) says="through host memory: .*have one GPU" ;;
	esac
	rm -rf "${tmp:?}/$way"
	# A step may take long where others work: silence is a failure after as long as the whole may take.
	env "${settings[@]}" OCC_LOG=info:0 timeout 400 mpirun -q -n 8 "$OCC_TRAIN" --config "$name.json" "${gpu[@]}" \
		--set train.timeout_s=300 \
		"${sets[@]}" --set log.dir="$tmp/$way" >"$tmp/out" 2>&1 </dev/null || show || return
	grep -q "$says" "$tmp/out" || show
}
# "CONFIGURATION STEPS KEY=VALUE..."
ways() {
	local name=$1 n=$2 way
	long && n=20
	for way in nccl late staged; do
		check "$way: $*" train $way "$name" train.iters="$n" "${@:3}" || return
		[ $way = nccl ] || check "nccl and $way differ: $*" alike "$n" "$tmp/nccl" "$tmp/$way"
	done
}
cube="parallel.tensor=2 parallel.pipeline=2 parallel.data=2"
if [ "$OCC_MPI" = 1 ]; then
	while read -r often line; do
		[ "$often" = always ] || long || continue
		read -r -a line <<<"$line"
		ways "${line[@]}"
	done <<-END
		always cosine 3 $cube model.dropout=0.1
		always compress-none-16 3 compress.pipeline_forward.codec=dct compress.pipeline_forward.fraction=0.25 compress.data_parallel.codec=topk compress.data_parallel.fraction=0.1
		long compress-none-16 3 $cube compress.pipeline_forward.codec=topk compress.pipeline_forward.fraction=0.2 compress.pipeline_backward.codec=errbound compress.pipeline_backward.epsilon=1e-5 compress.data_parallel.codec=quant compress.data_parallel.bits=8
		always compress-optimus-16 2
	END
	steps=2 loss_bound=5e-4 norm_bound=3e-2
	long && steps=20
	check "nccl: compress-optimus-16 is not golden" compare compress-optimus-16 "$tmp/nccl/metrics.jsonl"
else
	skip "mpirun: this build has no MPI or a sanitizer that it does not suit"
fi

# ---- Every other codec, wherever it may stand: as the ref device trains. After a few steps a last bit turns a code
# or a choice, on the cpu device too, and from then on losses part by up to 1e-4; so four steps, and a narrow bound. ----

losses() { sed -n '/"event": *"train"/s/.*"loss": *\([^,}]*\).*/\1/p' "$1/metrics.jsonl"; }
trace() { # DEVICE ARGS...
	rm -rf "${tmp:?}/$1"
	launch thread 4 --config compress-none.json --set parallel.pipeline=2 --set parallel.data=2 --set train.iters=4 \
		--set train.device="$1" --set log.dir="$tmp/$1" "${@:2}" >"$tmp/out" 2>&1 || show
}
same() {
	paste <(losses "$tmp/ref") <(losses "$tmp/cuda") |
		awk '($1 - $2) ^ 2 > (1e-6 * $1) ^ 2 { print "step", NR, $1, $2; bad = 1 } END { exit bad || NR < 4 }' >&2
}
while read -r -a keys; do
	sets=()
	for key in "${keys[@]}"; do
		key=${key/#back./compress.pipeline_backward.} key=${key/#fwd./compress.pipeline_forward.}
		sets+=(--set "${key/#dp./compress.data_parallel.}")
	done
	check "ref: ${keys[*]}" trace ref "${sets[@]}" && check "cuda: ${keys[*]}" trace cuda "${sets[@]}" &&
		check "cuda is not ref: ${keys[*]}" same
done <<-END
	back.codec=topk back.fraction=0.1 back.mark=all dp.codec=quant dp.bits=8
	back.codec=quant back.bits=4 back.mark=all dp.codec=topk dp.fraction=0.05
	back.codec=errbound back.epsilon=1e-5 back.mark=all dp.codec=cast dp.type=fp16
	back.codec=cast back.mark=all dp.codec=errbound dp.epsilon=1e-5
	fwd.codec=dct fwd.fraction=0.25 dp.codec=dct dp.fraction=0.25
END

# ---- Checkpoints: six steps are three and three more, with what compression keeps; the CPU goes on too. ----

steps_of() { # DEVICE STEPS DIR ARGS...
	launch thread 4 --config compress-none.json --set parallel.pipeline=2 --set parallel.data=2 --set train.device="$1" \
		--set compress.pipeline_backward.codec=topk --set compress.pipeline_backward.fraction=0.1 \
		--set compress.data_parallel.codec=powersgd --set compress.data_parallel.rank=2 --set train.iters="$2" \
		--set log.dir="$3" "${@:4}" >"$tmp/out" 2>&1 || show
}
check "six steps" steps_of cuda 6 "$tmp/six"
check "three steps" steps_of cuda 3 "$tmp/part" --set checkpoint.dir="$tmp/ckpt"
cp -r "$tmp/ckpt" "$tmp/copy" && cp -r "$tmp/part" "$tmp/cpu"
check "three more" steps_of cuda 6 "$tmp/part" --set checkpoint.dir="$tmp/ckpt"
check "three and three steps are not six" alike 6 "$tmp/six" "$tmp/part"
check "three more on the CPU" steps_of cpu 6 "$tmp/cpu" --set checkpoint.dir="$tmp/copy"
rm -rf "$tmp/ref" "$tmp/cuda"
check "the CPU goes on elsewhere" awk '
	NR == FNR { want[NR] = $1; next }
	{ if ((want[FNR] - $1) ^ 2 > (1e-4 * $1) ^ 2) bad = 1 }
	END { exit bad || FNR != 6 }' <(losses "$tmp/six") <(losses "$tmp/cpu")
finish
