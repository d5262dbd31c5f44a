#!/usr/bin/env bash
# GPU code on the CPU under the address and undefined sanitizers: the device's slots, the codecs', and training by eight
# ranks that are threads, in fp32 and bf16, with codecs, streams never late and late, against the ref device. What is
# planted in a kernel is seen in the program's run. (`make SAN=address,undefined test T=cuda` runs all tests so.) TIME: 1200
. tests/lib.sh
on_cuda
. scripts/san-env
san=$OCC_CUDA
if [ -z "${OCC_SAN-}" ]; then
	san=$(realpath -m --relative-to=. "${OCC_CUDA%/cuda}-address+undefined/cuda")
	if ! make -s --no-print-directory -j"$(nproc)" SAN=address,undefined CUDA=1 CUDA_ARCH="$(cat "$OCC_CUDA/.arch")" \
		"$san/occ-train" "$san/tests/unit/device" "$san/tests/unit/codec_slots" emulation >"$tmp/make" 2>&1; then
		tail -n 20 "$tmp/make" >&2
		check "the build with sanitizers" false
		finish
	fi
	san=$root/$san
fi
export OCC_TRAIN=$san/occ-train LD_LIBRARY_PATH=$san/emu
show() { tail -n 30 "$tmp/out" >&2; false; }

# ---- The build is what it should be: the program, the libraries of the emulation, and the kernels. ----

instrumented() { nm -D "$1" | grep -q __asan_report && nm -D "$1" | grep -q __ubsan_handle; }
for file in occ-train emu/libcudart.so emu/libcublas.so emu/libcublasLt.so emu/libnccl.so emu/libocc_kernels_emu.so; do
	check "$file has no sanitizers" instrumented "$(find "$san" -path "$san/$file*" ! -name '*.ver')"
done

# ---- Slots, each array of which is an allocation of its own. ----

rounds() { # PROGRAM ROUNDS
	OCC_TEST_DEVICE=cuda OCC_EMU_ORDER=random:1 timeout 400 "$san/tests/unit/$1" "$2" >"$tmp/out" 2>&1 || show
}
check "slots of the device" rounds device 4
check "slots of codecs" rounds codec_slots 4

# ---- Training in a cube of layouts. ----

cd tests/golden || exit 1
losses() { sed -n '/"event": *"train"/s/.*"loss": *\([^,}]*\).*/\1/p' "$1/metrics.jsonl"; }
# train DEVICE ARGS...: into a log named after the device
train() {
	rm -rf "${tmp:?}/$1"
	launch thread 8 --config compress-none.json --set parallel.tensor=2 --set parallel.pipeline=2 --set parallel.data=2 \
		--set train.iters=4 --set train.device="$1" --set log.dir="$tmp/$1" "${@:2}" >"$tmp/out" 2>&1 || show
}
same() { # BOUND
	paste <(losses "$tmp/ref") <(losses "$tmp/cuda") | awk -v bound="$1" '
		($1 - $2) ^ 2 > (bound * $1) ^ 2 { print "step", NR, $1, $2; bad = 1 }
		END { exit bad || NR < 4 }' >&2
}
trained() { # BOUND KEY=VALUE...; keys as in tests/cli/cuda.sh
	local bound=$1 key sets=() streams
	for key in "${@:2}"; do
		key=${key/#back./compress.pipeline_backward.} key=${key/#fwd./compress.pipeline_forward.}
		sets+=(--set "${key/#dp./compress.data_parallel.}")
	done
	train ref "${sets[@]}" || return
	for streams in eager lazy:1; do
		OCC_EMU_STREAMS=$streams train cuda "${sets[@]}" && same "$bound" || return
	done
}
while read -r -a line; do
	check "training: ${line[*]}" trained "${line[@]}"
done <<-END
	1e-6 train.precision=fp32 model.dropout=0.1
	3e-3 train.precision=bf16
	1e-6 back.codec=topk back.fraction=0.1 back.mark=all dp.codec=quant dp.bits=8
	1e-4 back.codec=errbound back.epsilon=1e-5 back.mark=all dp.codec=powersgd dp.rank=2
	1e-6 fwd.codec=dct fwd.fraction=0.25 dp.codec=topk dp.fraction=0.05
	3e-3 train.precision=bf16 back.codec=quant back.bits=8 back.mark=all dp.codec=errbound dp.epsilon=1e-5
END

# ---- Faults planted in kernels. ----

# planted FILE SCRIPT: libocc_kernels_emu.so with that file of kernels changed by sed
planted() {
	local file=$1 others
	sed "$2" "$root/base/$file" >"$tmp/$file"
	! cmp -s "$root/base/$file" "$tmp/$file" || return
	mapfile -t others < <(printf '%s\n' "$san"/emu/base/*.cu.o | grep -v "/$file.o")
	(cd "$root" && g++ -std=c++17 -O1 -g -fPIC -fsanitize=address,undefined -fno-sanitize-recover=all \
		-fno-omit-frame-pointer -fsanitize-sections=occ_shared -w -I. -I"${CUDA_HOME:-/usr/local/cuda}/include" \
		-include tests/cudaemu/cuda_emu.h -shared -Wl,-Bsymbolic -o "$tmp/planted.so" \
		-x c++ "$tmp/$file" -x none "${others[@]}" "$san"/emu/libcudart.so.*[0-9])
}
ends_with() { # WORDS
	local code=0
	OCC_EMU_KERNELS=$tmp/planted.so train cuda --set train.max_skipped=0 2>"$tmp/shown" || code=$?
	[ "$code" != 0 ] || { echo "it ended well" >&2; return 1; }
	grep -q -- "$1" "$tmp/out" || show
}
check "a kernel that writes past its array does not build" planted cuda_optim.cu 's/own\.at, own\.n);/own.at, own.n + 4);/'
check "a kernel that writes past its array is not seen" ends_with 'heap-buffer-overflow'
check "a kernel that leaves a number unset does not build" planted cuda_optim.cu \
	'/k_piece_squares(/,/^}/s/threadIdx.x == 0/& \&\& blockIdx.x/'
check "a kernel that leaves a number unset is not seen" ends_with 'not finite\|non-finite'
finish
