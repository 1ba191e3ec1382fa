// Independent items over threads that are kept alive. Items share nothing, so the number of threads cannot change a bit.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <gdn/cpu/environment.hpp>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace gdn {
inline namespace GDN_ISA {
namespace cpu {

namespace detail {

// Threads that wait for a job, run its items, and wait again. One job at a time; grows to the largest number of threads asked for.
class Pool {
 public:
  using Body = void (*)(void* closure, long item);

  static Pool& instance() {
    static Pool pool;
    return pool;
  }
  // Whether the calling thread is inside a job: a nested loop runs in place.
  static bool& inside() {
    static thread_local bool value = false;
    return value;
  }

  // False, and nothing done, while another thread's job runs: waiting for it could be waiting for oneself.
  bool run(long items, int threads, Body body, void* closure) {
    const std::unique_lock one_job(jobs_, std::try_to_lock);
    if (!one_job) return false;
    {
      const std::lock_guard lock(mutex_);
      while (static_cast<int>(workers_.size()) < threads - 1) {
        const auto index = static_cast<int>(workers_.size());
        workers_.emplace_back([this, index, seen = generation_] { serve(index, seen); });
      }
      body_ = body;
      closure_ = closure;
      items_ = items;
      next_ = 0;
      error_ = nullptr;
      helpers_ = threads - 1;
      busy_ = helpers_;
      ++generation_;
    }
    start_.notify_all();
    work();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    return true;
  }

  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    start_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

 private:
  void serve(int index, std::uint64_t seen) {
    std::unique_lock lock(mutex_);
    for (;;) {
      start_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      if (index >= helpers_) continue;
      lock.unlock();
      work();
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  // After an exception the items that nobody has begun are dropped.
  void work() {
    inside() = true;
    try {
      const FlushGuard guard;
      for (long i; (i = next_.fetch_add(1)) < items_;) body_(closure_, i);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      next_ = items_;
    }
    inside() = false;
  }

  std::mutex jobs_, mutex_;
  std::condition_variable start_, done_;
  std::vector<std::thread> workers_;
  Body body_ = nullptr;
  void* closure_ = nullptr;
  long items_ = 0;
  std::atomic<long> next_ = 0;
  std::exception_ptr error_;
  int helpers_ = 0, busy_ = 0;
  std::uint64_t generation_ = 0;
  bool stop_ = false;
};

}  // namespace detail

// body(i) for i in [0, items), on up to `threads` threads (the caller is one of them), each inside a FlushGuard. The first exception is
// thrown here, after all threads have stopped. Inside another parallel_for, or beside one, it runs in the calling thread.
template <class Body>
void parallel_for(long items, int threads, Body&& body) {
  if (threads > items) threads = static_cast<int>(items);
  if (threads > 1 && !detail::Pool::inside()) {
    auto call = [](void* closure, long i) { (*static_cast<std::remove_reference_t<Body>*>(closure))(i); };
    if (detail::Pool::instance().run(items, threads, call, const_cast<void*>(static_cast<const void*>(&body)))) return;
  }
  const FlushGuard guard;
  for (long i = 0; i < items; ++i) body(i);
}

}  // namespace cpu
}  // namespace GDN_ISA
}  // namespace gdn
