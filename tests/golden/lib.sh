# shellcheck shell=bash disable=SC2154
# Running occ-train against the golden files of this folder; sourced by tests/cli/golden.sh and
# tests/long/golden.sh after tests/lib.sh. The bounds: loss 2e-4 relative, gradient norm 1e-3.
cd "$root/tests/golden" || exit 1

# compare NAME METRICS: adds what was compared to the counts; shows the first difference.
compare() {
	local p f
	read -r p f < <(awk -v metrics="$2" '
		function field(line, name) {
			return match(line, "\"" name "\": *-?[0-9.eE+-]+") ?
				substr(line, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0 : "none"
		}
		function near(what, got, want, bound) {
			if (got != "none" && (got - want) ^ 2 <= (bound * want) ^ 2) {
				pass++
			} else if (!fail++) {
				printf "step %d: %s is %s, should be %s\n", $2, what, got, want >"/dev/stderr"
			}
		}
		BEGIN {
			while ((getline line <metrics) > 0)
				if (line ~ /"event": *"train"/)
					row[field(line, "iter")] = line
		}
		$1 == "step" {
			near("loss", field(row[$2], "loss"), $3, 2e-4)
			near("grad_norm", field(row[$2], "grad_norm"), $4, 1e-3)
			near("lr", field(row[$2], "lr"), $5, 1e-6)
		}
		END { print pass + 0, fail + 0 }' "$1.txt")
	passed=$((passed + p)) failed=$((failed + f))
	return $((f > 0))
}

# golden NAME HOW TP PP DP MICRO RECOMPUTE [ARGS...]
golden() {
	local name=$1 how=$2 tp=$3 pp=$4 dp=$5 micro=$6 recompute=$7
	shift 7
	local what="$name on $how, tp $tp pp $pp dp $dp, micro $micro, recompute $recompute $*"
	rm -rf "$tmp/log"
	if ! launch "$how" $((tp * pp * dp)) --config "$name.json" --set parallel.tensor="$tp" \
		--set parallel.pipeline="$pp" --set parallel.data="$dp" --set batch.micro="$micro" \
		--set model.recompute="$recompute" --set log.dir="$tmp/log" "$@" >"$tmp/out" 2>&1; then
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
	read -r p f < <(awk '
		NR == FNR { norm[$2] = $3; probe[$2] = $4; next }
		$1 == "weight" {
			if ($2 in norm && ($3 - norm[$2]) ^ 2 + ($4 - probe[$2]) ^ 2 <= (1e-3 * $3) ^ 2) {
				pass++
			} else if (!fail++) {
				printf "%s: norm %s, probe %s; should be %s, %s\n", $2, norm[$2], probe[$2],
					$3, $4 >"/dev/stderr"
			}
		}
		END { print pass + 0, fail + 0 }' "$tmp/probe" "$1.txt")
	passed=$((passed + p)) failed=$((failed + f))
}
