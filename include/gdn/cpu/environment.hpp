// The floating-point environment of every kernel: round to nearest even, subnormal results and arguments are zeros.
#pragma once
#include <cstdint>
#include <gdn/cpu/isa.hpp>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace gdn {
inline namespace GDN_ISA {
namespace cpu {

// Sets the environment for its lifetime in this thread and restores what was there before, also when an exception passes.
class FlushGuard {
 public:
  FlushGuard() : saved_(control()) { set_control((saved_ & ~rounding) | flush); }
  ~FlushGuard() { set_control(saved_); }
  FlushGuard(const FlushGuard&) = delete;
  FlushGuard& operator=(const FlushGuard&) = delete;

  // Whether the calling thread computes in this environment now.
  static bool active() { return (control() & (flush | rounding)) == flush; }

 private:
#if defined(__SSE2__)
  using Control = unsigned;
  static constexpr Control flush = 0x8040, rounding = 0x6000;  // MXCSR: FTZ and DAZ; RC
  static Control control() { return _mm_getcsr(); }
  // The clobber keeps loads and stores, and so the arithmetic between them, on their side.
  static void set_control(Control c) {
    asm volatile("" ::: "memory");
    _mm_setcsr(c);
    asm volatile("" ::: "memory");
  }
#else
  using Control = std::uint64_t;
  static constexpr Control flush = 1u << 24, rounding = 3u << 22;  // FPCR: FZ; RMode
  static Control control() {
    Control c;
    asm volatile("mrs %0, fpcr" : "=r"(c));
    return c;
  }
  static void set_control(Control c) { asm volatile("msr fpcr, %0" ::"r"(c) : "memory"); }
#endif
  Control saved_;
};

}  // namespace cpu
}  // namespace GDN_ISA
}  // namespace gdn
