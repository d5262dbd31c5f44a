# occ-train: `make demo` and `make test` do everything on a fresh machine; `make help` lists the rest.
comma := ,
empty :=
space := $(empty) $(empty)
SAN  ?=
ARCH ?= native
MPI  ?= 1
BLAS ?= onednn
PREFIX ?= /usr/local
Q    := $(if $(V),,@)
say   = $(if $(V),,@printf '  %-4s %s\n' $(1) $(2))

B    := build/$(ARCH)-mpi$(MPI)-$(BLAS)$(if $(SAN),-$(subst $(comma),+,$(SAN)))
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
	-Wvla -Werror
# libgomp is not instrumented: under the thread sanitizer its teams are left out, ranks as threads stay.
OMP  := $(if $(findstring thread,$(SAN)),-Wno-unknown-pragmas -Wno-unused-parameter -Wno-unused-variable,-fopenmp)
OPT  := -O3 -march=$(ARCH) -g $(OMP) -ffp-contract=fast -fno-math-errno -fno-trapping-math
CFLAGS_ALL = -std=c11 $(WARN) $(OPT) $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all \
	-fno-omit-frame-pointer -O1) $(CFLAGS)
CPPFLAGS_ALL = -I. -MMD -MP -D_GNU_SOURCE $(CPPFLAGS)
LIBS := -lcjson -lm -pthread -lgomp

SRC := $(filter-out %_mpi.c %_nompi.c %gemm_onednn.c %gemm_openblas.c, \
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
LIBOBJ := $(filter-out $B/trainer/main.o,$(OBJ))
TEST_SRC := $(wildcard tests/unit/*.c tests/ranks/*.c)
TESTS := $(TEST_SRC:%.c=$B/%) $(patsubst %.c,$B/%,$(wildcard tests/tools/*.c))
BENCH_SRC := $(wildcard bench/*.c)
BENCHES := $(BENCH_SRC:%.c=$B/%)
# The plain build leaves the program at the top; variants stay under build/.
BIN := $(if $(SAN)$(filter-out native,$(ARCH))$(filter-out 1,$(MPI))$(filter-out onednn,$(BLAS)),$B/occ-train,occ-train)

KEEP := $(if $(findstring address,$(SAN)),$B/tests/keep.o)
LINK = $(LDFLAGS) $(KEEP) $(if $(SAN),-rdynamic) $(LIBS)

# What the compiler needs; one line names what is missing, before anything is compiled.
NEEDS := core $(BLAS) $(if $(filter 1,$(MPI)),mpi)
RUN_TESTS = scripts/run-tests --build $B --bin $(BIN) $(if $(SAN),--san $(SAN))

SUBMAKE = $(MAKE) -s --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))

ifeq ($(CUDA),1)
$(error CUDA=1: the CUDA backend is not built yet)
endif

all: $(BIN) ## the program (CPU): ./occ-train

$B/.needs: scripts/install-deps
	$(Q)scripts/install-deps --check $(NEEDS) && mkdir -p $(@D) && touch $@

$(BIN): $(OBJ) $(KEEP)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS_ALL) -o $@ $(OBJ) $(LINK)

$B/liboccall.a: $(LIBOBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $(LIBOBJ)

$B/%.o: %.c | $B/.needs
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -c -o $@ $<

$B/tests/%: tests/%.c $B/liboccall.a $(KEEP)
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -o $@ $< $B/liboccall.a $(LINK)

$B/bench/%: bench/%.c $B/liboccall.a $(KEEP)
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -o $@ $< $B/liboccall.a $(LINK)

tests: $(TESTS) ## build the unit and rank tests
benches: $(BENCHES) ## build the benchmarks

# deps may install what `make` itself looks for when it starts (mpicc), so the rest is a second make.
deps: ## install what is missing (Debian packages; root or sudo only then)
	@scripts/install-deps $(NEEDS) demo test

demo: deps ## train a small GPT on the King James Bible, or on TEXT=FILE, over 8 ranks
	+@$(SUBMAKE) all
	@scripts/demo $(if $(TEXT),"$(TEXT)")

test: deps ## build and test (T=PART picks tests by their path; SAN=address,undefined or thread)
	+@$(SUBMAKE) all tests
	@$(RUN_TESTS) $(T)

test-all: deps ## the long tier too
	+@$(SUBMAKE) all tests
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

.PHONY: all tests benches deps demo test test-all bench ladder lint format docs install clean help
.SECONDARY:
-include $(OBJ:.o=.d) $(TESTS:=.d) $(BENCHES:=.d)
