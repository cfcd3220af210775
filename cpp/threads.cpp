#include "threads.hpp"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

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
#include <vector>

namespace akmv {
namespace {

using Clock = std::chrono::steady_clock;
// A call is a chain of jobs. To be woken for the next takes a worker 40 microseconds, so it looks
// for one for a while before it sleeps; the caller does so for the end of a job.
constexpr auto kLookFor = std::chrono::microseconds(100);

/// True as soon as `done` is, false if it is not for a while.
template <class Done>
bool becomes(const Done &done) {
  const auto start = Clock::now();
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
#if defined(__x86_64__) || defined(__i386__)
      __builtin_ia32_pause();
#endif
    }
  } while (Clock::now() - start < kLookFor);
  return false;
}

/// Where a sleeping worker will be woken. After a pause Linux may wake it on the core of the caller
/// who wakes it, and let the two take turns for some milliseconds: jobs took as long as with one
/// thread. So that core is forbidden while it sleeps, and allowed again when it is up.
class Berth {
 public:
#if defined(__linux__)
  Berth() : thread_(pid_t(syscall(SYS_gettid))) {}
  static int here() { return sched_getcpu(); }
  void keep_off(int core) {
    if (core < 0) return;
    if (!kept_off_ && sched_getaffinity(thread_, sizeof allowed_, &allowed_) != 0) return;
    cpu_set_t others = allowed_;
    if (core < CPU_SETSIZE) CPU_CLR(core, &others);
    kept_off_ = CPU_COUNT(&others) > 0 && sched_setaffinity(thread_, sizeof others, &others) == 0;
  }
  void wake_up() {
    if (kept_off_) sched_setaffinity(thread_, sizeof allowed_, &allowed_);
    kept_off_ = false;
  }

 private:
  const pid_t thread_;
  bool kept_off_ = false;
  cpu_set_t allowed_;
#else
  static int here() { return -1; }
  void keep_off(int) {}
  void wake_up() {}
#endif
};

struct Job {
  const std::function<void(std::size_t, int)> *body;
  std::size_t n_tasks;
  int n_helpers;               // workers still wanted; guarded by the pool's mutex
  int next_slot = 1;           // slot 0 is the caller's; guarded by the pool's mutex
  std::atomic<int> active{0};  // workers inside; changed under the pool's mutex
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stop{false};
  std::exception_ptr error;      // the first one thrown; guarded by the pool's mutex
  std::condition_variable left;  // a worker left the job
};

class Pool {
 public:
  /// Leaked on purpose: workers may sleep on its members while the process ends.
  static Pool &instance() {
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { current_ = new Pool; }); });
    return *current_;
  }

  void run(Job &job, const Poll &poll) {
    const bool shared = job.n_helpers > 0;  // asked before workers change it
    if (shared) offer(job);
    work(job, 0, &poll);
    if (shared) withdraw(job, poll);
    if (job.error) std::rethrow_exception(job.error);
    if (job.stop.load()) throw Interrupted();
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
    ++n_jobs_;
    if (asleep_.empty()) return;
    const int core = Berth::here();
    for (Berth *berth : asleep_) berth->keep_off(core);
    wake_.notify_all();
  }

  void serve() {
    Berth berth;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      while (jobs_.empty()) {
        lock.unlock();
        const bool found = becomes([this] { return n_jobs_.load() > 0; });
        lock.lock();
        if (!found) sleep(berth, lock);
      }
      Job &job = *jobs_.front();
      const int slot = job.next_slot++;
      ++job.active;
      if (--job.n_helpers == 0) {
        jobs_.pop_front();
        --n_jobs_;
      }
      lock.unlock();
      work(job, slot, nullptr);
      lock.lock();
      job.left
          .notify_all();  // before it leaves: the caller destroys the job once it sees active == 0
      --job.active;
    }
  }

  void sleep(Berth &berth, std::unique_lock<std::mutex> &lock) {
    if (!jobs_.empty()) return;
    asleep_.push_back(&berth);
    wake_.wait(lock);  // whatever for: the core is allowed again in any case
    asleep_.erase(std::find(asleep_.begin(), asleep_.end(), &berth));
    berth.wake_up();
  }

  void work(Job &job, int slot, const Poll *poll) {
    while (!job.stop.load(std::memory_order_relaxed)) {
      const std::size_t task = job.next.fetch_add(1);
      if (task >= job.n_tasks) return;
      try {
        (*job.body)(task, slot);
      } catch (...) {
        fail(job, std::current_exception());
        return;
      }
      if (poll && (*poll)()) job.stop.store(true);
    }
  }

  void fail(Job &job, const std::exception_ptr &error) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!job.error) job.error = error;
    job.stop.store(true);
  }

  /// Takes the job off the queue and waits until every worker has left it.
  void withdraw(Job &job, const Poll &poll) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto place = std::find(jobs_.begin(), jobs_.end(), &job);
    if (place != jobs_.end()) {
      jobs_.erase(place);
      --n_jobs_;
    }
    if (job.active > 0) {
      lock.unlock();
      becomes([&] { return job.active.load() == 0; });
      lock.lock();
    }
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
  std::atomic<int> n_jobs_{0};  // as many; to be looked at without the mutex
  std::vector<Berth *> asleep_;
  int n_workers_ = 0;
};

Pool *Pool::current_ = new Pool;
std::atomic<int> default_limit{0};

}  // namespace

void parallel_for(std::size_t n_tasks, int n_threads,
                  const std::function<void(std::size_t, int)> &body, const Poll &poll) {
  const std::size_t useful = std::max<std::size_t>(1, std::min<std::size_t>(n_threads, n_tasks));
  Job job;
  job.body = &body;
  job.n_tasks = n_tasks;
  job.n_helpers = int(useful) - 1;
  Pool::instance().run(job, poll);
}

int default_thread_limit() { return default_limit.load(); }
void set_default_thread_limit(int n) { default_limit.store(n); }

}  // namespace akmv
