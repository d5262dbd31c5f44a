#!/usr/bin/env bash
# What goes wrong with GPUs, as the emulation plays it: none there, none left, memory, kernels, cuBLAS, NCCL, ranks
# that are killed or stuck in the middle; each ends all ranks soon, with its code and one line. TIME: 240
. tests/lib.sh
without=$OCC_TRAIN
on_cuda

head -c 60000 tests/data/tinyshakespeare.txt >"$tmp/t.txt"
cat >"$tmp/c.json" <<JSON
{"model": {"layers": 2, "hidden": 16, "heads": 4, "seq_len": 16, "vocab_size": 256},
 "batch": {"global": 8}, "data": {"train": ["$tmp/t.txt"]},
 "train": {"iters": 2, "device": "cuda", "threads": 1, "timeout_s": 3}}
JSON
# In the environment of one rank only: RANK NAME=VALUE COMMAND...
cat >"$tmp/only" <<'SH'
#!/bin/sh
rank=$1 set=$2
shift 2
[ "$OMPI_COMM_WORLD_RANK" != "$rank" ] || export "${set?}"
exec "$@"
SH
chmod +x "$tmp/only"

# ends CODE TEXT COMMAND...: within ten seconds, with that code and one line that says so
ends() {
	local want=$1 text=$2 code=0
	shift 2
	timeout -k 5 30 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
	sed -i '/^cuda-emu: .*injected failure$/d' "$tmp/err"
	check "$*: exit $code instead of $want: $(head -c 300 "$tmp/err")" [ "$code" = "$want" ]
	[ "$want" = 0 ] || check "$*: one line, not $(cat "$tmp/err")" [ "$(wc -l <"$tmp/err")" = 1 ]
	check "$*: says $text, not $(cat "$tmp/out" "$tmp/err")" grep -q -- "$text" "$tmp/out" "$tmp/err"
}
one=("$OCC_TRAIN" --config "$tmp/c.json")
pair=(mpirun -q -n 2)

# ---- One process. ----

while IFS='|' read -r code text settings args; do
	# shellcheck disable=SC2086
	ends "$code" "$text" env $settings "${one[@]}" $args
done <<'ROWS'
2|OCC_GRAPHS=1 in the environment: off or on|OCC_GRAPHS=1|
2|OCC_GELU=Fused in the environment: apart or fused|OCC_GELU=Fused|--set train.device=auto
8|no GPU can be used: CUDA: no CUDA-capable device|OCC_EMU_GPUS=0|
0|cpu fp32|OCC_EMU_GPUS=0|--set train.device=auto
0|cuda fp32|OCC_EMU_GPUS=1|--set train.device=auto
8|no GPU can be used: its memory: out of memory|OCC_EMU_MEM=40000000|
8|no GPU can be used: pinned host memory: |OCC_EMU_FAIL=cudaMallocHost:1|
8|GPU memory: .* wanted|OCC_EMU_MEM=102000000|--set model.hidden=256
0|step 2/2|OCC_EMU_FAIL=cudaMallocAsync:1|
0|step 2/2|OCC_EMU_FAIL=cudaMallocAsync:7|
8|cudaMemPoolTrimTo|OCC_EMU_FAIL=cudaMemPoolTrimTo:1 OCC_EMU_MEM=102000000|--set model.hidden=256
8|unspecified launch failure|OCC_EMU_FAIL=cudaLaunchKernel:1|
8|unspecified launch failure|OCC_EMU_FAIL=cudaLaunchKernel:30|
8|cublasGemmEx: the function failed|OCC_EMU_FAIL=cublasGemmEx:3|
0|cublasLt: no product of .* with its bias|OCC_EMU_FAIL=cublasLtMatmul-refuses:2 OCC_LOG=info|
8|cublasLtMatmul: the function failed|OCC_EMU_FAIL=cublasLtMatmul:2|
8|cuBLAS does not start|OCC_EMU_FAIL=cublasCreate:2|
8|cudaMemcpyAsync|OCC_EMU_FAIL=cudaMemcpyAsync:9|
8|cudaEventCreateWithFlags|OCC_EMU_FAIL=cudaEventCreateWithFlags:3|
5|nccl: there is no GPU|OCC_EMU_GPUS=0|--set parallel.transport=nccl --set train.device=auto
2|joins processes|OCC_EMU_GPUS=8|--set parallel.transport=nccl --ranks 2
ROWS

# A graph that cannot be made or launched: the run is as it is without.
losses() { grep -o '"loss":[^,]*,"grad_norm":[^,]*' "$tmp/graphs/metrics.jsonl"; }
graphs() { ends 0 "$3" env OCC_GRAPHS="$1" OCC_LOG=info OCC_EMU_FAIL="$2" "${one[@]}" --set log.dir="$tmp/graphs"; }
graphs off none:1 "step 2/2"
right=$(losses)
while IFS='|' read -r failure text; do
	rm -rf "$tmp/graphs"
	graphs on "$failure" "no CUDA graph of a part of the work: $text"
	check "$failure: $(losses)" [ "$(losses)" = "$right" ]
done <<'ROWS'
cublasGemmEx:60|cublasGemmEx: the function failed
cudaGraphInstantiate:1|cudaGraphInstantiate: out of memory
cudaGraphLaunch:3|cudaGraphLaunch: invalid argument
ROWS
ends 2 "no bin/nvcc under /nowhere" make -s --no-print-directory CUDA=1 CUDA_HOME=/nowhere

if [ "$OCC_MPI" != 1 ]; then
	skip "mpirun: this build has no MPI or a sanitizer that it does not suit"
	finish
fi

# ---- One rank of two. ----

export OCC_EMU_GPUS=8
while IFS='|' read -r code text rank setting args; do
	# shellcheck disable=SC2086
	ends "$code" "$text" "${pair[@]}" "$tmp/only" "$rank" "$setting" "${one[@]}" $args
