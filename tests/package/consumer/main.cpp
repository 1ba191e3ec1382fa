#include "../sample.hpp"

#include <cstdio>

Sample other();

int main() {
  const Sample a = sample(), b = other();
  std::printf("%s %08x\n%s %08x\n", a.isa, a.sum, b.isa, b.sum);
  return a.sum == b.sum ? 0 : 1;
}
