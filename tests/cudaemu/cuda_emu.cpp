/* Fiber scheduler behind cuda_emu.h. */
#include "tests/cudaemu/cuda_emu.h"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
#include <cstdio>
#include <cstdlib>
#include <csetjmp>
#include <ucontext.h>
#include <sys/mman.h>
#include <algorithm>
#include <random>
#include <vector>
#include "tests/cudaemu/emu_internal.h"
#if defined(OCC_FIBER_BOOST)
#include <boost/context/detail/fcontext.hpp>
namespace bc = boost::context::detail;
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/asan_interface.h>
#define ASAN 1
#else
#define ASAN 0
#endif

#if defined(__x86_64__)
#define OCC_FIBER_ASM 1
#endif
#if defined(OCC_FIBER_ASM)
extern "C" void occ_emu_switch(void **save_sp, void *to_sp);
__asm__(".text\n.globl occ_emu_switch\n.type occ_emu_switch,@function\nocc_emu_switch:\n"
        "pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15\n"
        "movq %rsp,(%rdi); movq %rsi,%rsp\n"
        "popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp; ret\n"
        ".size occ_emu_switch,.-occ_emu_switch\n");
#endif
namespace occ_emu {
Thread *cur;
Cfg cfg;
uint3 cur_block;
unsigned char *dyn_smem;

namespace {
constexpr size_t STACK = 64 * 1024;
constexpr size_t COLOR = 4096;   /* stacks start at different cache sets */
struct Ctx {
#if defined(OCC_FIBER_BOOST)
    bc::fcontext_t fc = nullptr;
#elif defined(OCC_FIBER_ASM)
    void *sp = nullptr;
#elif defined(OCC_FIBER_UCONTEXT)
    ucontext_t uc;
#else
    jmp_buf jb; bool started = false; ucontext_t uc;
#endif
    void *stack = nullptr;
    void *fake = nullptr;
};
enum State : uint8_t { UNSTARTED, RUNNING, READY, AT_BAR, AT_WARP, DONE };
struct Fib : Thread {
    int lin; State st; Ctx *ctx;
    /* warp op */
    WarpOp op; unsigned mask; uint64_t val; uint64_t res; int arg, width; bool sgn;
    const char *file; int line;
};
std::vector<Fib> th;
struct Warp { unsigned arrived, done; };
std::vector<Warp> wst;
std::vector<int> order, ready; size_t ready_head;
size_t next_un;
std::vector<Ctx *> idle, all_ctx;
Ctx main_ctx; Ctx *cur_ctx = &main_ctx;
const std::function<void()> *body; const char *kname;
int live, bar_arrived; const char *bar_file; int bar_line;
int bar_pred_cnt, bar_pred_and, bar_pred_or, bar_res[3];
std::mt19937 rng(1);
int order_mode = -1; /* 0 forward, 1 reverse, 2 random */
Stats stats_;
void worker_main();

void ctx_entry_() {
#if ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    worker_main();
}
#if defined(OCC_FIBER_BOOST)
Ctx *switch_from;
void bentry(bc::transfer_t t) { switch_from->fc = t.fctx; ctx_entry_(); }
#endif

void jump(Ctx *to) {
    Ctx *from = cur_ctx;
    cur_ctx = to;
    ++stats_.switches;
#if ASAN
    __sanitizer_start_switch_fiber(&from->fake, to->stack, to->stack ? STACK : 0);
#endif
#if defined(OCC_FIBER_BOOST)
    switch_from = from;
    bc::transfer_t t = bc::jump_fcontext(to->fc, nullptr);
    switch_from->fc = t.fctx;
#elif defined(OCC_FIBER_ASM)
    occ_emu_switch(&from->sp, to->sp);
#elif defined(OCC_FIBER_UCONTEXT)
    swapcontext(&from->uc, &to->uc);
#else
    from->started = true;
    if (!_setjmp(from->jb)) {
        if (to->started) _longjmp(to->jb, 1);
        to->started = true;
        setcontext(&to->uc);
    }
#endif
#if ASAN
    __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}
Ctx *new_ctx() {
    Ctx *c = new Ctx();
    c->stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (c->stack == MAP_FAILED) { perror("mmap"); abort(); }
    mprotect(c->stack, 4096, PROT_NONE);   /* guard page */
    size_t top = STACK - (all_ctx.size() * 320 % COLOR) / 64 * 64;
#if defined(OCC_FIBER_BOOST)
    c->fc = bc::make_fcontext((char *)c->stack + top, top, bentry);
#elif defined(OCC_FIBER_ASM)
    { void **sp = (void **)((char *)c->stack + top); *--sp = nullptr; *--sp = (void *)ctx_entry_; sp -= 6; c->sp = sp; }
#else
    getcontext(&c->uc);
    c->uc.uc_stack.ss_sp = c->stack; c->uc.uc_stack.ss_size = top; c->uc.uc_link = nullptr;
    makecontext(&c->uc, ctx_entry_, 0);
#endif
    all_ctx.push_back(c);
    return c;
}
Ctx *get_worker() {
    if (!idle.empty()) { Ctx *c = idle.back(); idle.pop_back(); return c; }
    return new_ctx();
}
bool have_ready() { return ready_head < ready.size(); }
int pop_ready() {
    if (order_mode == 2) {
        size_t n = ready.size() - ready_head, k = ready_head + rng() % n;
        std::swap(ready[k], ready[ready_head]);
    }
    int i = ready[ready_head++];
    if (ready_head == ready.size()) { ready.clear(); ready_head = 0; }
    return i;
}
void make_ready(int i) { th[i].st = READY; ready.push_back(i); }

/* leave the current worker for whatever can run; returns when this worker is resumed */
void yield_away() {
    bool un = next_un < order.size(), rd = have_ready();
    if (un && rd && order_mode == 2) { if (rng() & 1) un = false; else rd = false; }
    /* released threads first: the hot set stays one warp's 32 stacks */
    if (rd) { int i = pop_ready(); th[i].st = RUNNING; cur = &th[i]; jump(th[i].ctx); }
    else if (un) jump(get_worker());
    else jump(&main_ctx);                /* deadlock: main reports it */
}
void release_barrier() {
    bar_res[0] = bar_pred_cnt; bar_res[1] = bar_pred_and; bar_res[2] = bar_pred_or;
    bar_arrived = 0; bar_pred_cnt = 0; bar_pred_and = 1; bar_pred_or = 0;
    for (int i : order) if (th[i].st == AT_BAR) make_ready(i);
}
void thread_done(Fib *f) {
    f->st = DONE; --live; wst[f->lin >> 5].done |= 1u << (f->lin & 31);
    if (live && bar_arrived == live) release_barrier();
}
void worker_main() {
    for (;;) {
        while (next_un < order.size()) {
            if (have_ready() && (order_mode != 2 || (rng() & 1))) break;
            Fib *f = &th[order[next_un++]];
            f->st = RUNNING; f->ctx = cur_ctx; cur = f;
            (*body)();
            thread_done((Fib *)cur);
        }
        idle.push_back(cur_ctx);
        if (have_ready()) { int i = pop_ready(); th[i].st = RUNNING; cur = &th[i]; jump(th[i].ctx); }
        else if (next_un < order.size()) { idle.pop_back(); continue; }
        else jump(&main_ctx);
    }
}
[[noreturn]] void die_deadlock() {
    fprintf(stderr, "cuda-emu: kernel %s, block (%u,%u,%u): deadlock (divergent barrier or warp mask)\n", kname,
            cur_block.x, cur_block.y, cur_block.z);
    int n = 0;
    for (auto &f : th) if (f.st == AT_BAR || f.st == AT_WARP) {
        fprintf(stderr, "  thread %d waits at %s:%d (%s, mask %08x)\n", f.lin, f.file, f.line,
                f.st == AT_BAR ? "__syncthreads" : "warp op", f.mask);
        if (++n == 8) break;
    }
    abort();
}
}  // namespace

Stats &stats() { return stats_; }

void syncthreads(const char *file, int line) { syncthreads_red(0, -1, file, line); }
int syncthreads_red(int p, int kind, const char *file, int line) {
    Fib *f = (Fib *)cur;
    ++stats_.barriers;
    if (bar_arrived == 0) { bar_file = file; bar_line = line; }
    else if (bar_line != line || (bar_file != file && strcmp(bar_file, file))) {
        fprintf(stderr, "cuda-emu: kernel %s: threads of one block meet at different barriers: %s:%d and %s:%d\n",
                kname, bar_file, bar_line, file, line);
        abort();
    }
    bar_pred_cnt += p; bar_pred_and &= p; bar_pred_or |= p;
    f->file = file; f->line = line;
    if (++bar_arrived == live) release_barrier();
    else { f->st = AT_BAR; yield_away(); cur = f; }
    return kind < 0 ? 0 : bar_res[kind];
}
unsigned activemask() {
    Fib *f = (Fib *)cur; int w = f->lin & ~31; unsigned m = 0;
    for (int i = w; i < w + 32 && i < (int)th.size(); i++) if (th[i].st != DONE) m |= 1u << (i - w);
    return m;
}
uint64_t warp_op(WarpOp op, unsigned mask, uint64_t val, int arg, int width, bool sgn, const char *file, int line) {
    Fib *f = (Fib *)cur;
    int w0 = f->lin & ~31, lane = f->lin & 31;
    ++stats_.warp_ops;
    int lanes = std::min(32, (int)th.size() - w0);
    unsigned real = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;
    mask &= real;                              /* lanes that do not exist in a partial last warp */
    if (!(mask >> lane & 1)) { fprintf(stderr, "cuda-emu: %s:%d: lane %d not in its own mask\n", file, line, lane); abort(); }
    f->op = op; f->mask = mask; f->val = val; f->arg = arg; f->width = width; f->sgn = sgn; f->file = file; f->line = line;
    f->st = AT_WARP;
    Fib *W = &th[w0];
    Warp &ws = wst[f->lin >> 5];
    ws.arrived |= 1u << lane;
    if (mask & ws.done) { fprintf(stderr, "cuda-emu: %s:%d: mask %08x names lane %d, which has exited\n", file, line, mask, __builtin_ctz(mask & ws.done)); abort(); }
    bool all = (mask & ~ws.arrived) == 0;
    if (all) for (unsigned m = mask; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        if (W[l].mask != mask || W[l].op != op || W[l].line != line) {
            fprintf(stderr, "cuda-emu: kernel %s: lanes of one mask meet at different warp operations: %s:%d and %s:%d\n",
                    kname, file, line, W[l].file, W[l].line); abort();
        }
    }
    if (!all) { yield_away(); cur = f; return f->res; }
    /* last lane to arrive computes for all */
    ws.arrived &= ~mask;
    uint64_t red = 0; bool first = true;
    if (op >= W_ADD) for (unsigned m = mask; m; m &= m - 1) {
        int l = __builtin_ctz(m); Fib &x = W[l];
        if (op <= W_ALL) {
            uint64_t v = x.val;
            if (op == W_BALLOT) { if (v) red |= 1ull << l; }
            else if (op == W_ANY) red |= v;
            else if (first) red = v;
            else switch (op) {
                case W_ADD: red += v; break;
                case W_MIN: red = sgn ? (uint64_t)std::min((int64_t)red, (int64_t)v) : std::min(red, v); break;
                case W_MAX: red = sgn ? (uint64_t)std::max((int64_t)red, (int64_t)v) : std::max(red, v); break;
                case W_AND: case W_ALL: red &= v; break;
                case W_OR: red |= v; break;
                case W_BXOR: red ^= v; break;
                default: break;
            }
            first = false;
        }
    }
    for (unsigned m = mask; m; m &= m - 1) {
        int l = __builtin_ctz(m); Fib &x = W[l];
        int seg = l & ~(x.width - 1), src = l;
        switch (op) {
            case W_IDX:  src = seg | (x.arg & (x.width - 1)); break;
            case W_XOR:  src = l ^ x.arg; if ((src & ~(x.width - 1)) > seg) src = l; break;
            case W_UP:   src = l - x.arg; if (src < seg) src = l; break;
            case W_DOWN: src = l + x.arg; if (src >= seg + x.width) src = l; break;
            case W_MATCH: { unsigned r = 0; for (unsigned k = mask; k; k &= k - 1) { int j = __builtin_ctz(k); if (W[j].val == x.val) r |= 1u << j; } x.res = r; continue; }
            case W_SYNC: continue;
            default: x.res = red; continue;
        }
        if (!(mask >> src & 1)) x.res = 0xFFFFFFFFFFFFFFFFull;   /* undefined on a GPU: NaN here */
        else x.res = W[src].val;
    }
    for (unsigned m = mask; m; m &= m - 1) { int l = __builtin_ctz(m); if (w0 + l != f->lin) make_ready(w0 + l); }
    f->st = RUNNING;
    return f->res;
}

void run_kernel(const std::function<void()> &b, dim3 grid, dim3 block, size_t smem, const char *name, char *sh_lo, char *sh_hi) {
    if (order_mode < 0) {
        const char *e = getenv("OCC_EMU_ORDER");
        order_mode = !e ? 0 : !strcmp(e, "reverse") ? 1 : !strncmp(e, "random", 6) ? 2 : 0;
        if (e && !strncmp(e, "random:", 7)) rng.seed(atoi(e + 7));
    }
    size_t n = (size_t)block.x * block.y * block.z, nb = (size_t)grid.x * grid.y * grid.z;
    body = &b; kname = name; cfg.grid = grid; cfg.block = block;
    dyn_smem = smem ? (unsigned char *)aligned_alloc(16, (smem + 15) / 16 * 16) : nullptr;
#if ASAN
    if (smem % 16) __asan_poison_memory_region(dyn_smem + smem, 16 - smem % 16);
#endif
    th.resize(n); order.resize(n); wst.resize((n + 31) / 32);
    std::vector<size_t> border;
    if (order_mode) { border.resize(nb); for (size_t i = 0; i < nb; i++) border[i] = order_mode == 1 ? nb - 1 - i : i;
        if (order_mode == 2) std::shuffle(border.begin(), border.end(), rng); }
    for (size_t i = 0; i < n; i++) {
        Fib &f = th[i];
        f.lin = (int)i;
        f.tid = make_uint3(i % block.x, i / block.x % block.y, i / ((size_t)block.x * block.y));
    }
    for (size_t bi = 0; bi < nb; bi++) {
        size_t k = order_mode ? border[bi] : bi;
        cur_block = make_uint3(k % grid.x, k / grid.x % grid.y, k / ((size_t)grid.x * grid.y));
        if (smem) memset(dyn_smem, 0xFF, smem);      /* a block starts with garbage (NaN) in shared memory */
        if (sh_lo) memset(sh_lo, 0xFF, sh_hi - sh_lo);
        for (size_t i = 0; i < n; i++) { th[i].st = UNSTARTED; order[i] = order_mode == 1 ? (int)(n - 1 - i) : (int)i; }
        if (order_mode == 2) std::shuffle(order.begin(), order.end(), rng);
        std::fill(wst.begin(), wst.end(), Warp{0, 0});
        ready.clear(); ready_head = 0; next_un = 0; live = (int)n;
        bar_arrived = 0; bar_pred_cnt = 0; bar_pred_and = 1; bar_pred_or = 0;
        stats_.threads += n;
        while (live) {
            if (next_un < order.size()) jump(get_worker());
            else if (have_ready()) { int i = pop_ready(); th[i].st = RUNNING; cur = &th[i]; jump(th[i].ctx); }
            if (live && next_un >= order.size() && !have_ready()) die_deadlock();
        }
    }
    stats_.launches++;
    cur = nullptr;
#if ASAN
    if (smem % 16) __asan_unpoison_memory_region(dyn_smem + smem, 16 - smem % 16);
#endif
    free(dyn_smem); dyn_smem = nullptr;
}
}  // namespace occ_emu
