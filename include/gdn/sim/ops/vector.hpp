// Vectors: moves between shapes, reductions, matmul.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arith.hpp"
#include "common.hpp"

namespace gdn::sim::ops {

inline Execute iota(const Node& n) {
  count_operands(n, 0);
  const Type& t = n.result_types[0];
  n.check(t.is(Kind::vector, Scalar::i32) && t.shape.size() >= 2, "makes i32 vectors of rank 2 or more, not ", t);
  Shape weights(t.shape.size(), 0);
  const auto dims = n.integers("dimensions");
  std::int64_t weight = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    n.check(dims[i] >= 0 && dims[i] < static_cast<std::int64_t>(t.shape.size()), "dimension ", dims[i], " of ", t);
    weights[static_cast<std::size_t>(dims[i])] = weight;
    weight *= t.shape[static_cast<std::size_t>(dims[i])];
  }
  auto v = new_value(t);
  const auto strides = strides_of(t.shape);
  for (std::int64_t i = 0; i < t.size(); i++) {
    std::int64_t sum = 0;
    for (std::size_t d = 0; d < t.shape.size(); d++) sum += i / strides[d] % t.shape[d] * weights[d];
    v.words()[i] = static_cast<std::uint32_t>(sum);
  }
  return constant_value(n, std::move(v));
}

// ---- moves between shapes

inline void same_element(const Node& n) {
  const Type &a = n.operand_types[0], &b = n.result_types[0];
  n.check(a.element == b.element, "the element type changes: ", a, " to ", b);
}

inline Execute broadcast(const Node& n) {
  count_operands(n, 1);
  same_element(n);
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  n.check(to.kind == Kind::vector && is_value(from) && from.shape.size() <= to.shape.size(), "cannot stretch ", from, " to ", to);
  const auto strides = strides_of(from.shape);
  const auto lead = to.shape.size() - from.shape.size();
  Shape steps(to.shape.size(), 0);
  for (std::size_t d = 0; d < from.shape.size(); d++) {
    n.check(from.shape[d] == 1 || from.shape[d] == to.shape[lead + d], "cannot stretch ", from, " to ", to);
    if (from.shape[d] != 1) steps[lead + d] = strides[d];
  }
  return moved(n, make_box(to.shape, strides_of(to.shape), steps), 0);
}

inline Execute shape_cast(const Node& n) {
  count_operands(n, 1);
  same_element(n);
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  n.check(from.kind == Kind::vector && to.kind == Kind::vector && from.size() == to.size(), "sizes differ: ", from, " and ", to);
  return shared(n);
}

inline Execute extract_strided_slice(const Node& n) {
  count_operands(n, 1);
  same_element(n);
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  const auto offsets = n.integers("offsets"), sizes = n.integers("sizes"), steps = n.integers("strides");
  const auto rank = from.shape.size();
  n.check(offsets.size() == rank && sizes.size() == rank && steps.size() == rank && to.shape == sizes,
          "offsets, sizes and strides must fit ", from, " and ", to);
  for (std::size_t d = 0; d < rank; d++) {
    n.check(steps[d] == 1, "stride ", steps[d], " in dim ", d, ": only 1 compiles");
    n.check(offsets[d] >= 0 && sizes[d] >= 1 && offsets[d] + sizes[d] <= from.shape[d], "rows ", offsets[d], "..",
            offsets[d] + sizes[d] - 1, " in dim ", d, " of ", from, " are out of bounds");
  }
  const auto strides = strides_of(from.shape);
  return moved(n, make_box(to.shape, strides_of(to.shape), strides), dot(offsets, strides));
}

inline Execute extract(const Node& n) {
  count_operands(n, 1);
  same_element(n);
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  const auto position = n.integers("static_position");
  n.check(from.kind == Kind::vector && position.size() <= from.shape.size(), "position and ", from, " do not fit");
  const auto strides = strides_of(from.shape);
  std::int64_t base = 0;
  for (std::size_t d = 0; d < position.size(); d++) {
    n.check(position[d] >= 0 && position[d] < from.shape[d], "position ", position[d], " in dim ", d, " of ", from, " is out of bounds");
    base += position[d] * strides[d];
  }
  const Shape rest(from.shape.begin() + static_cast<std::ptrdiff_t>(position.size()), from.shape.end());
  n.check(rest == to.shape, "cannot take a ", to, " out of ", from);
  const auto packed = strides_of(rest);
  return moved(n, make_box(rest, packed, packed), base);
}

