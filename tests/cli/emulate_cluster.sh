#!/usr/bin/env bash
# scripts/emulate-cluster: over two emulated nodes the losses are those of threads, bit for bit; what metrics
# say crossed is what the kernel counted on the interfaces; rate and delay hold; nothing stays behind. TIME: 120
. tests/lib.sh
need_nodes
cluster=scripts/emulate-cluster

cat >"$tmp/c.json" <<JSON
{"model": {"layers": 2, "hidden": 128, "heads": 4, "seq_len": 64, "vocab_size": 256},
 "batch": {"micro": 4, "global": 32}, "train": {"iters": 4, "threads": 1},
 "data": {"train": ["$PWD/tests/data/tinyshakespeare.txt"]}}
JSON
losses() { grep -o '"loss":[^,]*' "$1/metrics.jsonl"; }
# The sum, or of step_ms the least, of a field of metrics.jsonl over the whole run.
total() { grep -o "\"$2\":[0-9.]*" "$1/metrics.jsonl" | cut -d : -f 2 | awk '{ s += $1 } END { print s }'; }
least() { grep -o "\"$2\":[0-9.]*" "$1/metrics.jsonl" | cut -d : -f 2 | sort -g | head -n 1; }
holds() { awk "BEGIN { exit !($1) }"; }

# "OPTIONS OF THE SCRIPT" KEY=VALUE...: the run on two nodes, and with threads; same losses
train() {
	local key args=()
	for key in "${@:2}"; do args+=(--set "$key"); done
	rm -rf "$tmp/nodes" "$tmp/threads"
	# shellcheck disable=SC2086
	timeout 60 $cluster -s "$tmp/counters" $1 -- "$OCC_TRAIN" --config "$tmp/c.json" "${args[@]}" \
		--set log.dir="$tmp/nodes" >"$tmp/out" 2>&1 </dev/null || { cat "$tmp/out" >&2; return 1; }
	launch thread 2 --config "$tmp/c.json" "${args[@]}" --set parallel.ranks_per_node=1 \
		--set log.dir="$tmp/threads" >"$tmp/out" 2>&1 || { cat "$tmp/out" >&2; return 1; }
	[ "$(losses "$tmp/nodes" | wc -l)" -gt 1 ] && [ "$(losses "$tmp/nodes")" = "$(losses "$tmp/threads")" ]
}

# What the program says it sent between nodes (payload of messages) against tx_bytes of both interfaces. These
# hold more: 66 bytes of Ethernet, IP and TCP on each of tx_packets (a packet is here what TCP hands over, up to
# 64 KiB, so 0.1 % of full ones and all of an acknowledgement), Open MPI's own head on each fragment, agreements
# and the lines of the log (a few hundred bytes a step), and mpirun's start, some 30 KB. So: never less than
# the program says, and without the 66 bytes at most 5 % more, in a run of at least 3 MB. Seen: 1.005 to 1.02
# of the program's bytes raw, 1.001 to 1.006 without the heads, the most in the run with the fewest bytes.
bytes_agree() { # WORDS
	local said counted packets
	said=$(total "$tmp/nodes" inter_node_wire_bytes)
	read -r counted packets < <(awk 'NR > 1 { b += $2; p += $4 } END { printf "%.0f %d\n", b, p }' "$tmp/counters")
	holds "$said > 3e6 && $counted >= $said && $counted - 66 * $packets < 1.05 * $said" && return
	echo "$1: metrics $said, tx_bytes $counted, tx_packets $packets" >&2
	return 1
}

delay="-d 30ms"
[ -e /dev/net/tun ] || { delay='' && skip "delay: no /dev/net/tun"; }
cb="compress.pipeline_backward.codec=powersgd compress.pipeline_backward.rank=4"
dp="compress.data_parallel.codec=powersgd compress.data_parallel.rank=16"
while IFS='|' read -r name options keys; do
	# shellcheck disable=SC2086
	check "$name: losses differ from those of threads" train "-N 2 $options" $keys
	check "$name: bytes do not agree" bytes_agree "$name"
	case $options in
	-b*) # what a node sends takes its time
		lowest=$(awk "BEGIN { print 0.95 * $(total "$tmp/nodes" inter_node_wire_bytes) / 4 / 2 * 8 / 200e3 }")
		check "$name: $(least "$tmp/nodes" step_ms) ms, the link needs $lowest" holds "$(least "$tmp/nodes" step_ms) > $lowest"
		;;
	-d*) # forth and back
		check "$name: $(least "$tmp/nodes" step_ms) ms, the delay is twice 30" holds "$(least "$tmp/nodes" step_ms) > 60"
		;;
	esac
