// What every bad input ends in: one exception type, whose text says what was wrong, what was expected, and both values.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace gdn {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The parts of a sentence as one string; numbers are written as they are.
template <class... Parts>
[[gnu::noinline]] std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throws Error with the sentence made of `parts` unless `condition` holds.
template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) throw Error(text(parts...));
}

}  // namespace gdn
