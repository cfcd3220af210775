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

/// One of the pieces that [0, n) is cut into, and the slot it runs in.
struct Piece {
  std::size_t number, first, last;
  int slot;
};

inline std::size_t n_pieces(std::size_t n, std::size_t per_piece) {
  return (n + per_piece - 1) / per_piece;
}

/// Runs body(piece) for [0, n) in pieces of `per_piece`, as parallel_for does for tasks.
template <class Body>
void parallel_pieces(std::size_t n, std::size_t per_piece, int n_threads, const Body &body,
                     const Poll &poll) {
  parallel_for(
      n_pieces(n, per_piece), n_threads,
      [&](std::size_t task, int slot) {
        const std::size_t first = task * per_piece;
        body(Piece{task, first, first + per_piece < n ? first + per_piece : n, slot});
      },
      poll);
}

/// The number of threads used where a caller does not say; 0 until it is set.
int default_thread_limit();
void set_default_thread_limit(int n);

}  // namespace akmv