inline Execute transpose(const Node& n) {
  count_operands(n, 1);
  same_element(n);
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  const auto order = n.integers("permutation");
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  n.check(order.size() == from.shape.size() && order.size() == to.shape.size(), "permutation and ", from, " do not fit");
  const auto strides = strides_of(from.shape);
  Shape steps;
  for (std::size_t d = 0; d < order.size(); d++) {
    n.check(sorted[d] == static_cast<std::int64_t>(d), order, " is no permutation");
    n.check(to.shape[d] == from.shape[static_cast<std::size_t>(order[d])], "cannot transpose ", from, " to ", to);
    steps.push_back(strides[static_cast<std::size_t>(order[d])]);
  }
  return moved(n, make_box(to.shape, strides_of(to.shape), steps), 0);
}

inline Execute concatenate(const Node& n) {
  count_operands(n, n.operands.size());
  const Type& to = n.result_types[0];
  n.check(n.operands.size() >= 2, "needs two operands or more");
  const auto dim = n.integer("dimension");
  const auto whole = along(n, dim, to);
  std::vector<std::int64_t> widths;
  std::int64_t sum = 0;
  for (auto& t : n.operand_types) {
    auto filled = t.shape;
    n.check(t.element == to.element && filled.size() == to.shape.size(), "cannot join ", t, " into ", to);
    const auto width = filled[static_cast<std::size_t>(dim)];
    filled[static_cast<std::size_t>(dim)] = to.shape[static_cast<std::size_t>(dim)];
    n.check(filled == to.shape, "cannot join ", t, " into ", to, " along dim ", dim);
    widths.push_back(width * whole.inner);
    sum += width;
  }
  n.check(sum == whole.size, "the parts have ", sum, " rows along dim ", dim, ", the result ", whole.size);
  return [&in = n.operands, out = n.results[0], &to, widths, outer = whole.outer, row = whole.size * whole.inner](Machine& m) {
    auto r = new_value(to);
    std::vector<Origin> marks;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < in.size(); at += widths[i++]) {
      const auto width = widths[i];
      const Words x = m[in[i]].words();
      for (std::int64_t o = 0; o < outer; o++) std::memcpy(r.words() + o * row + at, x + o * width, static_cast<std::size_t>(width) * 4);
      if (const auto* u = m[in[i]].undefined()) {
        marks.resize(static_cast<std::size_t>(to.size()));
        for (std::int64_t o = 0; o < outer; o++) std::copy_n(u + o * width, width, marks.begin() + o * row + at);
      }
    }
    set_undefined(r, std::move(marks));
    m[out] = std::move(r);
  };
}

// Element i of the dim goes to (i + amount) mod size.
inline Execute dynamic_rotate(const Node& n) {
  count_operands(n, 2);
  const Type& t = n.result_types[0];
  n.check(n.operand_types[0] == t && n.operand_types[1].is(Kind::scalar, Scalar::i32), "takes ", t, " and an i32 amount");
  return [in = n.operands[0], by = n.operands[1], out = n.results[0], &t, a = along(n, n.integer("dimension"), t)](Machine& m) {
    const auto amount = m.number(by);
    m.check(amount >= 0, "a rotation by ", amount, ": the amount must not be negative");
    const auto head = amount % a.size * a.inner, row = a.size * a.inner;
    const auto rotate = [&](auto* to, const auto* from) {
      for (std::int64_t o = 0; o < a.outer; o++) {
        std::copy_n(from + o * row, row - head, to + o * row + head);
        std::copy_n(from + o * row + row - head, head, to + o * row);
      }
    };
    auto r = new_value(t);
    rotate(r.words(), m[in].words());
    if (const auto* u = m[in].undefined()) {
      std::vector<Origin> marks(static_cast<std::size_t>(t.size()));
      rotate(marks.data(), u);
      set_undefined(r, std::move(marks));
    }
    m[out] = std::move(r);
  };
}

