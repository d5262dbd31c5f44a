# CUDA without a GPU: libraries with the sonames of the real ones, which the tests put in front of them
# (LD_LIBRARY_PATH), so that the program that nvcc and the real libraries linked runs unchanged on the CPU.
E := $V/emu
EMU_FLAGS := -std=c++17 -O2 -g -fPIC -Wall -Wextra -Wno-unknown-pragmas -pthread -DOMPI_SKIP_MPICXX -I. -I$(CUDA_HOME)/include \
	$(shell mpicc --showme:compile) $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer \
	-fsanitize-sections=occ_shared)
emu_so = $E/$(shell objdump -p $(CUDA_HOME)/lib64/lib$(1).so | sed -n 's/ *SONAME *//p')
EMU_CUDART := $(call emu_so,cudart)
EMU_CUBLAS := $(call emu_so,cublas)
EMU_CUBLASLT := $(call emu_so,cublasLt)
EMU_CUDNN := $(call emu_so,cudnn)
EMU_NCCL := $(call emu_so,nccl)
EMU_LIBS := $(EMU_CUDART) $(EMU_CUBLAS) $(EMU_CUBLASLT) $(EMU_CUDNN) $(EMU_NCCL)

emulation: $(EMU_LIBS) $E/libocc_kernels_emu.so ## CUDA=1: what runs GPU code on the CPU, for tests

$E/%.o: tests/cudaemu/%.cpp | $V/.needs
	$(call say,CXX,$<)
	$(Q)mkdir -p $(@D) && $(CXX) $(EMU_FLAGS) -MMD -MP -c -o $@ $<

# A kernel's file as C++.
$E/%.cu.o: %.cu | $V/.needs
	$(call say,CXX,$<)
	$(Q)mkdir -p $(@D) && $(CXX) $(EMU_FLAGS) -MMD -MP -x c++ -include tests/cudaemu/cuda_emu.h -c -o $@ $<

$(EMU_CUDART): $(patsubst %,$E/emu_%.o,core memory stream graph launch block shared warp fiber)
$(EMU_CUDART): EMU_LINK := -ldl
$(EMU_CUBLAS): $E/emu_cublas.o $E/emu_gemm.o $(EMU_CUDART)
$(EMU_CUBLAS): EMU_LINK := -lopenblas
$(EMU_CUBLASLT): $E/emu_cublaslt.o $E/emu_gemm.o $(EMU_CUDART)
$(EMU_CUBLASLT): EMU_LINK := -lopenblas
$(EMU_CUDNN): $E/emu_cudnn.o $(EMU_CUDART)
$(EMU_NCCL): $E/emu_nccl.o $E/emu_nccl_work.o $E/emu_nccl_types.o $(EMU_CUDART)
$(EMU_NCCL): EMU_LINK := $(shell mpicc --showme:link)

# Programs ask for the version of the symbols too: the soname, but for NCCL, whose symbols have none.
$(EMU_LIBS):
	$(call say,LD,$@)
	$(Q)echo '$(@F) { global: *; };' >$@.ver
	$(Q)$(CXX) $(EMU_FLAGS) -shared -o $@ -Wl,-soname,$(@F) $(if $(findstring nccl,$@),,-Wl,--version-script=$@.ver) \
		$^ $(EMU_LINK)

$E/libocc_kernels_emu.so: $(patsubst %,$E/%.o,$(wildcard base/cuda_*.cu)) $(EMU_CUDART)
	$(call say,LD,$@)
	$(Q)$(CXX) $(EMU_FLAGS) -shared -Wl,-Bsymbolic -o $@ $^

# Tests of the emulation itself; they find the libraries by themselves.
EMU_TESTS := $(patsubst tests/cuda/%.cpp,$V/tests/cuda/%,$(wildcard tests/cuda/*.cpp))
emulation-tests: $(EMU_TESTS) ## CUDA=1: tests of the emulation itself

$V/tests/cuda/%: tests/cuda/%.cpp $(EMU_LIBS)
	$(call say,CXX,$<)
	$(Q)mkdir -p $(@D) && $(CXX) $(EMU_FLAGS) -MMD -MP -MF $@.d -include tests/cudaemu/cuda_emu.h \
		$(if $(findstring undefined,$(SAN)),-DOCC_UNDEFINED_IS_CHECKED) -o $@ $< \
		-Wl,-rpath,'$$ORIGIN/../../emu' $(EMU_LIBS) $(shell mpicc --showme:link)

-include $(wildcard $E/*.d $E/base/*.d $(EMU_TESTS:=.d))
.PHONY: emulation emulation-tests

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