done <<'ROWS'
8|rank 0 .*GPU memory: .* wanted|0|OCC_EMU_MEM=102000000|--set parallel.pipeline=2 --set model.hidden=256
8|rank 1 .*GPU memory: .* wanted|1|OCC_EMU_MEM=102000000|--set parallel.data=2 --set model.hidden=256
8|rank 1 .*launch failure|1|OCC_EMU_FAIL=cudaLaunchKernel:30|--set parallel.pipeline=2
8|rank 0 .*cublasGemmEx: the function failed|0|OCC_EMU_FAIL=cublasGemmEx:3|--set parallel.tensor=2
8|rank 1 .*no GPU can be used: CUDA: no CUDA-capable device|1|OCC_EMU_GPUS=0|--set parallel.data=2
8|some ranks can use a GPU and some cannot|1|OCC_EMU_GPUS=0|--set parallel.data=2 --set train.device=auto
7|NCCL, gradients between stages: remote process|0|OCC_EMU_NCCL_ASYNC=5|--set parallel.pipeline=2
7|NCCL, replicas: remote process|1|OCC_EMU_NCCL_ASYNC=5|--set parallel.data=2
7|rank 1 .*NCCL, replicas: |1|OCC_EMU_FAIL=ncclCommInitRankConfig:1|--set parallel.data=2
7|rank 0 .*NCCL, replicas: |0|OCC_EMU_FAIL=ncclGetUniqueId:1|--set parallel.data=2
7|rank 0 .*NCCL, replicas: |0|OCC_EMU_FAIL=ncclSend:3|--set parallel.data=2
ROWS
nccl=(--set parallel.data=2 --set parallel.transport=nccl)
ends 5 "ranks 0 and 1 have one GPU, GPU-" env OCC_EMU_GPUS=1 "${pair[@]}" "${one[@]}" "${nccl[@]}"
ends 5 "not with CUDA_LAUNCH_BLOCKING" env CUDA_LAUNCH_BLOCKING=1 "${pair[@]}" "${one[@]}" "${nccl[@]}"
ends 0 "32 instead of 1" env CUDA_DEVICE_MAX_CONNECTIONS=1 OCC_LOG=info "${pair[@]}" "${one[@]}" "${nccl[@]}"
ends 2 'train.device "cpu" needs mpi' "${pair[@]}" "${one[@]}" "${nccl[@]}" --set train.device=cpu
ends 2 "built without CUDA" "${pair[@]}" "$without" --config "$tmp/c.json" "${nccl[@]}" --set train.device=cpu

# A step of two seconds, all of it in one wait, is no silence of one.
if long; then
	ends 0 "step 2/2" env OCC_EMU_STREAMS=lazy:1 "${pair[@]}" "${one[@]}" --set parallel.data=2 --set train.timeout_s=1 \
		--set model.hidden=64 --set model.seq_len=64 --set batch.micro=1 --set batch.global=256 --set log.dir="$tmp/log"
	check "steps are too short to show it" awk -F'"step_ms": *' '/"train"/ { if ($2 + 0 > 1500) n++ } END { exit n < 2 }' \
		"$tmp/log/metrics.jsonl"
fi

# ---- A rank that is killed or stuck while others wait for it by NCCL. ----

mine() { pgrep -f -- "^[^ ]*occ-train --config $tmp/c.json"; }
# hit SIGNAL RANK STAGES: into $code, $took and err, as in kills.sh
hit() {
	local pid gone=
	rm -rf "$tmp/log"
	timeout -s KILL 25 mpirun -q -n 4 "${one[@]}" --set parallel.pipeline="$3" --set parallel.data=0 \
		--set train.iters=1000000 --set log.dir="$tmp/log" >/dev/null 2>"$tmp/err" </dev/null &
	pid=$!
	for _ in $(seq 400); do
		grep -q '"iter":3' "$tmp/log/metrics.jsonl" 2>/dev/null && break
		sleep 0.05
	done
	kill -"$1" "$(mine | sed -n "$2p")"
	SECONDS=0 code=0
	while kill -0 "$pid" 2>/dev/null; do
		[ -n "$gone" ] || [ -n "$(mine)" ] || gone=$SECONDS
		sleep 0.2
	done
	wait "$pid" 2>/dev/null || code=$?
	took=${gone:-$SECONDS}
	for _ in $(seq 60); do [ -z "$(mine)" ] && break; sleep 0.1; done
	mine | xargs -r kill -KILL
}
for rank in 1 4; do
	stages=$((rank == 1 ? 2 : 1))
	hit KILL $rank $stages
	check "killed rank $rank: exit $code" [ "$code" != 0 ]
	check "killed rank $rank: it took $took s" [ "$took" -lt 10 ]
	check "killed rank $rank: one line at most, not $(cat "$tmp/err")" [ "$(grep -c occ-train: "$tmp/err")" -le 1 ]
	hit STOP $rank $stages
	check "stuck rank $rank: exit $code" [ "$code" = 7 ]
	check "stuck rank $rank: it took $took s" [ "$took" -lt 12 ]
	check "stuck rank $rank: one line, not $(cat "$tmp/err")" [ "$(grep -c occ-train: "$tmp/err")" = 1 ]
done
# Nor where the others stand inside a call of CUDA, which waits for room.
OCC_EMU_DEPTH=3 OCC_EMU_STREAMS=lazy:1 hit STOP 4 2
check "a call that does not return: exit $code" [ "$code" = 7 ]
check "a call that does not return: it took $took s" [ "$took" -lt 15 ]
check "a call that does not return: one line, not $(cat "$tmp/err")" [ "$(grep -c occ-train: "$tmp/err")" = 1 ]
finish
