#!/usr/bin/env bash
# Trains one configuration over a grid of settings: a run for each combination, then a table.
#
#   scripts/sweep.sh --config F --out DIR --grid key=value,value... [--grid ...] [--set key=value]...
#                    [--ranks N | --launch "srun --mpi=pmix"] [--list | --table | --only N]
#   scripts/sweep.sh --out DIR [--list | --table | --only N]      again, as it was started
#
#   --grid    one key and its values; the last --grid turns fastest. Commas part values, but not inside [], {}
#             or "": --grid 'data.train=["a.txt","b.txt"],["c.txt"]' has two
#   --set     in every run        --ranks, --launch   ranks as threads, or what starts the program
#   --list    one command line for each combination, numbered by its line, from 1; runs nothing
#   --only N  that combination alone; ends with its exit code (for array jobs)
#   --table   the table of what is there; runs nothing
#
# A run has a folder of its own, DIR/setting,setting..., which is its log.dir; with checkpoint.dir set, whatever
# its value, it keeps its checkpoints there too. Started again, a sweep leaves out runs that are complete or
# diverged (6) and does all others: from their checkpoints where there are some. A failed run does not stop
# the rest. SIGUSR1, SIGTERM and ctrl-C stop run and sweep as they do the program.
#
# The table: the last training loss, that of the last validation, medians of step time and speed, what all
# ranks sent a step and what compression saved of it, the exit code. Exit: 0 all complete, 1 some are not,
# 2 usage, 75 stopped on request. OCC_TRAIN is the program, by default that of this folder's parent.
set -euo pipefail
LC_ALL=C
program=${OCC_TRAIN:-$(dirname "$0")/../occ-train}

die() {
	echo "sweep.sh: $1" >&2
	exit 2
}

config='' out='' ranks='' launch='' only='' mode=run sets=() grids=()
parse() {
	local flag value
	while [ $# -gt 0 ]; do
		flag=${1%%=*}
		case $flag in
		--list | --table)
			[ "$flag" = "$1" ] || die "$flag takes no value"
			mode=${1#--}
			shift
			continue
			;;
		--config | --out | --ranks | --launch | --only | --grid | --set) ;;
		*) die "unknown argument $1 (its head says how to use it: $0)" ;;
		esac
		if [ "$flag" != "$1" ]; then
			value=${1#*=}
		else
			[ $# -gt 1 ] || die "$flag needs a value"
			value=$2
			shift
		fi
		shift
		case $value in '' | *$'\n'*) die "$flag: empty, or more than a line" ;; esac
		case $flag in
		--grid) grids+=("$value") ;;
		--set) sets+=("$value") ;;
		--only) only=$value ;;
		*) declare -g "${flag#--}=$value" ;;
		esac
	done
}