// out[.., i, ..] = source[.., index[.., i, ..], ..] along one dim.
inline Execute dynamic_gather(const Node& n) {
  count_operands(n, 2);
  const Type &t = n.result_types[0], &it = n.operand_types[1];
  const auto dims = n.integers("dimensions");
  n.check(n.operand_types[0] == t, "source and result differ: ", n.operand_types[0], " and ", t);
  n.check(it == with_element(t, Scalar::i32, "i32"), "the indices must be i32 in the source's shape, not ", it);
  n.check(dims.size() == 1, "gathers along one dim");
  return [in = n.operands[0], by = n.operands[1], out = n.results[0], &t, a = along(n, dims[0], t)](Machine& m) {
    m.need_defined(by, t.shape);
    auto r = new_value(t);
    const Words x = m[in].words(), at = m[by].words();
    const auto* u = m[in].undefined();
    std::vector<Origin> marks(u ? static_cast<std::size_t>(t.size()) : 0);
    const auto row = a.size * a.inner;
    for (std::int64_t i = 0; i < t.size(); i++) {
      if (at[i] >= static_cast<std::uint64_t>(a.size))
        m.fail("out of bounds: operand ", m.name(in), ", gathers element ", as_signed(at[i]), " of ", a.size, " at index ",
               index_text(i, t.shape));
      const auto from = i / row * row + at[i] * a.inner + i % a.inner;
      r.words()[i] = x[from];
      if (u) marks[static_cast<std::size_t>(i)] = u[from];
    }
    set_undefined(r, std::move(marks));
    m[out] = std::move(r);
  };
}

// Same width: a renaming. Between 16 and 32 bits: rows 2r (low half) and 2r + 1 (high half) are row r.
inline Execute vector_bitcast(const Node& n) {
  count_operands(n, 1);
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  const auto width = [&](const Type& t) {
    n.check(t.kind == Kind::vector && t.element != Scalar::i1 && t.element != Scalar::index && t.element != Scalar::other, "does not take ",
            t);
    return t.element == Scalar::bf16 ? 1 : 2;
  };
  const auto wf = width(from), wt = width(to);
  if (wf == wt) {
    n.check(from.shape == to.shape, "shapes differ: ", from, " and ", to);
    return shared(n);
  }
  const auto rank = from.shape.size();
  n.check(rank >= 2 && to.shape.size() == rank, "needs rank 2 or more");
  auto scaled = from.shape;
  scaled[rank - 2] = scaled[rank - 2] * wf / wt;
  n.check(scaled == to.shape && from.shape[rank - 2] * wf == to.shape[rank - 2] * wt, "rows must scale with the width: ", from, " and ",
          to);
  const bool pack = wf < wt;
  const std::int64_t columns = from.shape.back(), rows = (pack ? to : from).size() / columns;  // of 32 bits
  return [in = n.operands[0], out = n.results[0], &to, pack, columns, rows](Machine& m) {
    auto r = new_value(to);
    const Words x = m[in].words();
    auto* z = r.words();
    const auto* marks = m[in].undefined();
    std::vector<Origin> moved_marks(marks ? static_cast<std::size_t>(to.size()) : 0);
    for (std::int64_t row = 0; row < rows; row++)
      for (std::int64_t c = 0; c < columns; c++) {
        const auto whole = row * columns + c, low = 2 * row * columns + c, high = low + columns;
        if (pack) z[whole] = x[low] | (x[high] << 16);
        else {
          z[low] = x[whole] & 0xffffu;
          z[high] = x[whole] >> 16;
        }
        if (marks && pack) moved_marks[static_cast<std::size_t>(whole)] = std::max(marks[low], marks[high]);
        if (marks && !pack) moved_marks[static_cast<std::size_t>(low)] = moved_marks[static_cast<std::size_t>(high)] = marks[whole];
      }
    if (marks) set_undefined(r, std::move(moved_marks));
    m[out] = std::move(r);
  };
}

