# tare: builds the programs; tests/tests.mk has the rules of tests and benchmarks. `make help` lists
# the targets; `make info` says what was detected.

# ---- choices ------------------------------------------------------------------------------------
BUILD ?= release#            release | debug | asan | tsan | fuzz
ifeq ($(origin CC),default)
CC := gcc
endif
WERROR ?= 1
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
MODEL ?= models/smollm2-135m-instruct-q4_1.gguf
SERVE_FLAGS ?=#              make serve SERVE_FLAGS="--port 8001"
VERSION := 0.1.0
COMMIT := $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)

VARIANTS := release debug asan tsan fuzz
ifeq ($(filter $(BUILD),$(VARIANTS)),)
$(error BUILD=$(BUILD) is unknown; choose one of: $(VARIANTS))
endif

OUT := build/$(notdir $(CC))-$(BUILD)
GEN := build/gen

# ---- packages -----------------------------------------------------------------------------------
PKGS := libuv libzmq libprotobuf-c jansson yaml-0.1 libsodium libxxhash libutf8proc libpcre2-8 libcurl
DEB_BUILD := gcc libc6-dev pkg-config git libuv1-dev libzmq3-dev libprotobuf-c-dev \
    protobuf-c-compiler libjansson-dev libyaml-dev libsodium-dev libxxhash-dev libutf8proc-dev \
    libpcre2-dev libcurl4-openssl-dev
DEB_MODEL := python3 python3-pip ca-certificates curl
DEB_TEST := check clang clang-format clang-tidy libclang-rt-dev procps python3-venv python3-jinja2
# promtool alone: the package prometheus would also start a server and enable it at boot.
export PATH := $(PATH):$(CURDIR)/build/promtool/usr/bin
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null | sed 's/-I/-isystem /g')
PKG_LIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null)
ifeq ($(PKG_LIBS)$(filter deps deps-test serve model test check format info help clean,$(MAKECMDGOALS)),)
$(error missing: $(shell for p in $(PKGS); do pkg-config --exists $$p 2>/dev/null || echo $$p; done); run make deps)
endif

# Collectives of CUDA devices are compiled where the headers are (NCCL=0: not). They belong to the
# CUDA plug-in: no program links the library.
NCCL_DIR ?= $(patsubst %/nccl.h,%,$(firstword $(wildcard /usr/local/cuda/include/nccl.h /usr/local/cuda-*/include/nccl.h /usr/include/nccl.h)))
NCCL ?= $(if $(and $(NCCL_DIR),$(wildcard $(NCCL_DIR)/cuda_runtime_api.h)),1,0)

# ---- flags --------------------------------------------------------------------------------------
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wdouble-promotion -Wstrict-prototypes \
    -Wmissing-prototypes -Wold-style-definition -Wvla -Wundef -Wpointer-arith -Wwrite-strings \
    -Wformat=2 -Wimplicit-fallthrough
ifeq ($(WERROR),1)
WARN += -Werror
endif
# No contraction: a product and a sum are fused only where the source says fma, so that every
# instruction set computes the same bits.
CFLAGS := -std=c11 -g -fno-omit-frame-pointer -fno-common -fstack-protector-strong \
    -ffp-contract=off -D_GNU_SOURCE \
    -I. -I$(GEN) $(PKG_CFLAGS)
