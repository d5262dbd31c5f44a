#!/usr/bin/env bash
# All that tests/cli/golden.sh takes samples of: every layout that fits 8 ranks with every micro-batch
# and recompute, and every other golden run over every layout. TIME: 3000
. tests/lib.sh
. tests/golden/lib.sh
for tp in 1 2 4; do
	for pp in 1 2 4; do
		for dp in 1 2 4; do
			[ $((tp * pp * dp)) -le 8 ] || continue
			for micro in 1 2 4 8; do
				[ $((micro * dp)) -le 8 ] || continue
				golden cosine thread $tp $pp $dp $micro none
				golden cosine thread $tp $pp $dp $micro full
			done
			for name in untied wsd constant; do
				golden $name thread $tp $pp $dp 2 none
			done
			[ "$OCC_MPI" = 0 ] || golden cosine mpi $tp $pp $dp 1 none
		done
	done
done
finish
