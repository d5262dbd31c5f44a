#!/usr/bin/env bash
# Losses, gradient norms, learning rates and final weights of 20 steps against an independent float64
# implementation (tests/golden/gpt2_ref.py): every layout that fits 8 ranks, with micro-batches and
# recompute so that each pair of (tp, pp, dp, micro, recompute) values that can meet does; mpirun for
# seven layouts; 61 ids are divided by no tp. TIME: 240
. tests/lib.sh
. tests/golden/lib.sh

# tp pp dp micro recompute
while read -r tp pp dp micro recompute; do
	golden cosine thread "$tp" "$pp" "$dp" "$micro" "$recompute"
done <<'ROWS'
1 1 1 8 none
1 1 2 4 full
1 1 4 2 none
1 2 1 2 full
1 2 2 1 none
1 2 4 1 full
1 4 1 8 full
1 4 2 4 none
2 1 1 4 none
2 1 2 2 full
2 1 4 1 none
2 2 1 8 full
2 2 2 2 none
2 4 1 1 full
4 1 1 1 full
4 1 2 4 full
4 2 1 8 none
1 4 1 2 none
1 1 1 1 full
2 4 1 4 none
4 1 1 2 none
1 2 1 4 none
2 1 4 2 full
ROWS

golden untied thread 2 2 2 1 none
golden untied thread 1 4 1 2 full
golden untied thread 4 1 2 2 none
golden wsd thread 2 2 2 2 full
golden wsd thread 1 1 1 2 none
golden wsd thread 1 4 2 1 none
golden constant thread 2 2 2 4 none
golden constant thread 4 2 1 2 full

if [ "$OCC_MPI" = 1 ]; then
	golden cosine mpi 1 1 1 4 none
	golden cosine mpi 2 1 1 2 full
	golden cosine mpi 1 2 1 1 none
	golden cosine mpi 1 1 4 2 full
	golden cosine mpi 2 2 2 1 none
	golden cosine mpi 1 4 2 2 none
	golden untied mpi 4 2 1 4 full
else
	skip "mpirun: this build has no MPI or a sanitizer that it does not suit"
fi

for name in cosine untied; do
	golden $name thread 2 2 2 2 none --set checkpoint.dir="$tmp/ckpt-$name"
	golden_weights $name "$tmp/ckpt-$name"
done
finish
