// Merging: the union of known pairs and new ones, by query.
#pragma once

#include "../threads.hpp"
#include "../types.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace akmv {

/// Union of known pairs and new ones (any order, repeats allowed), by query, columns ascending.
struct Union {
  std::vector<std::int64_t> indptr;
  std::vector<std::int32_t> cols;
  std::vector<float> values;
};

/// New pairs, in any order and possibly repeated.
struct ListedPairs {
  const std::int32_t *rows, *cols;
  const float *values;
  std::size_t n;
};

constexpr std::size_t kRowsMerged = 4096;  // in a task

/// New pairs by query: sorted, each once, none that is known.
class FreshPairs {
 public:
  using Entry = std::pair<std::int32_t, float>;

  FreshPairs(std::size_t n_rows, const ListedPairs &listed)
      : start_(n_rows + 1, 0), n_(n_rows, 0), entries_(listed.n) {
    for (std::size_t p = 0; p < listed.n; ++p) ++start_[std::size_t(listed.rows[p]) + 1];
    for (std::size_t i = 0; i < n_rows; ++i) start_[i + 1] += start_[i];
    std::vector<std::int64_t> next(start_.begin(), start_.end() - 1);
    for (std::size_t p = 0; p < listed.n; ++p)
      entries_[std::size_t(next[std::size_t(listed.rows[p])]++)] = {listed.cols[p],
                                                                    listed.values[p]};
  }

  /// Sorts a row, and leaves out what is known or repeated.
  void clean(std::size_t row, const FoundPairs &known) {
    const auto by_col = [](const Entry &a, const Entry &b) { return a.first < b.first; };
    const auto same_col = [](const Entry &a, const Entry &b) { return a.first == b.first; };
    const auto first = entries_.begin() + start_[row], last = entries_.begin() + start_[row + 1];
    std::sort(first, last, by_col);
    const auto end = std::remove_if(first, std::unique(first, last, same_col), [&](const Entry &e) {
      return known.has(std::int32_t(row), e.first);
    });
    n_[row] = end - first;
  }

  std::int64_t count(std::size_t row) const { return n_[row]; }
  const Entry *of(std::size_t row) const { return entries_.data() + start_[row]; }

 private:
  std::vector<std::int64_t> start_, n_;  // where rows begin, and how many are left of each
  std::vector<Entry> entries_;
};

/// One row of the union, both parts of which have ascending columns.
inline void merge_row(std::size_t row, const FoundPairs &known, const FreshPairs &fresh,
                      Union &out) {
  auto a = known.indptr[row];
  const auto a_end = known.indptr[row + 1];
  const FreshPairs::Entry *b = fresh.of(row), *const b_end = b + fresh.count(row);
  for (auto at = out.indptr[row]; at < out.indptr[row + 1]; ++at) {
    const auto to = std::size_t(at);
    if (b == b_end || (a < a_end && known.cols[a] < b->first)) {
      out.cols[to] = known.cols[a];
      out.values[to] = known.values[a++];
    } else {
      out.cols[to] = b->first;
      out.values[to] = (b++)->second;
    }
  }
}

inline void merge_pairs(std::size_t n_rows, const FoundPairs &known, const ListedPairs &listed,
                        int n_threads, const Poll &poll, Union &out) {
  FreshPairs fresh(n_rows, listed);
  parallel_pieces(
      n_rows, kRowsMerged, n_threads,
      [&](const Piece &piece) {
        for (std::size_t i = piece.first; i < piece.last; ++i) fresh.clean(i, known);
      },
      poll);
  out.indptr.assign(n_rows + 1, 0);
  for (std::size_t i = 0; i < n_rows; ++i)
    out.indptr[i + 1] = out.indptr[i] + fresh.count(i) + (known.indptr[i + 1] - known.indptr[i]);
  out.cols.resize(std::size_t(out.indptr[n_rows]));
  out.values.resize(out.cols.size());
  parallel_pieces(
      n_rows, kRowsMerged, n_threads,
      [&](const Piece &piece) {
        for (std::size_t i = piece.first; i < piece.last; ++i) merge_row(i, known, fresh, out);
      },
      poll);
}

}  // namespace akmv
