// What rows that are cut over ranks ask of the ranks' communication, and what is made of it.
//
// A communicator has a rank and a size, and one operation, which all ranks call in the same order:
//   exchange(to, out, from, in, bytes)   sends `bytes` from `out` to rank `to` while as many come from rank `from` to `in`; -1: nobody
// A rank that fails has to end the others, with an error: none may be left waiting.
#pragma once
#include <concepts>
#include <cstddef>
#include <span>
#include <vector>

namespace gdn::context {

template <class C> concept Communicator = requires(C& c, int rank, const void* out, void* in, std::size_t bytes) {
  { c.rank() } -> std::same_as<int>;
  { c.size() } -> std::same_as<int>;
  c.exchange(rank, out, rank, in, bytes);
};

namespace detail {
// The rank at this distance, or -1 behind the ends.
template <Communicator C> int neighbour(C& c, int distance) {
  const int r = c.rank() + distance;
  return r < 0 || r >= c.size() ? -1 : r;
}
}  // namespace detail

// `x` of rank `root`, on all ranks: from neighbour to neighbour, around.
template <class T, Communicator C> void broadcast(C& c, int root, std::span<T> x) {
  const int after = (c.rank() - root + c.size()) % c.size(), next = (c.rank() + 1) % c.size(), last = (c.rank() + c.size() - 1) % c.size();
  if (after > 0) c.exchange(-1, nullptr, last, x.data(), x.size_bytes());
  if (after + 1 < c.size()) c.exchange(next, x.data(), -1, nullptr, x.size_bytes());
}
// Every rank's `x`, in the order of ranks.
template <class T, Communicator C> std::vector<T> gathered(C& c, std::span<const T> x) {
  std::vector<T> all(x.size() * static_cast<std::size_t>(c.size()));
  for (int r = 0; r < c.size(); r++) {
    const std::span<T> part = std::span(all).subspan(static_cast<std::size_t>(r) * x.size(), x.size());
    if (r == c.rank()) std::copy(x.begin(), x.end(), part.begin());
    broadcast(c, r, part);
  }
  return all;
}
// The sum over ranks on all of them, ((x_0 + x_1) + x_2) + ..: the same bits with every communicator.
template <Communicator C> void sum(C& c, std::span<float> x) {
  std::vector<float> before(x.size());
  const int earlier = detail::neighbour(c, -1), later = detail::neighbour(c, 1);
  if (earlier >= 0) {
    c.exchange(-1, nullptr, earlier, before.data(), x.size_bytes());
    for (std::size_t i = 0; i < x.size(); i++) x[i] = before[i] + x[i];
  }
  if (later >= 0) c.exchange(later, x.data(), -1, nullptr, x.size_bytes());
  broadcast(c, c.size() - 1, x);
}

}  // namespace gdn::context
