# occ-train: `make demo` and `make test` do everything on a fresh machine; `make help` lists the rest.
comma := ,
empty :=
space := $(empty) $(empty)
SAN  ?=
ARCH ?= native
MPI  ?= 1
BLAS ?= onednn
PREFIX ?= /usr/local
CUDA ?=
CUDA_HOME ?= /usr/local/cuda
CUDA_ARCH ?= 80 90 100
Q    := $(if $(VERBOSE),,@)
say   = $(if $(VERBOSE),,@printf '  %-4s %s\n' $(1) $(2))

B    := build/$(ARCH)-mpi$(MPI)-$(BLAS)$(if $(SAN),-$(subst $(comma),+,$(SAN)))
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
	-Wvla -Werror
# libgomp is not instrumented: under the thread sanitizer its teams are left out, ranks as threads stay.
OMP  := $(if $(findstring thread,$(SAN)),-Wno-unknown-pragmas -Wno-unused-parameter -Wno-unused-variable,-fopenmp)
OPT  := -O3 -march=$(ARCH) -g $(OMP) -ffp-contract=fast -fno-math-errno -fno-trapping-math
CFLAGS_ALL = -std=c11 $(WARN) $(OPT) $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all \
	-fno-omit-frame-pointer -O1) $(CFLAGS)
CPPFLAGS_ALL = -I. -MMD -MP -D_GNU_SOURCE $(CPPFLAGS)
NVCCFLAGS = -std=c++17 -O3 -I. -lineinfo -Xptxas -warn-spills,-Werror -Xcompiler -Wall $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$a$(comma)code=sm_$a) \
	-gencode arch=compute_$(lastword $(CUDA_ARCH))$(comma)code=compute_$(lastword $(CUDA_ARCH))
LIBS := -lcjson -lm -pthread -lgomp

