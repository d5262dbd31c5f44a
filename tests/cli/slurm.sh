#!/usr/bin/env bash
# A real Slurm of two nodes on this machine: srun trains as threads do; train.sbatch, stopped early, is requeued
# and ends as if it had not been stopped; a sweep as a job array. TIME: 200
. tests/lib.sh

if [ "${1:-}" != inside ]; then
	why='' code=0
	if [ "$OCC_MPI" != 1 ]; then
		why="this build has no MPI or a sanitizer that it does not suit"
	else
		tests/tools/slurm-up run -n 1 true >"$tmp/out" 2>&1 || code=$?
		[ $code != 69 ] || why=$(tail -n 1 "$tmp/out")
	fi
	if [ -n "$why" ]; then
		skip "Slurm: $why"
		finish
	fi
	TMPDIR=$tmp tests/tools/slurm-up run -n 2 -c 4 -- bash "$0" inside
	exit
fi

head -c 60000 tests/data/tinyshakespeare.txt >"$tmp/t.txt"
cat >"$tmp/c.json" <<JSON
{"model": {"layers": 4, "hidden": 32, "heads": 4, "seq_len": 32, "vocab_size": 256},
 "parallel": {"pipeline": 2}, "batch": {"micro": 2, "global": 8}, "optimizer": {"lr": 0.003},
 "train": {"iters": 40, "threads": 1}, "data": {"train": ["$tmp/t.txt"]}}
JSON
losses() { sed -n '/"event":"train"/s/.*"iter":\([0-9]*\),"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2 \3/p' "$tmp/$1/metrics.jsonl"; }
same() { [ -n "$(losses "$1")" ] && [ "$(losses "$1")" = "$(losses "$2")" ]; }
state() { scontrol show job "$1" 2>/dev/null | sed -n "s/.*\b$2=\([^ ]*\).*/\1/p" | head -n 1; }
await() { # SECONDS COMMAND...: until it succeeds
	local i
	for ((i = 0; i < 10 * $1; i++)); do "${@:2}" && return; sleep 0.1; done
	return 1
}
done_with() { case $(state "$1" JobState) in COMPLETED | FAILED | CANCELLED | TIMEOUT) ;; *) false ;; esac; }

# Both stages on one node each; the same bits as threads, and nodes are seen.
threads() { "$OCC_TRAIN" --config "$tmp/c.json" --ranks 4 --set log.dir="$tmp/threads" "$@"; }
check "threads" threads >"$tmp/out" 2>&1
check "srun" srun --mpi=pmix -N2 -n4 --ntasks-per-node=2 "$OCC_TRAIN" --config "$tmp/c.json" \
	--set log.dir="$tmp/srun" >"$tmp/out" 2>&1
check "srun and threads: the same bits" same srun threads
check "two nodes are seen" grep -q '"inter_node_wire_bytes":[1-9]' "$tmp/srun/metrics.jsonl"
code=0
srun --mpi=pmix -n4 "$OCC_TRAIN" --config "$tmp/c.json" --set model.heads=3 >"$tmp/out" 2>&1 || code=$?
check "srun: exit $code instead of 2" [ "$code" = 2 ]
check "srun: one line of ours" [ "$(grep -c '^occ-train: ' "$tmp/out")" = 1 ]
code=0
srun --mpi=none -n4 "$OCC_TRAIN" --config "$tmp/c.json" >"$tmp/out" 2>&1 || code=$?
check "srun without pmix: exit $code instead of 5" [ "$code" = 5 ]

# train.sbatch: a signal in the middle, a requeue, the rest. Meanwhile the sweep runs on the free CPUs.
log=(--set "log.dir=$tmp/job" --set "checkpoint.dir=$tmp/job/checkpoint" --set train.iters=300)
start() {
	rm -rf "$tmp/job" "$tmp/job.out"
	job=$(sbatch --parsable -N2 --ntasks-per-node=2 --oversubscribe -o "$tmp/job.out" scripts/slurm/train.sbatch \
		--config "$tmp/c.json" "${log[@]}")
	check "it trains" await 30 grep -qs '"iter":20,' "$tmp/job/metrics.jsonl"
	scancel --signal=USR1 "$job"
	check "a signal: it is requeued" await 20 requeued
	check "each rank says 75" grep -q 'exit code 75' "$tmp/job.out"
}
requeued() { [ "$(state "$job" Restarts)" = 1 ]; }
# Slurm's PMIx plugin sometimes loses a rank that nothing happened to while the ranks meet, and kills the step:
# once seen with a step that is started again while others start. Then, and only then, once more.
lost() {
	grep -q 'pmixp_client.*Error handler invoked' "$tmp/job.out" && ! grep -q 'resumed from' "$tmp/job.out" &&
		! grep -E 'srun: error: .*tasks? ' "$tmp/job.out" | grep -vqE 'Killed$|exit code 75$'
}
start

grid=(--config "$tmp/c.json" --out "$tmp/sweep" --set checkpoint.dir=any --set compress.pipeline_backward.codec=powersgd
	--grid "compress.pipeline_backward.rank=1,0,2")
n=$(scripts/sweep.sh "${grid[@]}" --list | wc -l)
array=$(sbatch --parsable --array="1-$n" -N2 --ntasks-per-node=1 -o "$tmp/array-%a.out" scripts/slurm/sweep.sbatch "${grid[@]}")
swept() { [ -z "$(squeue -h -t PENDING,RUNNING,COMPLETING -j "$array" 2>/dev/null)" ]; }
check "$n combinations" [ "$n" = 3 ]
check "the array ends" await 60 swept
scripts/sweep.sh --out "$tmp/sweep" --table >"$tmp/table" 2>&1
for i in 1 3; do
	check "sweep: $i is complete, over two nodes: $(cat "$tmp/table")" \
		awk -v n=$i '$1 == n { ok = $9 == 0 && $3 > 3 && $3 < 6 && $8 + 0 > 0 } END { exit !ok }' "$tmp/table"
done
check "sweep: 2 failed: $(cat "$tmp/table")" grep -qE '^2 .* 2  occ-train: .*out of range' "$tmp/table"

check "the job ends" await 60 done_with "$job"
if lost; then
	echo "slurm.sh: Slurm lost a rank; once more" >&2
	start
	check "the second job ends" await 60 done_with "$job"
fi
well() { [ "$(state "$job" JobState)-$(state "$job" ExitCode)" = COMPLETED-0:0 ]; }
check "well: $(grep -v '^step ' "$tmp/job.out")" well
check "it resumed" grep -q 'resumed from' "$tmp/job.out"
check "300 steps without a break" threads --set log.dir="$tmp/whole" --set train.iters=300 >"$tmp/out" 2>&1
check "requeued and whole: the same bits" same job whole

# Cancelled for good: saved, and not requeued.
job=$(sbatch --parsable -N2 --ntasks-per-node=2 -o "$tmp/cancel.out" scripts/slurm/train.sbatch --config "$tmp/c.json" \
	--set log.dir="$tmp/cancel" --set checkpoint.dir="$tmp/cancel/checkpoint" --set train.iters=1000000)
check "it trains too" await 30 grep -qs '"iter":20,' "$tmp/cancel/metrics.jsonl"
scancel "$job"
check "cancelled: it ends" await 20 done_with "$job"
check "and is not requeued" [ "$(state "$job" JobState)-$(state "$job" Restarts)" = CANCELLED-0 ]
check "with a checkpoint" [ -n "$(ls -d "$tmp"/cancel/checkpoint/step-* 2>/dev/null)" ]
finish
