// Axes are types: slices, neighbours and pairs of axes fold back to the plainest name.
#include <catch2/catch.hpp>
#include <gdn/trace/machine.hpp>

using namespace gdn;

namespace {

template <class A, class B> constexpr bool same = std::is_same_v<A, B>;
using C = Chunk<64>;
template <class R, class K> using T = Tile<Trace, f32, R, K>;

}  // namespace

TEST_CASE("a slice of everything is the axis") {
  CHECK(same<slice_t<C, 0, 64>, C>);
  CHECK_FALSE(same<slice_t<C, 0, 63>, C>);
  CHECK(slice_t<C, 3, 7>::size == 7);
}

TEST_CASE("a slice of a slice is a slice of the axis") {
  CHECK(same<slice_t<slice_t<C, 16, 32>, 8, 4>, Slice<C, 24, 4>>);
  CHECK(same<slice_t<slice_t<C, 16, 32>, 0, 32>, Slice<C, 16, 32>>);
}

TEST_CASE("neighbouring slices join, others stay a pair") {
  CHECK(same<cat_t<Slice<C, 0, 16>, Slice<C, 16, 16>>, Slice<C, 0, 32>>);
  CHECK(same<cat_t<Slice<C, 0, 32>, Slice<C, 32, 32>>, C>);
  CHECK(same<cat_t<cat_t<Slice<C, 0, 16>, Slice<C, 16, 16>>, Slice<C, 32, 32>>, C>);
  CHECK(same<cat_t<Slice<C, 16, 16>, Slice<C, 0, 16>>, Cat<Slice<C, 16, 16>, Slice<C, 0, 16>>>);
  CHECK(same<cat_t<Slice<C, 0, 16>, Slice<Key<64>, 16, 16>>, Cat<Slice<C, 0, 16>, Slice<Key<64>, 16, 16>>>);
  CHECK(cat_t<C, Row<8>>::size == 72);
}

TEST_CASE("the parts of a pair have their own names") {
  using Pair = cat_t<Row<8>, C>;
  CHECK(same<slice_t<Pair, 0, 8>, Row<8>>);
  CHECK(same<slice_t<Pair, 8, 64>, C>);
  CHECK(same<slice_t<Pair, 5, 64>, Slice<Pair, 5, 64>>);
}

TEST_CASE("One joins with everything, two names with neither") {
  using detail::join;
  CHECK(same<join<C, One>::type, C>);
  CHECK(same<join<One, C>::type, C>);
  CHECK(join<One, One>::ok);
  CHECK_FALSE(join<Key<64>, Val<64>>::ok);
  CHECK(same<join<Key<64>, Val<64>>::type, Key<64>>);  // usable, so that one mistake is one error
}

TEST_CASE("operations have the axes of their operands") {
  using A = T<C, Key<32>>;
  using B = T<Key<32>, Val<48>>;
  CHECK(same<decltype(dot<Precision::f32>(A{}, B{})), T<C, Val<48>>>);
  CHECK(same<decltype(transpose(A{})), T<Key<32>, C>>);
  CHECK(same<decltype(A{} * T<C, One>{}), A>);
  CHECK(same<decltype(T<One, Key<32>>{} * T<C, One>{}), A>);
  CHECK(same<decltype(rows<0, 16>(A{})), T<Slice<C, 0, 16>, Key<32>>>);
  CHECK(same<decltype(last_row(A{})), T<One, Key<32>>>);
  CHECK(same<decltype(concat_rows(rows<0, 16>(A{}), rows<16, 48>(A{}))), A>);
  CHECK(same<decltype(as_row(T<C, One>{})), T<One, C>>);
  CHECK(same<decltype(sum_cols(A{})), T<C, One>>);
  CHECK(same<decltype(diagonal_blocks<16>(T<C, C>{})), T<Slice<C, 0, 16>, C>>);
}
