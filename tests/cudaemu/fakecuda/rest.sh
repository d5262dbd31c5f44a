#!/bin/sh
# rest.sh STUB OBJECT >rest.s: functions that return 0, one for every call of the driver's interface (the names are in
# the toolkit's stub library) that OBJECT leaves out.
set -e
have=$(nm --defined-only "$2" | awk '$2 == "T" { print $3 }')
echo '	.section .note.GNU-stack,"",@progbits'
echo '	.text'
nm -D --defined-only "$1" | awk -v have="$have" '
	BEGIN { n = split(have, h); for (i = 1; i <= n; i++) done[h[i]] = 1 }
	{ sub(/@.*/, "", $3) }
	$3 ~ /^cu/ && !done[$3]++ { printf "\t.globl %s\n\t.type %s, @function\n%s:\n", $3, $3, $3 }'
echo '	xorl %eax, %eax'
echo '	ret'
