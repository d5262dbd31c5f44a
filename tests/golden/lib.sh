# shellcheck shell=bash disable=SC2154
# Running occ-train against the golden files of this folder; sourced by tests/cli/golden.sh
# and compress_golden.sh after tests/lib.sh. The bounds are relative; 2e-4 and 1e-3 are asked for, 9e-8 and 6e-7 were measured.
loss_bound=2e-6 norm_bound=2e-5 weight_bound=1e-5
steps=20 # how many of the 20 are run and compared
cd "$root/tests/golden" || exit 1

# count EXPECTED PASSED FAILED: adds to the counts; that fewer were compared than EXPECTED is a failure too.
count() {
	local p=${2:-0} f=${3:-0}
	[ $((p + f)) = "$1" ] || { f=$((f + 1)) && echo "compared $((p + f - 1)) values, not $1" >&2; }
	passed=$((passed + p)) failed=$((failed + f))
	[ "$f" = 0 ]
}

# compare NAME METRICS: loss, gradient norm and rate of the steps; shows the first difference.
compare() {
	local p f
	read -r p f < <(awk -v metrics="$2" -v loss="$loss_bound" -v norm="$norm_bound" -v steps="$steps" '
		function field(line, name) {
			if (!match(line, "\"" name "\": *-?[0-9.eE+-]+"))
				return "none"
			return substr(line, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0
		}
		function near(what, got, want, bound) {
			if (got != "none" && (got - want) ^ 2 <= (bound * want) ^ 2) {
				pass++
			} else if (!fail++) { # the first says enough
				printf "step %d: %s is %s, should be %s\n", $2, what, got, want >"/dev/stderr"
			}
		}
		BEGIN {
			while ((getline line <metrics) > 0)
				if (line ~ /"event": *"train"/)
					row[field(line, "iter")] = line
		}
		$1 == "step" && $2 <= steps {
			near("loss", field(row[$2], "loss"), $3, loss)
			near("grad_norm", field(row[$2], "grad_norm"), $4, norm)
			near("lr", field(row[$2], "lr"), $5, 1e-6)
		}
		END { print pass + 0, fail + 0 }' "$1.txt")
	count $((3 * steps)) "$p" "$f"
}

# golden NAME HOW TP PP DP MICRO RECOMPUTE [ARGS...]
golden() {
	local name=$1 how=$2 tp=$3 pp=$4 dp=$5 micro=$6 recompute=$7
	shift 7
	local what="$name on $how, tp $tp pp $pp dp $dp, micro $micro, recompute $recompute $*"
	rm -rf "$tmp/log"
	if ! launch "$how" $((tp * pp * dp)) --config "$name.json" --set parallel.tensor="$tp" \
		--set parallel.pipeline="$pp" --set parallel.data="$dp" --set batch.micro="$micro" \
		--set model.recompute="$recompute" --set log.dir="$tmp/log" --set train.iters="$steps" "$@" >"$tmp/out" 2>&1; then
		failed=$((failed + 1))
		echo "failed: $what" >&2
		tail -n 3 "$tmp/out" >&2
	elif ! compare "$name" "$tmp/log/metrics.jsonl"; then
		echo "differs: $what" >&2
	fi
}

# Final weights of a checkpoint against the lines "weight NAME NORM PROBE", by tests/tools/weights.
golden_weights() { # NAME CHECKPOINT
	local p f
	if ! "$OCC_TRAIN" export --checkpoint "$2" --out "$tmp/out.safetensors" >"$tmp/out" 2>&1 ||
		! "$BUILD/tests/tools/weights" "$tmp/out.safetensors" >"$tmp/probe"; then
		failed=$((failed + 1))
		cat "$tmp/out" >&2
		return
	fi
	read -r p f < <(awk -v weight_bound="$weight_bound" '
		NR == FNR { norm[$2] = $3; probe[$2] = $4; next }
		$1 == "weight" {
			if ($2 in norm && ($3 - norm[$2]) ^ 2 + ($4 - probe[$2]) ^ 2 <= (weight_bound * $3) ^ 2) {
				pass++
			} else if (!fail++) {
				printf "%s: norm %s, probe %s; should be %s, %s\n", $2, norm[$2], probe[$2],
					$3, $4 >"/dev/stderr"
			}
		}
		END { print pass + 0, fail + 0 }' "$tmp/probe" "$1.txt")
	count "$(grep -c ^weight "$1.txt")" "$p" "$f"
}
