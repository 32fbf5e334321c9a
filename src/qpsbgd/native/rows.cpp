// The rows of the binary map in one pass on one thread; `qubo/binary_map.py` has the formulas in plain torch.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels.hpp"
#include "vectors.hpp"

namespace qpsbgd {

QPSBGD_VERSIONS void scale_rows(Matrix<const float> inputs, Matrix<const float> grads, double gain, double scale,
                                bool literal, Matrix<float> directions, Matrix<float> targets, double* found) {
  const std::int64_t rows = inputs.rows, n = inputs.columns, m = grads.columns;
  std::vector<double> norms(rows), reach(rows);
  double logs = 0, health = 0;
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    const bool counts = literal || std::any_of(grads[i], grads[i] + m, [](float v) { return v != 0; });
    // Fixed parts, so that the compiler may add them side by side.
    double squares[4] = {}, sizes[4] = {};
    for (std::int64_t k = 0; k < n; ++k) {
      const double x = inputs[i][k];
      squares[k & 3] += x * x;
      sizes[k & 3] += std::abs(x);
    }
    const double square = (squares[0] + squares[1]) + (squares[2] + squares[3]);
    health += square;
    if (!counts || !(square > 0)) continue;
    norms[i] = std::sqrt(square);
    reach[i] = (sizes[0] + sizes[1]) + (sizes[2] + sizes[3]);
    logs += std::log2(norms[i]);
    ++count;
  }
  // Rounding noise: eps times the geometric mean of the rows.
  const double floor = std::numeric_limits<float>::epsilon() * std::exp2(logs / std::max<std::int64_t>(count, 1));
  std::int64_t used = 0;
  double trace = 0, reached = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    double factor = 0;
    if (norms[i] > floor) {
      factor = 1 / (norms[i] * norms[i] * gain);
      ++used;
      trace += factor / gain;
      reached += reach[i] * factor;
    } else {
      norms[i] = 0;
    }
    for (std::int64_t k = 0; k < n; ++k) directions[i][k] = static_cast<float>(inputs[i][k] * factor);
  }
  const double share = std::max<std::int64_t>(used, 1);
  std::vector<double> factors(m, 1.0), sums(m), largest(m);
  if (!literal) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < m; ++j) largest[j] = std::max(largest[j], std::abs(double{grads[i][j]}));
    }
    for (std::int64_t j = 0; j < m; ++j) factors[j] = largest[j] > 0 ? 1 / largest[j] : 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      if (!(norms[i] > 0)) continue;
      for (std::int64_t j = 0; j < m; ++j) {
        const double v = grads[i][j] * factors[j];
        sums[j] += v * v;
      }
    }
    for (std::int64_t j = 0; j < m; ++j) {
      const double rms = std::sqrt(sums[j] / share);
      factors[j] = rms > 0 ? scale * (reached / share) / rms / largest[j] : 0;
    }
  }
  std::fill(found, found + m + 1, 0.0);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < m; ++j) {
      const double v = grads[i][j] * factors[j];
      found[j] += v * v;
      targets[i][j] = static_cast<float>(-2 * v);
    }
  }
  const bool vanishes = used > 0 && trace < std::numeric_limits<float>::min();
  found[m] = vanishes ? std::numeric_limits<double>::infinity() : health + trace;
}

}  // namespace qpsbgd