# What the sweep is, one argument a line; where it is kept, DIR alone starts it again.
arguments() {
	printf -- '--config=%s\n' "$config"
	[ ${#grids[@]} = 0 ] || printf -- '--grid=%s\n' "${grids[@]}"
	[ ${#sets[@]} = 0 ] || printf -- '--set=%s\n' "${sets[@]}"
	[ -z "$ranks" ] || printf -- '--ranks=%s\n' "$ranks"
	[ -z "$launch" ] || printf -- '--launch=%s\n' "$launch"
}
restore() { # and what was given this time, which wins
	local kept
	mapfile -t kept <"$out/sweep"
	sets=()
	parse "${kept[@]}" "$@"
}
keep() {
	mkdir -p "$out" 2>/dev/null || die "--out $out: cannot be made"
	arguments >"$out/sweep.$$"
	mv "$out/sweep.$$" "$out/sweep"
}

split() { # TEXT: its values
	local i c depth=0 quoted=0 word=
	values=()
	for ((i = 0; i < ${#1}; i++)); do
		c=${1:i:1}
		case $quoted$c in
		?'"') quoted=$((1 - quoted)) ;;
		1\\) word+=$c c=${1:++i:1} ;;
		0'[' | 0'{') depth=$((depth + 1)) ;;
		0']' | 0'}') depth=$((depth - 1)) ;;
		0,) [ $depth -gt 0 ] || { values+=("$word") word=''; continue; } ;;
		esac
		word+=$c
	done
	values+=("$word")
}

# keys and their short names; the values of key i are all[first[i]], count[i] of them; total combinations.
keys=() short=() all=() first=() count=() total=1
read_grid() {
	local g key v seen known
	known=$("$program" --help | sed -n 's/^  \([a-z_]*\.[a-z_.0-9]*\) .*/\1/p')
	for g in "${grids[@]}"; do
		key=${g%%=*}
		[ "$key" != "$g" ] || die "--grid $g: the form is key=value,value"
		grep -qxF -- "$key" <<<"$known" || die "--grid $key: no such key ($program --help lists them)"
		[[ " ${keys[*]} " != *" $key "* ]] || die "--grid $key: given twice"
		split "${g#*=}"
		seen=,
		for v in "${values[@]}"; do
			[ -n "$v" ] || die "--grid $g: an empty value"
			[[ $seen != *",$v,"* ]] || die "--grid $g: $v is there twice"
			seen+=$v,
		done
		keys+=("$key") first+=(${#all[@]}) count+=(${#values[@]})
		all+=("${values[@]}")
		total=$((total * ${#values[@]}))
	done
}
shorten() { # as few last words of each key as tell it from the others
	local i j rest name
	for i in "${!keys[@]}"; do
		rest=${keys[i]} name=${keys[i]##*.}
		for j in "${!keys[@]}"; do
			while [ "$i" != "$j" ] && [[ .${keys[j]} == *".$name" ]]; do
				rest=${keys[i]%".$name"} name=${rest##*.}.$name
			done
		done
		short+=("$name")
	done
}

# Combination N: its picks (values by key), name, dir, settings and command.
combination() {
	local i n=$(($1 - 1)) word plain
	picks=() name='' command=()
	for ((i = ${#keys[@]} - 1; i >= 0; i--)); do
		picks[i]=${all[first[i] + n % count[i]]}
		n=$((n / count[i]))
	done
	for i in "${!keys[@]}"; do
		word=${short[i]}=${picks[i]}
		plain=${word//[^A-Za-z0-9._=+-]/-}
		[ ${#plain} -le 60 ] || plain=${plain:0:60}-
		[ "$plain" = "$word" ] || plain+=$(cksum <<<"$word" | cut -d ' ' -f 1)
		name+=${name:+,}$plain
	done
	dir=$out/$name
	# shellcheck disable=SC2206 # words
	command=($launch "$program" --config "$config")
	[ -z "$ranks" ] || command+=(--ranks "$ranks")
	for word in "${sets[@]}"; do command+=(--set "$word"); done
	for i in "${!keys[@]}"; do command+=(--set "${keys[i]}=${picks[i]}"); done
	settings="config $configsum ${ranks:+--ranks $ranks }${command[*]:${#command[@]} - 2 * (${#sets[@]} + ${#keys[@]})}"
	command+=(--set "log.dir=$dir")
	[ -z "$saves" ] || command+=(--set "checkpoint.dir=$dir/checkpoint")
}

complete() { tail -n 1 "$dir/metrics.jsonl" 2>/dev/null | grep -q '"event": *"end".*"why": *"finished"'; }
ended() { cat "$dir/exit" 2>/dev/null || true; }
last_words() { # what the program said last, else whoever did
	{ grep -a '^occ-train: ' "$dir/out" || grep -av '^ *$' "$dir/out"; } 2>/dev/null | tail -n 1 | tr '\t' ' '
}

check_all() { # what was trained with other settings is not touched
	local n
	for n in "$@"; do
		combination "$n"
		[ ! -s "$dir/metrics.jsonl" ] || [ "$(<"$dir/settings")" = "$settings" ] ||
			die "$dir was run with other settings; take another --out"
	done
}

child='' stopping=''
forward() { # as SIGUSR1, since mpirun ends its ranks on others
	stopping=1
	[ -z "$child" ] || kill -USR1 "$child" 2>/dev/null || true
}

launch_it() { # the command, into $dir/out; its exit code in $code, through signals
	"${command[@]}" >>"$dir/out" 2>&1 </dev/null &
	child=$!
	while :; do
		code=0
		wait "$child" || code=$?
		kill -0 "$child" 2>/dev/null || break
	done
	child=
}

run_one() { # N: its exit code in $code
	local say lock
	combination "$1"
	say="sweep: $1/$total $name"
	mkdir -p "$dir"
	exec {lock}>"$dir/lock" # held by the run too, so it does not matter who of both ends first
	if ! flock -n "$lock"; then
		echo "$say: another sweep is at it"
		code=1
	elif complete; then
		echo "$say: is complete"
		code=0
	elif [ "$(ended)" = 6 ]; then
		echo "$say: diverged, exit 6"
		code=6
	else
		echo "$settings" >"$dir/settings"
		launch_it
		[ -z "$stopping" ] || [ "$code" = 0 ] || code=75
		echo "$code" >"$dir/exit"
		echo "$say: exit $code: $(last_words)"
	fi
	exec {lock}>&-
}

run_all() {
	local n bad=0
	for ((n = 1; n <= total; n++)); do
		run_one "$n"
		[ "$code" = 0 ] || bad=1
		if [ "$code" = 75 ] || [ -n "$stopping" ]; then
			echo "sweep: stopped; started again it goes on" >&2
			exit 75
		fi
	done
	echo
	table
	return $bad
}

median() { # FIELD
	sed -n '/"event":"train"/s/.*"'"$1"'":\([0-9.eE+-]*\).*/\1/p' "$dir/metrics.jsonl" | sort -g |
		awk '{ v[NR] = $1 } END { if (NR) printf "%.'"$2"'f", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2
			else printf "-" }'
}

figures() { # loss, validation, MB a step, saved; lines cover the steps since the line or start before
	awk '
	function number(key) {
		return match($0, "\"" key "\":[^,}]*") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) : ""
	}
	function sum(key,   rest, total) {
		for (rest = $0; match(rest, "\"" key "\":[^,}]*"); rest = substr(rest, RSTART + RLENGTH))
			total += substr(rest, RSTART + length(key) + 3, RLENGTH - length(key) - 3)
		return total
	}
	/"event":"start"/ { since = number("iter") }
	/"event":"train"/ {
		steps += number("iter") - since
		since = number("iter")
		loss = number("loss")
		wire += sum("wire_bytes")
		raw += sum("raw_bytes")
	}
	/"event":"eval"/ { valid = number("loss") }
	function four(x) { return x ~ /^[0-9]/ ? sprintf("%.4f", x) : x == "null" ? "nan" : "-" }
	END {
		printf "%s\t%s\t", four(loss), four(valid)
		printf steps ? "%.3f\t" : "-\t", wire / 1e6 / (steps ? steps : 1)
		printf raw ? "%.1f%%" : "-", 100 * (1 - wire / (raw ? raw : 1))
	}' "$dir/metrics.jsonl"
}

rows() { # the table, fields parted by tabs; the last is a remark
	local n remark
	printf 'N\t'
	printf '%s\t' "${short[@]}"
	printf 'loss\tvalid\tstep ms\ttokens/s\tMB/step\tsaved\texit\t\n'
	for ((n = 1; n <= total; n++)); do
		combination "$n"
		code=$(ended) remark=
		if ! complete; then
			case $code in
			'') remark="not run"; [ ! -e "$dir/settings" ] || remark="has not ended" ;;
			75) remark="stopped" ;;
			*) remark=$(last_words) ;;
			esac
		else
			code=0
		fi
		printf '%s\t' "$n" "${picks[@]}"
		if [ -s "$dir/metrics.jsonl" ]; then
			IFS=$'\t' read -r loss valid mb saved < <(figures; echo)
			printf '%s\t' "$loss" "$valid" "$(median step_ms 2)" "$(median tokens_per_s 0)" "$mb" "$saved"
		else
			printf -- '-\t-\t-\t-\t-\t-\t'
		fi
		printf '%s\t%s\n' "${code:--}" "$remark"
	done
}

table() {
	rows | awk -F '\t' '
		{ for (i = 1; i <= NF; i++) { cell[NR, i] = $i; if (length($i) > width[i]) width[i] = length($i) } }
		END {
			for (r = 1; r <= NR; r++) {
				for (i = 1; i < NF; i++)
					printf "%*s  ", width[i], cell[r, i]
				print cell[r, NF]
			}
		}' | sed 's/ *$//'
}

prepare() {
	local key resolved given=()
	if [ -z "$config" ] && [ ${#grids[@]} = 0 ] && [ -n "$out" ] && [ -r "$out/sweep" ]; then restore "$@"; fi
	{ [ -n "$config" ] && [ -n "$out" ]; } || die "needs --config and --out (its head says how to use it: $0)"
	[ ${#grids[@]} -gt 0 ] || die "needs a --grid key=value,value"
	[ -z "$ranks" ] || [ -z "$launch" ] || die "--ranks makes ranks as threads; with --launch it counts them"
	[ -z "$ranks" ] || [[ $ranks =~ ^[1-9][0-9]*$ ]] || die "--ranks $ranks: a number from 1 is needed"
	[ -x "$program" ] || die "$program is not there; make builds it"
	for key in "${grids[@]}"; do
		[[ $key != log.dir=* && $key != checkpoint.dir=* ]] || die "${key%%=*}: each run has its own, in --out"
	done
	for key in "${sets[@]}"; do given+=(--set "$key"); done
	resolved=$("$program" --config "$config" "${given[@]}" --print-config) || exit 2
	saves=$(sed -n '/"checkpoint"/,/}/s/.*"dir": *"\(.*\)".*/\1/p' <<<"$resolved")
	configsum=$(cksum <"$config" | cut -d ' ' -f 1)
	read_grid
	shorten
	[ -z "$only" ] || [ "$mode" = run ] || die "--only runs, --$mode does not"
	[ -z "$only" ] || { [[ $only =~ ^[1-9][0-9]*$ ]] && [ "$only" -le "$total" ]; } ||
		die "--only $only: combinations are numbered from 1 to $total"
}

main() {
	local n
	parse "$@"
	prepare "$@"
	case $mode in
	list)
		for ((n = 1; n <= total; n++)); do
			combination "$n"
			echo "${command[*]@Q}"
		done
		return
		;;
	table) table; return ;;
	esac
	trap forward USR1 TERM INT
	# shellcheck disable=SC2046
	check_all $(if [ -n "$only" ]; then echo "$only"; else seq "$total"; fi)
	keep
	[ -n "$only" ] || { run_all; return; }
	run_one "$only"
	return "$code"
}
main "$@"; exit # in one line: bash reads as it goes, and this file may change within hours
