#!/usr/bin/env bash
# Every configs/*.json loads and prints as what loads to the same; Optimus-CC's models, and their small ones,
# have its compression ratios.
. tests/lib.sh

flat() { # FILE: a printed configuration as "section.key=value" lines
	awk '/\{$/ { path[++n] = $1; gsub(/[":{]/, "", path[n]); next }
	/^ *\}/ { n--; next }
	{ key = ""; for (i = 2; i <= n; i++) key = key path[i] "."
	  sub(/^ */, ""); sub(/,$/, ""); gsub(/"/, ""); sub(/: /, "="); print key $0 }' "$1"
}

ratio() { # ROWS COLUMNS RANK: of a low-rank pair
	awk -v n="$1" -v m="$2" -v r="$3" 'BEGIN { printf "%.2f", n * m / (r * (n + m)) }'
}

for f in configs/*.json; do
	name=$(basename "$f" .json)
	check "$f resolves" "$OCC_TRAIN" --config "$f" --print-config >"$tmp/$name.json"
	"$OCC_TRAIN" --config "$tmp/$name.json" --print-config >"$tmp/again.json"
	check "$f: what is printed resolves to itself" cmp -s "$tmp/$name.json" "$tmp/again.json"
done

# The matrices: what one tensor rank sends over a link, tokens / tensor x hidden, and its part of a layer's
# widest product, hidden x 3 hidden / tensor.
while read -r name backward data; do
	declare -A v=()
	while IFS='=' read -r key value; do v[$key]=$value; done < <(flat "$tmp/$name.json")
	t=${v[parallel.tensor]} h=${v[model.hidden]}
	rows=$((${v[batch.micro]} * ${v[model.seq_len]} / t))
	check "$name: pipeline ratio" [ "$(ratio $rows "$h" "${v[compress.pipeline_backward.rank]}")" = "$backward" ]
	check "$name: data ratio" [ "$(ratio "$h" $((3 * h / t)) "${v[compress.data_parallel.rank]}")" = "$data" ]
done <<'ROWS'
gpt2-335m 32.00 2.18
gpt2-2.5b 41.74 4.09
gpt2-8.3b 48.00 6.55
gpt2-9.2b 48.00 6.55
gpt2-335m-small 32.00 2.18
gpt2-2.5b-small 41.74 4.09
gpt2-8.3b-small 48.00 6.55
gpt2-9.2b-small 48.00 6.55
ROWS
finish
