// Ranks as threads of one process.
#pragma once
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gdn/context/communicator.hpp"
#include "gdn/error.hpp"

namespace gdn::context {

// What a rank throws when it waits for one that has failed.
struct OtherRankFailed : Error {
  using Error::Error;
};

class Threads {
 public:
  int rank() const { return rank_; }
  int size() const { return shared_->size; }
  void exchange(int to, const void* out, int from, void* in, std::size_t bytes) {
    Shared& s = *shared_;
    std::unique_lock lock(s.mutex);
    if (to >= 0) {
      const auto* p = static_cast<const std::byte*>(out);
      s.mail[{rank_, to}].emplace_back(p, p + bytes);
      s.changed.notify_all();
    }
    if (from < 0) return;
    auto& box = s.mail[{from, rank_}];
    s.changed.wait(lock, [&] { return !box.empty() || s.failed >= 0 || s.done[static_cast<std::size_t>(from)]; });
    if (box.empty() && s.failed >= 0) throw OtherRankFailed(text("rank ", rank_, ": rank ", s.failed, " has failed: ", s.why));
    require(!box.empty(), "rank ", rank_, " waits for rank ", from, ", which has ended");
    require(box.front().size() == bytes, "rank ", rank_, " expects ", bytes, " bytes from rank ", from, ", which sent ", box.front().size());
    std::memcpy(in, box.front().data(), bytes);
    box.pop_front();
  }

  // f(communicator) on `ranks` threads. If one throws, the others end where they next wait for somebody, and its error is thrown here.
  template <class F> static void run(int ranks, F f) {
    require(ranks > 0, "context::Threads: ", ranks, " ranks; expected 1 or more");
    Shared shared(ranks);
    auto one = [&](int rank) {
      try {
        Threads c(shared, rank);
        f(c);
      } catch (const std::exception& e) {
        shared.fail(rank, e.what(), std::current_exception());
      } catch (...) {
        shared.fail(rank, "something that is no exception", std::current_exception());
      }
      shared.end(rank);
    };
    std::vector<std::thread> threads;
    for (int rank = 1; rank < ranks; rank++) threads.emplace_back(one, rank);
    one(0);
    for (auto& t : threads) t.join();
    if (shared.error) std::rethrow_exception(shared.error);
  }

 private:
  struct Shared {
    explicit Shared(int ranks) : size(ranks), done(static_cast<std::size_t>(ranks)) {}
    void fail(int rank, std::string what, std::exception_ptr e) {
      const std::lock_guard lock(mutex);
      if (failed >= 0) return;
      failed = rank, why = std::move(what), error = std::move(e);
      changed.notify_all();
    }
    void end(int rank) {
      const std::lock_guard lock(mutex);
      done[static_cast<std::size_t>(rank)] = true;
      changed.notify_all();
    }
    const int size;
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> mail;
    std::vector<char> done;
    int failed = -1;
    std::string why;
    std::exception_ptr error;
  };
  Threads(Shared& s, int rank) : shared_(&s), rank_(rank) {}
  Shared* shared_;
  int rank_;
};

}  // namespace gdn::context
