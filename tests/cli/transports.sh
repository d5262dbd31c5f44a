#!/usr/bin/env bash
# Threads and MPI: the same bits of all collectives, the same ends of ranks that fail. TIME: 120
. tests/lib.sh

if [ "$OCC_MPI" != 1 ]; then
	skip "no mpirun here"
	check "a shell" true
	finish
fi

sum_of() { sed -n 's/^checksum //p' "$1"; }
same_sums() { # RANKS
	"$BUILD/tests/ranks/comm" thread "$1" --sum >"$tmp/thread" &&
		mpirun -q -n "$1" "$BUILD/tests/ranks/comm" mpi --sum >"$tmp/mpi" &&
		[ -n "$(sum_of "$tmp/thread")" ] && [ "$(sum_of "$tmp/thread")" = "$(sum_of "$tmp/mpi")" ]
}

# SCENARIO CODE WORDS: the exit code, and one line of ours with these words
ends() {
	local code=0
	mpirun -q -n 4 "$BUILD/tests/ranks/faults" mpi "$1" >"$tmp/out" 2>&1 </dev/null || code=$?
	[ "$code" = "$2" ] && [ "$(grep -c '^occ-train: ' "$tmp/out")" = 1 ] && grep -q "$3" "$tmp/out" && return
	echo "exit $code" >&2
	cat "$tmp/out" >&2
	false
}

for n in 1 2 5 8; do
	check "$n ranks: threads and MPI differ" same_sums "$n"
done
while read -r scenario code words; do
	check "$scenario" ends "$scenario" "$code" "$words"
done <<'ROWS'
stuck 7 rank 0: rank 2 sent nothing
circle 7 rank 0: rank 1 sent nothing
group 7 rank 1: rank 3 sent nothing
untaken 7 rank 0: rank 1 took nothing
dies 6 rank 1: the loss is not a number
sizes 70 rank 1 sent 4 bytes of 8
ROWS
finish
