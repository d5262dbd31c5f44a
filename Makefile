# occ-train: `make demo` and `make test` do everything on a fresh machine; `make help` lists the rest.
comma := ,
empty :=
space := $(empty) $(empty)
SAN  ?=
ARCH ?= native
MPI  ?= 1
BLAS ?= onednn
Q    := $(if $(V),,@)
say   = $(if $(V),,@printf '  %-4s %s\n' $(1) $(2))

B    := build/$(ARCH)-mpi$(MPI)-$(BLAS)$(if $(SAN),-$(subst $(comma),+,$(SAN)))
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
	-Wvla -Werror
OPT  := -O3 -march=$(ARCH) -g -fopenmp -ffp-contract=fast -fno-math-errno -fno-trapping-math
CFLAGS_ALL = -std=c11 $(WARN) $(OPT) $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all \
	-fno-omit-frame-pointer -O1) $(CFLAGS)
CPPFLAGS_ALL = -I. -MMD -MP -D_GNU_SOURCE $(CPPFLAGS)
LIBS := -lcjson -lm -pthread

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
TESTS := $(TEST_SRC:%.c=$B/%)
BENCH_SRC := $(wildcard bench/*.c)
BENCHES := $(BENCH_SRC:%.c=$B/%)
# The plain build leaves the program at the top; variants stay under build/.
BIN := $(if $(SAN)$(filter-out native,$(ARCH))$(filter-out 1,$(MPI))$(filter-out onednn,$(BLAS)),$B/occ-train,occ-train)

all: $(BIN) ## the program (CPU): ./occ-train

$(BIN): $(OBJ)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS_ALL) -o $@ $(OBJ) $(LDFLAGS) $(LIBS)

$B/liboccall.a: $(LIBOBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $(LIBOBJ)

$B/%.o: %.c
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -c -o $@ $<

$B/tests/%: tests/%.c $B/liboccall.a
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -o $@ $< $B/liboccall.a $(LDFLAGS) $(LIBS)

$B/bench/%: bench/%.c $B/liboccall.a
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -o $@ $< $B/liboccall.a $(LDFLAGS) $(LIBS)

tests: $(TESTS) ## build the unit and rank tests
benches: $(BENCHES) ## build the benchmarks

clean: ## remove what was built
	rm -rf build occ-train

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

.PHONY: all tests benches clean help
.SECONDARY:
-include $(OBJ:.o=.d) $(TESTS:=.d) $(BENCHES:=.d)