LDFLAGS := -g
LDLIBS := $(PKG_LIBS) -lpthread -lm
ifeq ($(BUILD),release)
CFLAGS += -O2 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
else ifeq ($(BUILD),debug)
CFLAGS += -O0 -DTARE_SLOW_CHECKS
else ifeq ($(BUILD),asan)
CFLAGS += -O1 -DTARE_SLOW_CHECKS -fsanitize=address,undefined -fno-sanitize-recover=all
LDFLAGS += -fsanitize=address,undefined
else ifeq ($(BUILD),tsan)
CFLAGS += -O1 -DTARE_SLOW_CHECKS -fsanitize=thread
export TSAN_OPTIONS := suppressions=$(CURDIR)/tests/tsan.supp
LDFLAGS += -fsanitize=thread
else ifeq ($(BUILD),fuzz)
CFLAGS += -O1 -DTARE_SLOW_CHECKS -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
LDFLAGS += -fsanitize=fuzzer,address,undefined
endif
# Instruction sets are chosen at run time; only files named after one may use it.
# Kernels are optimised hard where speed matters; under the sanitizers that would take minutes.
KERNEL_O := $(if $(filter release,$(BUILD)),-O3,-O1)
# Adding parts of ranks: plain loops over memory, which only want wide loads.
%/ordered_sum.o: ISA := $(KERNEL_O)
%/collective_nccl.o: ISA := -isystem $(NCCL_DIR)
%_sse42.o: ISA := -msse4.2
%_avx2.o: ISA := -mavx2 -mfma -mf16c $(KERNEL_O)
%_avx512.o: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512vnni -mavx2 -mfma -mf16c $(KERNEL_O)

