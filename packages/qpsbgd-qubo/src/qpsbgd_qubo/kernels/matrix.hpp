// A matrix that belongs to someone else.
#pragma once

#include <cstdint>

namespace qpsbgd {

// Square or (rows, columns), one row after the other.
template <class T>
struct Matrix {
  T* data;
  std::int64_t rows, columns;
  T* operator[](std::int64_t row) const { return data + row * columns; }
};

}  // namespace qpsbgd
