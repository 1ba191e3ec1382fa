// Each function runs the code of its own translation unit, compiled for another instruction set, and both give the same bits.
#include "../sample.hpp"

#include <cstdio>

Sample narrow();
Sample wide();

int main() {
  const Sample a = sample(), b = narrow(), c = wide();
  std::printf("%s %08x\n%s %08x\n%s %08x\n", a.isa, a.sum, b.isa, b.sum, c.isa, c.sum);
  return a.sum == b.sum && b.sum == c.sum ? 0 : 1;
}