SRC := $(filter-out %_mpi.c %_nompi.c %gemm_onednn.c %gemm_openblas.c %_nccl.c \
	base/cuda_%.c base/device_cuda.c, \
	$(wildcard base/*.c compress/*.c parallel/*.c model/*.c trainer/*.c))
SRC += base/gemm_$(BLAS).c
LIBS += $(if $(filter onednn,$(BLAS)),-ldnnl,-lopenblas)
ifeq ($(MPI),1)
SRC += parallel/comm_mpi.c
$B/parallel/comm_mpi.o: CPPFLAGS_ALL += $(shell mpicc --showme:compile 2>/dev/null)
LIBS += $(shell mpicc --showme:link 2>/dev/null)
else
SRC += parallel/comm_nompi.c
endif

OBJ := $(SRC:%.c=$B/%.o)
# With CUDA: the same objects but for the list of devices and the lanes, and those of base/cuda*. What is linked
# stands apart.
ifeq ($(CUDA),1)
V := $B/cuda
OBJ := $(filter-out $B/base/device.o $B/parallel/lane_none.o,$(OBJ)) $(patsubst %,$V/%.o, \
	base/device.c base/device_cuda.c parallel/lane_nccl.c \
	$(wildcard base/cuda_*.c base/cuda_*.cu))
LIBS := -L$(CUDA_HOME)/lib64 -lcudnn -lcublas -lcublasLt -lcudart -lnccl -lstdc++ -Wl,-rpath,$(CUDA_HOME)/lib64 $(LIBS)
ifneq ($(or $(filter-out 80 86 87 89 90 90a 100 100a 103 110 120 121,$(CUDA_ARCH)),$(if $(strip $(CUDA_ARCH)),,none)),)
$(error CUDA_ARCH="$(CUDA_ARCH)": numbers of compute capabilities with spaces between them, as in CUDA_ARCH="80 90 100")
endif
ifeq ($(wildcard $(CUDA_HOME)/bin/nvcc),)
$(error CUDA=1: no bin/nvcc under $(CUDA_HOME); say where the CUDA toolkit is, with cuBLAS: make CUDA=1 CUDA_HOME=DIR)
endif
else
V := $B
endif
LIBOBJ := $(filter-out $B/trainer/main.o,$(OBJ))
TEST_SRC := $(wildcard tests/unit/*.c tests/ranks/*.c)
TESTS := $(TEST_SRC:%.c=$V/%) $(patsubst %.c,$V/%,$(wildcard tests/tools/*.c))
BENCH_SRC := $(wildcard bench/*.c)
BENCHES := $(BENCH_SRC:%.c=$V/%)
# The native build, with CUDA or without, leaves a copy at the top; all variants stay under build/.
BIN := $V/occ-train
TOP := $(if $(SAN)$(filter-out native,$(ARCH))$(filter-out 1,$(MPI))$(filter-out onednn,$(BLAS)),,occ-train)

KEEP := $(if $(findstring address,$(SAN)),$B/tests/keep.o)
LINK = $(LDFLAGS) $(KEEP) $(if $(SAN),-rdynamic) $(LIBS)

# What the compiler needs; one line names what is missing, before anything is compiled.
NEEDS := core $(BLAS) $(if $(filter 1,$(MPI)),mpi)
# Where there is a CUDA toolkit tests run GPU code too, on the CPU; the thread sanitizer cannot follow its fibers.
# They take kernels as they are; else one architecture is enough to run them and to see registers spill.
TEST_ARCH = $(or $(if $(filter file,$(origin CUDA_ARCH)),,$(CUDA_ARCH)),$(shell cat $B/cuda/.arch 2>/dev/null),90)
NVCC := $(if $(findstring thread,$(SAN))$(filter-out 1,$(MPI)),,$(wildcard $(CUDA_HOME)/bin/nvcc))
RUN_TESTS = scripts/run-tests $(if $(NVCC),--cuda $B/cuda) --build $V --bin $(BIN) $(if $(SAN),--san $(SAN))

SUBMAKE = $(MAKE) -s --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))

all: $(BIN) ## the program: ./occ-train (CUDA=1: with GPUs; CUDA_HOME, CUDA_ARCH="80 90 100")
	$(if $(TOP),$(Q)cmp -s $< $(TOP) || { printf "  %-4s %s\\n" CP "$< to ./$(TOP)"; cp -f $< $(TOP); })

$V/.needs: scripts/install-deps
	$(Q)scripts/install-deps --check $(NEEDS) && mkdir -p $(@D) && touch $@

$(BIN): $(OBJ) $(KEEP)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS_ALL) -o $@ $(OBJ) $(LINK)

$V/liboccall.a: $(LIBOBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $(LIBOBJ)

# CUDA: what includes its headers, and its kernels.
$V/%.c.o: %.c | $V/.needs
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(CPPFLAGS_ALL) -DOCC_CUDA -isystem $(CUDA_HOME)/include $(CFLAGS_ALL) -c -o $@ $<

$V/.arch: FORCE
	$(Q)mkdir -p $(@D) && { echo "$(CUDA_ARCH)" | cmp -s - $@ || echo "$(CUDA_ARCH)" >$@; }

$V/%.cu.o: %.cu $V/.arch | $V/.needs
	$(call say,NVCC,$<)
	$(Q)mkdir -p $(@D) && $(CUDA_HOME)/bin/nvcc $(NVCCFLAGS) -MD -MF $V/$*.cu.d -c -o $@ $<

$B/%.o: %.c | $V/.needs
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -c -o $@ $<

$V/tests/%: tests/%.c $V/liboccall.a $(KEEP)
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -o $@ $< $V/liboccall.a $(LINK)

$V/bench/%: bench/%.c $V/liboccall.a $(KEEP)
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -o $@ $< $V/liboccall.a $(LINK)

tests: $(TESTS) ## build the unit and rank tests
benches: $(BENCHES) ## build the benchmarks

# deps may install what `make` itself looks for when it starts (mpicc), so the rest is a second make.
deps: ## install what is missing (Debian packages; root or sudo only then)
	@scripts/install-deps $(NEEDS) demo test $(if $(NVCC),emulation)

demo: deps ## train a small GPT on the King James Bible, or on TEXT=FILE, over 8 ranks
	+@$(SUBMAKE) all
	@scripts/demo $(if $(TEXT),"$(TEXT)")

# What scripts/gpu-check runs, and what `make test` needs of the build with CUDA.
CUDA_TESTS = $(patsubst %.c,$V/%,$(shell grep -l 'CUDA: [12]' $(TEST_SRC)))
GPU_BENCHES = $(patsubst %.c,$V/%,$(wildcard bench/gpu_*.c))
gpu-programs: $(BIN) $(CUDA_TESTS) $(GPU_BENCHES)
cuda-tests: $(if $(filter 1,$(CUDA)),gpu-programs emulation emulation-tests $V/tests/cuda/cudnn_plans \
	$V/emu/fakecuda/libcuda.so.1)
ifneq ($(CUDA),1)
	$(if $(NVCC),+@$(SUBMAKE) CUDA=1 CUDA_ARCH="$(TEST_ARCH)" $@)
endif

test: deps ## build and test (T=PART picks tests by their path; SAN=address,undefined or thread)
	+@$(SUBMAKE) $(BIN) tests && $(SUBMAKE) cuda-tests
	@$(RUN_TESTS) $(T)

test-all: deps ## the long tier too
	+@$(SUBMAKE) $(BIN) tests && $(SUBMAKE) cuda-tests
	@$(RUN_TESTS) --long $(T)

bench: all benches ## step time and GFLOP/s, beside PyTorch where it is installed
	@BUILD=$B bench/step-time.sh

ladder: all ## step times of compression over emulated nodes (root; half an hour)
	@scripts/ladder

lint: $B/tests/tools/config_md ## layers, sizes, format, static analysis, generated files
	@scripts/lint --build $B

format: ## lay out the C code
	@clang-format -i $(wildcard */*.c */*.h tests/*/*.c)

docs: $B/tests/tools/config_md ## docs/config.md from the table of options
	@mkdir -p docs && $< >docs/config.md

install: all ## to $(DESTDIR)$(PREFIX)/bin
	install -D -m 755 $(BIN) $(DESTDIR)$(PREFIX)/bin/occ-train

clean: ## remove what was built
	rm -rf build occ-train demo-out

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

.PHONY: FORCE all tests gpu-programs cuda-tests benches deps demo test test-all bench ladder lint format docs install clean help
.SECONDARY:
ifeq ($(CUDA),1)
include tests/cudaemu/rules.mk
endif
-include $(OBJ:.o=.d) $(TESTS:=.d) $(BENCHES:=.d)