// ---- reductions

// Folds halves: element i with i + n/2, over the power of two at or above n, where `fill` stands in for the missing ones.
template <auto F>
void fold(std::vector<std::uint32_t>& data, const Along& a, std::uint32_t fill) {
  const auto padded = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(a.size)));
  std::vector<std::uint32_t> tree(static_cast<std::size_t>(padded * a.inner));
  for (std::int64_t o = 0; o < a.outer; o++) {
    const auto* in = data.data() + o * a.size * a.inner;
    std::copy_n(in, a.size * a.inner, tree.begin());
    std::fill(tree.begin() + a.size * a.inner, tree.end(), fill);
    for (auto half = padded / 2 * a.inner; half >= a.inner; half /= 2) loop2<F>(tree.data(), tree.data() + half, tree.data(), half);
    std::copy_n(tree.begin(), a.inner, data.begin() + o * a.inner);  // o * inner never passes what is still to be read
  }
  data.resize(static_cast<std::size_t>(a.outer * a.inner));
}

// Dims are reduced one by one, the minor ones first; then out = acc + reduced (or the max or min of the two).
inline Execute multi_reduction(const Node& n) {
  count_operands(n, 2);
  const Type &from = n.operand_types[0], &to = n.result_types[0];
  n.check(n.operand_types[1] == to && from.kind == Kind::vector && to.kind == Kind::vector && from.element == to.element,
          "source, accumulator and result do not fit: ", from, ", ", n.operand_types[1], ", ", to);
  auto dims = n.integers("reduction_dims");
  std::sort(dims.begin(), dims.end());
  Shape kept;
  std::vector<Along> folds;
  Type rest = from;
  for (std::size_t i = dims.size(); i-- > 0;) {
    n.check(i == 0 || dims[i] != dims[i - 1], "dim ", dims[i], " is named twice");
    folds.push_back(along(n, dims[i], rest));
    rest.shape.erase(rest.shape.begin() + dims[i]);
  }
  n.check(rest.shape == to.shape, "reducing dims ", dims, " of ", from, " does not give ", to);
  struct Rule {
    std::string_view kind;
    Scalar element;
    void (*fold)(std::vector<std::uint32_t>&, const Along&, std::uint32_t);
    Loop2 join;
    std::uint32_t neutral;
  };
  static const Rule rules[] = {
      {"add", Scalar::f32, fold<on_floats<add>>, loop2<on_floats<add>>, 0},
      {"maximumf", Scalar::f32, fold<on_floats<maximum>>, loop2<on_floats<maximum>>, 0xff800000u},
      {"minimumf", Scalar::f32, fold<on_floats<minimum>>, loop2<on_floats<minimum>>, 0x7f800000u},
      {"add", Scalar::i32, fold<iadd>, loop2<iadd>, 0},
      {"maxsi", Scalar::i32, fold<imaximum>, loop2<imaximum>, 0x80000000u},
      {"minsi", Scalar::i32, fold<iminimum>, loop2<iminimum>, 0x7fffffffu},
  };
  const auto& kind = n.tagged("kind", "vector.kind");
  for (const auto& rule : rules)
    if (rule.kind == kind && rule.element == from.element)
      return [in = n.operands[0], acc = n.operands[1], out = n.results[0], &from, &to, folds, &rule](Machine& m) {
        const auto *u = m.marks_in_arithmetic(in, from.shape), *v = m.marks_in_arithmetic(acc, to.shape);
        std::vector<std::uint32_t> data(m[in].words(), m[in].words() + from.size());
        for (auto& f : folds) rule.fold(data, f, rule.neutral);
        auto r = new_value(to);
        rule.join(m[acc].words(), data.data(), r.words(), to.size());
        std::vector<std::uint32_t> marks(u, u ? u + from.size() : u);  // of a sum: that of any part
        for (auto& f : folds)
          if (u) fold<imaximum>(marks, f, 0);
        const std::vector<Origin> folded(marks.begin(), marks.end());
        set_undefined(r, to.size(), u ? folded.data() : nullptr, v);
        m[out] = std::move(r);
      };
  n.fail("'", kind, "' of ", from, " is not simulated");
}

