# CUDA without a GPU: libraries with the sonames of the real ones, which the tests put in front of them
# (LD_LIBRARY_PATH), so that the program that nvcc and the real libraries linked runs unchanged on the CPU.
E := $V/emu
EMU_FLAGS := -std=c++17 -O2 -g -fPIC -Wall -Wextra -Wno-unknown-pragmas -pthread -DOMPI_SKIP_MPICXX -I. -I$(CUDA_HOME)/include \
	$(shell mpicc --showme:compile) $(if $(SAN),-fsanitize=$(SAN))
emu_soname = $(shell objdump -p $(CUDA_HOME)/lib64/lib$(1).so | sed -n 's/ *SONAME *//p')
EMU_LIBS := $(foreach l,cudart cublas,$E/$(call emu_soname,$l))
EMU_CUDART := $E/$(call emu_soname,cudart)

emulation: $(EMU_LIBS) $E/libocc_kernels_emu.so ## CUDA=1: what runs GPU code on the CPU, for tests

$E/%.o: tests/cudaemu/%.cpp | $V/.needs
	$(call say,CXX,$<)
	$(Q)mkdir -p $(@D) && $(CXX) $(EMU_FLAGS) -MMD -MP -c -o $@ $<

# A kernel's file as C++.
$E/%.cu.o: %.cu | $V/.needs
	$(call say,CXX,$<)
	$(Q)mkdir -p $(@D) && $(CXX) $(EMU_FLAGS) -MMD -MP -x c++ -include tests/cudaemu/cuda_emu.h -c -o $@ $<

# Sonames carry versions, and programs ask for the version of the symbols too.
define emu_library # SONAME OBJECTS LIBRARIES
$E/$(1): $(2)
	$(call say,LD,$(1))
	$(Q)echo '$(1) { global: *; };' >$$@.ver
	$(Q)$(CXX) $(EMU_FLAGS) -shared -o $$@ -Wl,-soname,$(1),--version-script=$$@.ver $(2) $(3)
endef
$(eval $(call emu_library,$(call emu_soname,cudart),$E/cuda_emu.o $E/emu_cudart.o,-ldl))
$(eval $(call emu_library,$(call emu_soname,cublas),$E/emu_cublas.o $(EMU_CUDART),-lopenblas))

$E/libocc_kernels_emu.so: $(patsubst %,$E/%.o,$(wildcard base/cuda_*.cu)) $E/emu_kernels_so.o $(EMU_CUDART)
	$(call say,LD,$@)
	$(Q)$(CXX) $(EMU_FLAGS) -shared -Wl,-Bsymbolic -o $@ $^

-include $(wildcard $E/*.d $E/base/*.d)
.PHONY: emulation

# Plans of cuDNN without a GPU: a libcuda.so.1 that answers every call, for this one test and never for the program.
FAKE := $E/fakecuda
CUDNN_PLANS := $V/tests/cuda/cudnn_plans

$(FAKE)/fakecuda.o: tests/cudaemu/fakecuda/fakecuda.c | $V/.needs
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) -std=c11 -D_GNU_SOURCE -O1 -fPIC -Wall -Wextra -c -o $@ $<

$(FAKE)/rest.s: tests/cudaemu/fakecuda/rest.sh $(FAKE)/fakecuda.o
	$(Q)$< $(CUDA_HOME)/lib64/stubs/libcuda.so $(FAKE)/fakecuda.o >$@.new && mv $@.new $@

$(FAKE)/libcuda.so.1: $(FAKE)/fakecuda.o $(FAKE)/rest.s
	$(call say,LD,$@)
	$(Q)$(CC) -shared -Wl,-soname,libcuda.so.1 -o $@ $^ -ldl

$(CUDNN_PLANS): CPPFLAGS_ALL += -I$(CUDA_HOME)/include

cudnn-plans: $(CUDNN_PLANS) $(FAKE)/libcuda.so.1 ## CUDA=1: has cuDNN plans for attention? (no GPU needed)
	$(Q)LD_LIBRARY_PATH=$(FAKE) $(CUDNN_PLANS) $(if $(VERBOSE),-v)

-include $(CUDNN_PLANS).d
.PHONY: cudnn-plans
