// A small pool of threads that survives fork.
//
// Workers are created when first asked for and sleep between jobs. The calling thread always works
// too, so a job finishes even if no worker could be created or all are busy with other callers.
// After a fork the child starts with an empty pool (the parent's workers do not exist there).
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>

namespace akmv {

/// Called from the calling thread after each of its tasks; true means: stop as soon as possible.
/// How often it really looks is its own affair: a product may be thousands of short loops, none of
/// which lasts as long as the time between two looks.
using Poll = std::function<bool()>;

constexpr auto kPollInterval = std::chrono::milliseconds(20);

/// What a loop that was asked to stop ends with. Thrown, so that no caller can overlook it.
struct Interrupted {};

/// Runs body(task, slot) for every task in [0, n_tasks) on up to `n_threads` threads. `slot` is in
/// [0, n_threads) and is never used by two threads at once. The first exception of the body stops
/// the rest and is thrown again here; Interrupted is thrown if `poll` asked to stop, be it after
/// the last task.
void parallel_for(std::size_t n_tasks, int n_threads,
                  const std::function<void(std::size_t task, int slot)> &body, const Poll &poll);

/// The number of threads used where a caller does not say; 0 until it is set.
int default_thread_limit();
void set_default_thread_limit(int n);

}  // namespace akmv
