// Comparators of the tests: equality of bits, and two distances from a reference. A NaN equals a NaN of any payload.
#pragma once
#include <bit>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <gdn/bf16.hpp>
#include <gdn/error.hpp>
#include <iomanip>
#include <limits>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace gdn::test {

inline std::uint32_t bits_of(f32 x) { return std::bit_cast<std::uint32_t>(x); }
inline std::uint32_t bits_of(bf16 x) { return x.bits; }
inline std::uint32_t bits_of(std::int32_t x) { return static_cast<std::uint32_t>(x); }

inline bool is_nan(f32 x) { return std::isnan(x); }
inline bool is_nan(bf16 x) { return (x.bits & 0x7fffu) > 0x7f80u; }
inline bool is_nan(std::int32_t) { return false; }

template <class T>
bool same_bits(T a, T b) {
  return bits_of(a) == bits_of(b) || (is_nan(a) && is_nan(b));
}

// How many values of the type lie between a and b; -0 and +0 are one apart.
template <class T>
std::int64_t ulp_distance(T a, T b) {
  const auto place = [](T x) -> std::int64_t {
    constexpr std::int64_t sign = std::is_same_v<T, bf16> ? 0x8000 : 0x80000000;
    const std::int64_t u = bits_of(x);
    if constexpr (std::is_integral_v<T>) return x;
    return u < sign ? u : sign - 1 - u;
  };
  const auto distance = place(a) - place(b);
  return distance < 0 ? -distance : distance;
}

// The index of the first element whose bits differ.
template <class T>
std::optional<std::size_t> first_difference(std::span<const T> a, std::span<const T> b) {
  require(a.size() == b.size(), "compared arrays have ", a.size(), " and ", b.size(), " elements");
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) return i;
  }
  return std::nullopt;
}

template <class T>
std::size_t count_differing(std::span<const T> a, std::span<const T> b) {
  require(a.size() == b.size(), "compared arrays have ", a.size(), " and ", b.size(), " elements");
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += !same_bits(a[i], b[i]);
  return count;
}

inline std::size_t differing(std::span<const f32> a, std::span<const f32> b) { return count_differing(a, b); }
inline std::size_t differing(std::span<const bf16> a, std::span<const bf16> b) { return count_differing(a, b); }
inline std::size_t differing(std::span<const std::int32_t> a, std::span<const std::int32_t> b) { return count_differing(a, b); }

// "" for equal arrays, else the first differing element and how many differ: the text of one assertion per array.
template <class T>
std::string report_difference(std::span<const T> a, std::span<const T> b) {
  const auto at = first_difference(a, b);
  if (!at) return "";
  std::ostringstream out;
  const auto show = [&](T x) {
    if constexpr (std::is_integral_v<T>) {
      out << x;
    } else {
      out << std::setprecision(9) << to_f32(x);
    }
    out << " (0x" << std::hex << std::setfill('0') << std::setw(std::is_same_v<T, bf16> ? 4 : 8) << bits_of(x) << std::dec << ")";
  };
  out << count_differing(a, b) << " of " << a.size() << " elements differ, first at " << *at << ": ";
  show(a[*at]);
  out << " against ";
  show(b[*at]);
  if (is_nan(a[*at]) || is_nan(b[*at])) {
    out << ", NaN";
  } else {
    out << ", " << ulp_distance(a[*at], b[*at]) << " ULP";
  }
  return out.str();
}

inline std::string difference(std::span<const f32> a, std::span<const f32> b) { return report_difference(a, b); }
inline std::string difference(std::span<const bf16> a, std::span<const bf16> b) { return report_difference(a, b); }
inline std::string difference(std::span<const std::int32_t> a, std::span<const std::int32_t> b) { return report_difference(a, b); }

namespace detail {

inline double wide(double x) { return x; }
inline double wide(f32 x) { return x; }
inline double wide(bf16 x) { return to_f32(x); }

// Equal infinities are no error; any other non-finite difference is an infinite one, so that no NaN hides behind a maximum.
inline double absolute_error(double a, double reference) {
  if (a == reference || (std::isnan(a) && std::isnan(reference))) return 0;
  const double error = std::abs(a - reference);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

inline double ratio(double error, double scale) { return error == 0 ? 0 : error / scale; }

}  // namespace detail

// Largest |a - reference|.
template <class A, class B>
double max_absolute_error(const A& a, const B& reference) {
  require(std::size(a) == std::size(reference), "compared arrays have ", std::size(a), " and ", std::size(reference), " elements");
  double worst = 0;
  for (std::size_t i = 0; i < std::size(a); ++i) {
    worst = std::max(worst, detail::absolute_error(detail::wide(a[i]), detail::wide(reference[i])));
  }
  return worst;
}

// Largest |a - reference| over largest |reference|.
template <class A, class B>
double max_error(const A& a, const B& reference) {
  double scale = 0;
  for (const auto& x : reference) {
    const double size = std::abs(detail::wide(x));
    if (std::isfinite(size)) scale = std::max(scale, size);
  }
  return detail::ratio(max_absolute_error(a, reference), scale);
}

// |a - reference| over |reference|, Euclidean norms.
template <class A, class B>
double relative_l2(const A& a, const B& reference) {
  require(std::size(a) == std::size(reference), "compared arrays have ", std::size(a), " and ", std::size(reference), " elements");
  double errors = 0, sizes = 0;
  for (std::size_t i = 0; i < std::size(a); ++i) {
    errors = std::hypot(errors, detail::absolute_error(detail::wide(a[i]), detail::wide(reference[i])));
    const double size = detail::wide(reference[i]);
    if (std::isfinite(size)) sizes = std::hypot(sizes, size);
  }
  return detail::ratio(errors, sizes);
}

}  // namespace gdn::test