# ---- sources ------------------------------------------------------------------------------------
PROTO_SRC := $(wildcard proto/*.proto)
PROTO_GEN := $(PROTO_SRC:proto/%.proto=$(GEN)/proto/%.pb-c.c)
COMMON_C := $(wildcard common/*.c)
PROTO_C := $(wildcard proto/*.c)
KERNELS_C := $(wildcard kernels/*.c kernels/cpu/*.c kernels/sim/*.c)
CONTROLLER_C := $(filter-out controller/main.c,$(wildcard controller/*.c controller/core/*.c \
    controller/text/*.c controller/http/*.c controller/net/*.c))
WORKER_C := $(filter-out worker/main.c worker/comm/collective_nccl.c,$(wildcard worker/*.c worker/*/*.c))
CLI_C := $(filter-out controller/cli/main.c,$(wildcard controller/cli/*.c))

# Short lines by default; V=1 shows whole commands.
ifeq ($(V),1)
Q :=
else
Q = @echo "  $(if $(filter $(OUT)/bin/%,$@),LD,CC) $@";
endif
obj = $(1:%.c=$(OUT)/%.o)
GEN_O := $(PROTO_GEN:$(GEN)/%.c=$(OUT)/gen/%.o)
BASE_O := $(call obj,$(COMMON_C) $(PROTO_C)) $(GEN_O)
CONTROLLER_O := $(call obj,$(CONTROLLER_C))
WORKER_O := $(call obj,$(WORKER_C) $(KERNELS_C))
CLI_O := $(call obj,$(CLI_C))
ALL_O := $(BASE_O) $(CONTROLLER_O) $(WORKER_O) $(CLI_O)

PROGRAMS := tare tare-controller tare-worker
BINS := $(PROGRAMS:%=$(OUT)/bin/%)

.PHONY: all programs deps deps-test serve model format lint info help clean
.DELETE_ON_ERROR:
.SECONDARY:

all: programs    ## build the three programs into bin/
programs: $(BINS) $(if $(filter 1,$(NCCL)),$(OUT)/worker/comm/collective_nccl.o)
ifeq ($(OUT),build/gcc-release)
	@mkdir -p bin && for p in $(PROGRAMS); do cmp -s $(OUT)/bin/$$p bin/$$p || install -m 755 $(OUT)/bin/$$p bin/$$p; done
endif

# ---- rules --------------------------------------------------------------------------------------
$(OUT)/bin/tare-controller: $(OUT)/controller/main.o $(CONTROLLER_O) $(BASE_O)
$(OUT)/bin/tare-worker: $(OUT)/worker/main.o $(WORKER_O) $(BASE_O)
$(OUT)/bin/tare: $(OUT)/controller/cli/main.o $(CLI_O) $(BASE_O)
$(BINS):
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LDLIBS)

$(GEN)/proto/%.pb-c.c $(GEN)/proto/%.pb-c.h: proto/%.proto
	@mkdir -p $(GEN)/proto
	protoc-c --proto_path=. --c_out=$(GEN) $<
$(OUT)/gen/proto/%.o: $(GEN)/proto/%.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -w -c -o $@ $<
$(call obj,proto/codec.c proto/codec_control.c): $(PROTO_GEN)

# The commit is compiled into one object, again whenever it changes.
build/version: FORCE
	@mkdir -p build; echo '$(VERSION)-$(COMMIT)' | cmp -s - $@ || echo '$(VERSION)-$(COMMIT)' >$@
.PHONY: FORCE    # or .SECONDARY would keep make from it
$(call obj,common/version.c): build/version
$(call obj,common/version.c): CFLAGS += -DTARE_VERSION='"$(VERSION)"' -DTARE_COMMIT='"$(COMMIT)"'

$(OUT)/%.o: %.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(WARN) $(ISA) -MMD -MP -c -o $@ $<

# ---- people -------------------------------------------------------------------------------------
SUDO := $(shell [ "$$(id -u 2>/dev/null)" = 0 ] || echo sudo)
define install_debs
	@missing=""; for p in $(1); do dpkg-query -W -f '$${db:Status-Status}' $$p 2>/dev/null | grep -qx installed || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then echo "installing Debian packages:$$missing"; \
	  [ -z "$(SUDO)" ] || command -v sudo >/dev/null || { echo "this needs root or sudo; as root: apt-get install$$missing" >&2; exit 1; }; \
	  $(SUDO) apt-get update -q && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing; fi
endef
deps:    ## install what building and serving need
	$(call install_debs,$(DEB_BUILD) $(DEB_MODEL))
deps-test: deps    ## install what the tests need
	$(call install_debs,$(DEB_TEST))
	@command -v promtool >/dev/null || { echo "unpacking promtool into build/promtool"; mkdir -p build/promtool && cd build/promtool && \
	  { apt-get download -q -o APT::Sandbox::User=root prometheus || { $(SUDO) apt-get update -q && apt-get download -q -o APT::Sandbox::User=root prometheus; }; } && \
	  dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb; }

serve: deps    ## install what is missing, fetch the demo model, build, serve it (MODEL=, SERVE_FLAGS=)
	@$(if $(filter file,$(origin MODEL)),$(MAKE) --no-print-directory model)
	@$(MAKE) --no-print-directory -j$(JOBS) all
	@exec bin/tare serve $(MODEL) $(SERVE_FLAGS)

MODEL_SHA256 := $(shell cut -d' ' -f1 deploy/models/smollm2-135m-instruct-q4_1.sha256 2>/dev/null)
model: models/smollm2-135m-instruct-q4_1.gguf    ## fetch the demo model (93 MB) into models/
	@:
models/smollm2-135m-instruct-q4_1.gguf:
	@sh deploy/models/fetch-demo.sh $@ $(MODEL_SHA256)

format:    ## rewrite sources in the house format
	clang-format -i $$(git ls-files '*.c' '*.h')
lint: $(PROTO_GEN)    ## clang-tidy over all sources
	clang-tidy --quiet $$(git ls-files '*.c' | grep -v '^tests/') -- $(CFLAGS) -DTARE_LINT
info:    ## what was detected, and what it means
	@echo "version $(VERSION) ($(COMMIT))  compiler $(CC)  variant $(BUILD)  output $(OUT)"
	@for p in $(PKGS); do printf '%-16s %s\n' $$p "$$(pkg-config --modversion $$p 2>/dev/null || echo 'missing: run make deps')"; done
	@printf '%-16s %s\n' nccl.h '$(if $(filter 1,$(NCCL)),$(NCCL_DIR),not found: no collectives of CUDA devices)'
	@printf '%-16s %s\n' nvcc "$$(command -v nvcc || echo 'not found: no CUDA plug-in')"
help:    ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(filter-out %.d,$(MAKEFILE_LIST)) | sed -E 's/^([a-z0-9-]+):[^#]*##[ ]*/\1|/' | awk -F'|' '{printf "  %-15s %s\n", $$1, $$2}'
clean:    ## remove build/ and bin/
	rm -rf build bin

include tests/tests.mk
-include $(shell find $(OUT) -name '*.d' 2>/dev/null)