done <<-END
	pipeline|$delay|parallel.pipeline=2
	pipeline, compressed||parallel.pipeline=2 $cb compress.pipeline_backward.mark=all
	data|-b 200mbit|parallel.data=2
	data, compressed||parallel.data=2 train.iters=8 $dp
END

# Two ranks a node: the replicas of a stage share it, and only the pipeline crosses.
check "2 x 2 ranks" timeout 60 $cluster -N 2 -p 2 -- "$OCC_TRAIN" --config "$tmp/c.json" --set log.dir="$tmp/four" \
	--set parallel.pipeline=2 --set parallel.data=2 --set train.iters=1 >"$tmp/out" 2>&1 </dev/null
check "replicas share a node" grep -qE '"dp":[^}]*"inter_node_wire_bytes":0,' "$tmp/four/metrics.jsonl"
check "the pipeline crosses" grep -qE '"pp_forward":[^}]*"inter_node_wire_bytes":[1-9]' "$tmp/four/metrics.jsonl"

# Every process of a job, nodes and launchers too, has this in its environment.
mark=OCC_TEST_CLUSTER=$$
alive() { grep -lsz "^$mark\$" /proc/[0-9]*/environ | cut -d / -f 3; }
rest() { # what is still there: processes, devices, shared memory and session folders of a node
	alive
	ip -br link | awk '{ print $1 }' | diff "$tmp/devices" - | grep '^>'
	find /dev/shm /tmp -maxdepth 1 -name '*node[0-9]*'
	grep -E ' (node|switch)-shm ' /proc/self/mounts
}
ip -br link | awk '{ print $1 }' >"$tmp/devices"
# hit SIGNAL script|rank: a run of endless steps gets the signal; exit status in $code
hit() {
	local job pid
	env --default-signal=INT "$mark" $cluster -N 2 -s "$tmp/counters" -- "$OCC_TRAIN" --config "$tmp/c.json" --set parallel.pipeline=2 \
		--set train.iters=1000000 --set optimizer.decay_iters=100 >"$tmp/out" 2>&1 </dev/null &
	job=$!
	pid=$job
	for _ in $(seq 200); do grep -q '^step 2' "$tmp/out" && break; sleep 0.05; done
	[ "$2" = script ] || pid=$(alive | while read -r p; do
		[ "$(cat "/proc/$p/comm" 2>/dev/null)" != occ-train ] || { echo "$p"; break; }
	done)
	kill -"$1" "$pid"
	for _ in $(seq 80); do [ -z "$(rest)" ] && break; sleep 0.1; done
	rest >"$tmp/left"
	alive | xargs -r kill -KILL 2>/dev/null
	code=0
	{ wait "$job" || code=$?; } 2>/dev/null
}
while read -r signal whom codes; do
	hit "$signal" "$whom"
	check "$signal to the $whom: exit $code, not $codes" grep -qxE "$codes" <<<"$code"
	check "$signal to the $whom: left: $(cat "$tmp/left")" [ ! -s "$tmp/left" ]
done <<-END
	KILL rank 137
	TERM script 1|143
	INT script 1|143
	KILL script 137
END
check "exit status of the program" eval '$cluster -- sh -c "exit 3" >/dev/null 2>&1; [ $? = 3 ]'

# Refusals: exit code and words; one line.
refused() { # CODE WORDS ARGUMENTS...
	local status=0
	$cluster "${@:3}" >"$tmp/out" 2>&1 </dev/null || status=$?
	[ "$status" = "$1" ] && [ "$(wc -l <"$tmp/out")" = 1 ] && grep -qF -- "$2" "$tmp/out" && return
	echo "exit $status: $(cat "$tmp/out")" >&2
	return 1
}
while IFS='|' read -r args words; do
	# shellcheck disable=SC2086
	check "refusal of $args" refused 64 "$words" $args
done <<-END
	-N 0 -- true|-N 0: must be a whole number from 1 to 64
	-N two -- true|-N two: must be a whole number
	-p -1 -- true|-p -1: must be
	-b fast -- true|-b fast: no rate; as in 200mbit
	-d 3weeks -- true|-d 3weeks: no time; as in 0.1ms
	-M 10 -- true|-M 10: must be
	-C none -- true|-C none: not allowed here; allowed are
	-s /nowhere/file -- true|-s /nowhere/file: cannot be written
	-b|-b needs a value
	-x -- true|no option -x
	-N 2|no program
END
check "refusal without root" eval 'cp $cluster "$tmp/copy"; chmod 755 "$tmp" "$tmp/copy"
	setpriv --reuid 65534 --clear-groups bash "$tmp/copy" -- true >"$tmp/out" 2>&1
	[ $? = 69 ] && [ "$(cat "$tmp/out")" = "emulate-cluster: needs root: nodes are network namespaces" ]'
finish
