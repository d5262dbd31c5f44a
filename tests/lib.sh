# shellcheck shell=bash
# What scripts of tests/cli share: counted checks, a temporary folder, starting the program.
#
#   . tests/lib.sh            at the top of a script that is run from the root of the project
#   check "words" COMMAND...  counts a pass if COMMAND succeeds, else shows the words
#   skip "words"              counts a skip
#   long                      succeeds in the long tier (make test-all)
#   finish                    last line of the script: "N passed, N failed"
#
# $OCC_TRAIN is the program, $BUILD the folder of built tests, $tmp a folder that goes away at the end,
# $OCC_MPI is 1 where mpirun may be used. Relative paths in configurations: cd where they hold.
set -u
# shellcheck source=scripts/mpi-env
. scripts/mpi-env
root=$PWD
: "${OCC_TRAIN:=$root/occ-train}" "${BUILD:=$root/build/native-mpi1-onednn}" "${OCC_MPI:=1}"
export OCC_TRAIN BUILD OCC_MPI
tmp=$(mktemp -d "${TMPDIR:-/tmp}/occ-test.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0 skipped=0

check() {
	local words=$1
	shift
	if "$@"; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "${0##*/}: $words" >&2
	fi
}

long() { [ -n "${OCC_LONG:-}" ]; }

skip() {
	skipped=$((skipped + 1))
	echo "${0##*/}: skipped: $1" >&2
}

# Starts the program: launch thread|mpi RANKS ARGS...
launch() {
	local how=$1 n=$2
	shift 2
	case $how in
	thread) "$OCC_TRAIN" "$@" --set parallel.transport=thread --ranks "$n" ;;
	mpi) mpirun -q -n "$n" "$OCC_TRAIN" "$@" ;;
	esac
}

finish() {
	local more=
	[ "$skipped" = 0 ] || more=", $skipped skipped"
	echo "$passed passed, $failed failed$more"
	[ "$failed" = 0 ]
	exit
}

# From here on the program is that with GPU code, which runs on the CPU; or the test ends here.
on_cuda() {
	[ -n "${OCC_CUDA:-}" ] || { skip "GPU code on the CPU: no CUDA toolkit, or the thread sanitizer"; finish; }
	OCC_TRAIN=$OCC_CUDA/occ-train
	export LD_LIBRARY_PATH=$OCC_CUDA/emu OPENBLAS_NUM_THREADS=1
}

# Emulated nodes, or the test ends here with the reason.
need_nodes() {
	local why=
	if [ "$OCC_MPI" != 1 ]; then
		why="mpirun: this build has no MPI or a sanitizer that it does not suit"
	elif [ "$(id -u)" != 0 ]; then
		why="emulated nodes: needs root"
	elif ! unshare --net --uts --ipc --mount --pid --fork sh -c 'ip link add x0 type veth peer name x1 &&
		ip link add br0 type bridge && tc qdisc add dev x0 root tbf rate 1mbit burst 10000 latency 1ms' >"$tmp/out" 2>&1; then
		why="emulated nodes: $(head -n 1 "$tmp/out")"
	fi
	[ -z "$why" ] || { skip "$why"; finish; }
}
