#include "threads.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

namespace akmv {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPollInterval = std::chrono::milliseconds(20);

struct Job {
  const std::function<void(std::size_t, int)> *body;
  std::size_t n_tasks;
  int n_helpers;                      // workers still wanted; guarded by the pool's mutex
  int next_slot = 1;                  // slot 0 is the caller's; guarded by the pool's mutex
  int active = 0;                     // workers inside; guarded by the pool's mutex
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stop{false};
  std::exception_ptr error;           // the first one thrown; guarded by the pool's mutex
  std::condition_variable left;       // a worker left the job
};

class Pool {
 public:
  /// Leaked on purpose: workers may sleep on its members while the process ends.
  static Pool &instance() {
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { current_ = new Pool; }); });
    return *current_;
  }

  bool run(Job &job, const Poll &poll) {
    const bool shared = job.n_helpers > 0;  // asked before workers change it
    if (shared) offer(job);
    work(job, 0, &poll);
    if (shared) withdraw(job, poll);
    if (job.error) std::rethrow_exception(job.error);
    return !job.stop.load();
  }

 private:
  void offer(Job &job) {
    std::lock_guard<std::mutex> lock(mutex_);
    try {
      while (n_workers_ < job.n_helpers) {
        std::thread([this] { serve(); }).detach();
        ++n_workers_;
      }
    } catch (const std::system_error &) {
      // No more threads to be had: the caller and the workers there are do the job.
    }
    jobs_.push_back(&job);
    wake_.notify_all();
  }

  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return !jobs_.empty(); });
      Job &job = *jobs_.front();
      const int slot = job.next_slot++;
      ++job.active;
      if (--job.n_helpers == 0) jobs_.pop_front();
      lock.unlock();
      work(job, slot, nullptr);
      lock.lock();
      --job.active;
      job.left.notify_all();  // under the lock: the caller destroys the job once it sees active == 0
    }
  }

  void work(Job &job, int slot, const Poll *poll) {
    auto last = Clock::now();
    while (!job.stop.load(std::memory_order_relaxed)) {
      const std::size_t task = job.next.fetch_add(1);
      if (task >= job.n_tasks) return;
      try {
        (*job.body)(task, slot);
      } catch (...) {
        fail(job, std::current_exception());
        return;
      }
      if (poll && Clock::now() - last > kPollInterval) {
        if ((*poll)()) job.stop.store(true);
        last = Clock::now();
      }
    }
  }

  void fail(Job &job, std::exception_ptr error) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!job.error) job.error = error;
    job.stop.store(true);
  }

  /// Takes the job off the queue and waits until every worker has left it.
  void withdraw(Job &job, const Poll &poll) {
    std::unique_lock<std::mutex> lock(mutex_);
    jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), &job), jobs_.end());
    while (job.active > 0) {
      if (job.left.wait_for(lock, kPollInterval) == std::cv_status::no_timeout) continue;
      lock.unlock();
      if (!job.stop.load() && poll()) job.stop.store(true);
      lock.lock();
    }
  }

  static Pool *current_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job *> jobs_;
  int n_workers_ = 0;
};

Pool *Pool::current_ = new Pool;
std::atomic<int> default_limit{0};

}  // namespace

bool parallel_for(std::size_t n_tasks, int n_threads,
                  const std::function<void(std::size_t, int)> &body, const Poll &poll) {
  const std::size_t useful = std::max<std::size_t>(1, std::min<std::size_t>(n_threads, n_tasks));
  Job job;
  job.body = &body;
  job.n_tasks = n_tasks;
  job.n_helpers = int(useful) - 1;
  return Pool::instance().run(job, poll);
}

int default_thread_limit() { return default_limit.load(); }
void set_default_thread_limit(int n) { default_limit.store(n); }

}  // namespace akmv
