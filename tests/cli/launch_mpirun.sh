#!/usr/bin/env bash
# scripts/launch-mpirun: hosts from arguments, a file, PBS; exit codes and signals; two hosts, which are
# namespaces of this machine. TIME: 60
. tests/lib.sh
if [ "$OCC_MPI" != 1 ]; then
	skip "mpirun: this build has no MPI or a sanitizer that it does not suit"
	finish
fi

head -c 20000 tests/data/tinyshakespeare.txt >"$tmp/t.txt"
cat >"$tmp/c.json" <<JSON
{"model": {"layers": 2, "hidden": 16, "heads": 4, "seq_len": 16, "vocab_size": 256},
 "parallel": {"pipeline": 2}, "batch": {"global": 8}, "train": {"iters": 3, "threads": 1},
 "data": {"train": ["$tmp/t.txt"]}}
JSON
go() { scripts/launch-mpirun "${@:2}" "$OCC_TRAIN" --config "$tmp/c.json" --set log.dir="$tmp/$1" >"$tmp/out" 2>"$tmp/err" </dev/null; }
ranks() { sed -n 's/.*"event":"start".*"ranks":\([0-9]*\),.*/\1/p' "$tmp/$1/metrics.jsonl"; }
code_is() { # CODE COMMAND...
	local want=$1 got=0
	shift
	"$@" || got=$?
	[ "$got" = "$want" ] || { echo "exit $got instead of $want: $(cat "$tmp/err")" >&2; false; }
}

check "this machine" go here -p 2
check "two ranks" [ "$(ranks here)" = 2 ]
printf '# a comment\nlocalhost slots=4\n' >"$tmp/hosts"
check "a file" go file -f "$tmp/hosts"
check "its slots" [ "$(ranks file)" = 4 ]
printf 'localhost\nlocalhost\n' >"$tmp/nodes"
PBS_NODEFILE=$tmp/nodes check "PBS" go pbs
check "a rank for each of its lines" [ "$(ranks pbs)" = 2 ]
check "2 comes through" code_is 2 go bad -p 4 env OMP_NUM_THREADS=1 "$OCC_TRAIN" --config "$tmp/nosuch.json"
check "in one line, not $(cat "$tmp/err")" [ "$(wc -l <"$tmp/err")" = 1 ]
check "cores" scripts/launch-mpirun -n -H a,b -p 4 -c 2 prog arg >"$tmp/out"
check "hosts, binding" grep -q "'--host' 'a:4,b:4' '--map-by' 'ppr:4:node:PE=2' '--bind-to' 'core' .*'prog' 'arg'" "$tmp/out"
OCC_X=1 check "variables" scripts/launch-mpirun -n -x MINE -H a -p 1 prog >"$tmp/out"
check "go along" grep -q "'-x' 'MINE' .*'-x' 'OCC_X'" "$tmp/out"

for sig in TERM USR1; do
	scripts/launch-mpirun -p 2 "$OCC_TRAIN" --config "$tmp/c.json" --set train.iters=1000000 --set log.dir="$tmp/$sig" \
		--set checkpoint.dir="$tmp/$sig/checkpoint" >"$tmp/out" 2>&1 </dev/null &
	for _ in $(seq 200); do grep -qs '"iter":20,' "$tmp/$sig/metrics.jsonl" && break; sleep 0.05; done
	kill -"$sig" $!
	code=0
	wait $! || code=$?
	check "$sig: exit $code instead of 75" [ "$code" = 75 ]
	check "$sig: a checkpoint" [ -n "$(ls -d "$tmp/$sig"/checkpoint/step-* 2>/dev/null)" ]
done

# Two hosts: what starts a daemon on another machine starts it in namespaces of its name.
cat >"$tmp/agent" <<'SH'
#!/bin/sh
host=$1
shift
exec unshare --uts --ipc --mount sh -c 'hostname "$0" && mount -t tmpfs none /dev/shm && eval "$1"' "$host" "$*"
SH
chmod +x "$tmp/agent"
if "$tmp/agent" a true 2>/dev/null; then
	export OMPI_MCA_plm_rsh_agent=$tmp/agent OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo
	check "two hosts" go two -H hosta,hostb -p 2
	check "four ranks" [ "$(ranks two)" = 4 ]
	check "on two nodes" grep -q '"inter_node_wire_bytes":[1-9]' "$tmp/two/metrics.jsonl"
else
	skip "two hosts: namespaces may not be made here"
fi

while IFS='|' read -r text args; do
	# shellcheck disable=SC2086
	check "$args" code_is 2 go no $args
	check "$args: says $text, not $(cat "$tmp/err")" grep -qF -- "$text" "$tmp/err"
done <<'ROWS'
-p x|-p x
-z|-z
not both|-H a -f b
nosuch|-f nosuch
ROWS
finish