// ---- matmul

// One [M, K] x [K, N] product: out = acc + (+0 + chain over k ascending of fma(a, b)). Blocks of columns stay in registers; every
// output has its own chain, so the blocking does not show.
inline void chains(const float* a, const float* b, const std::uint32_t* acc, std::uint32_t* out, std::int64_t M, std::int64_t N,
                   std::int64_t K) {
  constexpr std::int64_t width = 64;
  for (std::int64_t j = 0; j < N; j += width) {
    const auto columns = std::min(width, N - j);
    for (std::int64_t i = 0; i < M; i++) {
      float sum[width] = {};
      const float* row = a + i * K;
      if (columns == width)
        for (std::int64_t k = 0; k < K; k++)
          for (std::int64_t c = 0; c < width; c++) sum[c] = fused_multiply_add(row[k], b[k * N + j + c], sum[c]);
      else
        for (std::int64_t k = 0; k < K; k++)
          for (std::int64_t c = 0; c < columns; c++) sum[c] = fused_multiply_add(row[k], b[k * N + j + c], sum[c]);
      for (std::int64_t c = 0; c < columns; c++) out[i * N + j + c] = as_bits(as_float(acc[i * N + j + c]) + sum[c]);
    }
  }
}

inline Execute matmul(const Node& n) {
  count_operands(n, 3);
  const Type &at = n.operand_types[0], &bt = n.operand_types[1], &to = n.result_types[0];
  n.check(at.kind == Kind::vector && bt.kind == Kind::vector && n.operand_types[2] == to && to.is(Kind::vector, Scalar::f32),
          "takes two vectors and an f32 accumulator of the result's type");
  n.check(!n.boolean("transpose_lhs") && !n.boolean("transpose_rhs"), "the transpose flags must be false; dimension_numbers say it");
  if (n.version == 0 || n.version >= 13) n.boolean("transpose_lhs_hint");
  std::vector<std::vector<std::int64_t>> groups;
  {
    Reader r(n.tagged("dimension_numbers", "tpu.dot_dimension_numbers"));
    do {
      groups.emplace_back();
      for (auto& e : r.attribute().elements) groups.back().push_back(std::stoll(e.text));
    } while (r.eat(","));
  }
  n.check(groups.size() == 7, "dimension_numbers has 7 lists");
  const auto &lhs_batch = groups[5], &rhs_batch = groups[6];
  const std::size_t rank = 2 + lhs_batch.size();
  n.check(lhs_batch.size() <= 1 && rhs_batch.size() == lhs_batch.size(), "Up to 1 batch dim supported");
  n.check(at.shape.size() == rank && bt.shape.size() == rank && to.shape.size() == rank, "operands and result must have rank ", rank);
  for (int g = 0; g < 4; g++) n.check(groups[static_cast<std::size_t>(g)].size() == 1, "one contracting and one free dim each");
  const auto cover = [&](std::vector<std::int64_t> dims) {
    std::sort(dims.begin(), dims.end());
    for (std::size_t d = 0; d < dims.size(); d++)
      n.check(dims[d] == static_cast<std::int64_t>(d), "dimension_numbers must name each dim once");
  };
  auto lhs_dims = lhs_batch, rhs_dims = rhs_batch;
  lhs_dims.insert(lhs_dims.end(), {groups[2][0], groups[0][0]});
  rhs_dims.insert(rhs_dims.end(), {groups[1][0], groups[3][0]});
  cover(lhs_dims);
  cover(rhs_dims);
  std::vector<std::int64_t> order;
  if (!lhs_batch.empty()) order = {0, lhs_batch[0]};
  order.insert(order.end(), {0, groups[2][0], 1, groups[3][0]});
  n.check(order == groups[4], "the output order must be batch, lhs free, rhs free");
  const auto dim = [](const Type& t, std::int64_t d) { return t.shape[static_cast<std::size_t>(d)]; };
  const auto B = lhs_batch.empty() ? 1 : dim(at, lhs_batch[0]), M = dim(at, groups[2][0]), K = dim(at, groups[0][0]),
             N = dim(bt, groups[3][0]);
  n.check(dim(bt, groups[1][0]) == K, "contraction sizes differ: ", at, " and ", bt);
  n.check(lhs_batch.empty() || dim(bt, rhs_batch[0]) == B, "batch sizes differ: ", at, " and ", bt);
  n.check(to.shape == (lhs_batch.empty() ? Shape{M, N} : Shape{B, M, N}), at, " by ", bt, " does not give ", to);

  const auto* precision = n.attributes.find("precision");
  const auto kind = precision ? n.tagged("precision", "tpu.contract_precision") : std::string("bf16");
  n.check(kind == "bf16" || kind == "fp32", "precision '", kind, "' is not simulated: its passes are not public");
  const auto operand = [&](const Type& t) {
    n.check(t.element == Scalar::f32 || t.element == Scalar::bf16, "does not take ", t);
    n.check(kind == "bf16" || t.element == Scalar::f32, "Bad lhs type: fp32 precision needs f32 operands, not ", t);
    return t.element == Scalar::bf16 ? loop1<widen> : kind == "fp32" ? Loop1(nullptr) : loop1<round_to_bf16>;
  };
  // To [B, M, K] and [B, K, N], rows contiguous.
  const auto pack = [&](const Type& t, const std::vector<std::int64_t>& dims) {
    const auto strides = strides_of(t.shape);
    Shape shape, steps;
    for (auto d : dims) {
      shape.push_back(dim(t, d));
      steps.push_back(strides[static_cast<std::size_t>(d)]);
    }
    return make_box(shape, strides_of(shape), steps);
  };
  return [&n, &at, &bt, &to, B, M, N, K, a_box = pack(at, lhs_dims), b_box = pack(bt, rhs_dims), a_loop = operand(at),
          b_loop = operand(bt)](Machine& m) {
    const auto *u = m.marks_in_arithmetic(n.operands[0], at.shape), *v = m.marks_in_arithmetic(n.operands[1], bt.shape),
               *w = m.marks_in_arithmetic(n.operands[2], to.shape);
    const auto packed = [](Words x, std::int64_t size, const Box& box, Loop1 convert) {
      std::vector<std::uint32_t> words(static_cast<std::size_t>(size));
      copy_box(box, words.data(), x);
      if (convert) convert(words.data(), words.data(), size);
      std::vector<float> floats(words.size());
      std::memcpy(floats.data(), words.data(), words.size() * 4);
      return floats;
    };
    const auto a = packed(m[n.operands[0]].words(), at.size(), a_box, a_loop);
    const auto b = packed(m[n.operands[1]].words(), bt.size(), b_box, b_loop);
    auto r = new_value(to);
    for (std::int64_t i = 0; i < B; i++)
      chains(a.data() + i * M * K, b.data() + i * K * N, m[n.operands[2]].words() + i * M * N, r.words() + i * M * N, M, N, K);
    if (u || v) {  // an undefined operand leaves its whole row or column undefined
      const auto in_order = [](const Origin* marks, std::int64_t size, const Box& box) {
        std::vector<Origin> out(static_cast<std::size_t>(size));
        if (marks) copy_box(box, out.data(), marks);
        return out;
      };
      const auto rows = in_order(u, at.size(), a_box), columns = in_order(v, bt.size(), b_box);
      std::vector<Origin> marks(static_cast<std::size_t>(to.size()));
      for (std::int64_t i = 0; i < B * M; i++)
        for (std::int64_t j = 0; j < N; j++)
          for (std::int64_t k = 0; k < K; k++)
            marks[static_cast<std::size_t>(i * N + j)] =
                std::max({marks[static_cast<std::size_t>(i * N + j)], rows[static_cast<std::size_t>(i * K + k)],
                          columns[static_cast<std::size_t>((i / M * K + k) * N + j)]});
      set_undefined(r, to.size(), marks.data(), w);
    } else {
      set_undefined(r, to.size(), w, nullptr);
    }
    m[n.results[0]] = std::move(r);
  };
}

}  // namespace gdn::sim::ops
