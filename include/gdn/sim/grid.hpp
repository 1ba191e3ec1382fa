// Runs a kernel over its grid: windows, scratch, prefetched scalars, and the order of the steps.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api.hpp"
#include "memory.hpp"
#include "ops.hpp"
#include "parse.hpp"

namespace gdn::sim {

// A kernel and how it is called. Operands: dynamic grid bounds, prefetched scalars, inputs.
struct Call {
  std::string_view text;
  std::vector<Type> operands, results;
  std::map<std::size_t, std::size_t> aliases;  // output -> operand it shares its memory with
  std::optional<std::int64_t> vmem_limit;
};

// What an array may hold.
struct ElementRow {
  Element element;
  Scalar scalar;
  std::string_view name;
};
inline constexpr ElementRow element_rows[] = {{Element::f32, Scalar::f32, "f32"},
                                              {Element::bf16, Scalar::bf16, "bf16"},
                                              {Element::i32, Scalar::i32, "i32"},
                                              {Element::i8, Scalar::i8, "i8"},
                                              {Element::i1, Scalar::i1, "i1"}};

inline const ElementRow& row_of(Element e) {
  for (auto& row : element_rows)
    if (row.element == e) return row;
  throw Error("sim: an array of no known element");
}

inline Scalar scalar_of(Element e) { return row_of(e).scalar; }

inline Element element_of(Scalar s) {
  for (auto& row : element_rows)
    if (row.scalar == s) return row.element;
  throw Error("sim: no array has such elements");
}

inline std::string text_of(const Array& a) {
  Type t;
  t.kind = Type::Kind::tensor;
  t.shape = a.shape;
  t.element_name = row_of(a.element).name;
  return text_of(t);
}

inline void check_array(const Array& a, const Type& t, const std::string& what) {
  const bool fits = t.kind == Type::Kind::tensor && t.element == scalar_of(a.element) && t.shape == a.shape;
  require(fits, what, " is a ", text_of(a), ", the text says ", t);
  require(static_cast<std::int64_t>(a.data.size()) == volume(a.shape), what, " has ", a.data.size(), " elements, its shape ",
          volume(a.shape));
  require(a.defined.empty() || a.defined.size() == a.data.size(), what, " has ", a.defined.size(), " defined marks for ", a.data.size(),
          " elements");
}

class GridRun {
 public:
  GridRun(const Call& call, const std::vector<Array>& operands, const Options& options)
      : options_(options), module_(parse_kernel(call.text)), machine_(module_.names, options) {
    find_function();
    read_grid(call, operands);
    read_prefetch(call, operands);
    read_windows(call, operands);
    read_scratch();
    result_.vmem_bytes = check_vmem(allocations_, capacity(), call.vmem_limit.value_or(default_scoped_limit()));
    body_ = load_block(function_->regions[0]);
  }

  Result run() {
    const FlushSubnormals flush;
    machine_.bounds = bounds_;
    std::int64_t steps = 1;
    for (auto b : bounds_) steps *= b;
    if (steps > 0) start_windows();
    for (std::int64_t s = 0; s < steps; s++) {
      const bool last = s + 1 == steps;
      // By default the next step's blocks are on their way while this step runs.
      if (!last && !options_.late_windows) look_ahead(s + 1);
      set_step(s);
      bind(function_->regions[0], true);
      machine_.run(*body_);
      if (!last && options_.late_windows) look_ahead(s + 1);
      set_step(s);
      for (auto& w : windows_)
        if (w.output && !w.direct) leave(w, last);
      if (last) break;
      set_step(s + 1);
      for (auto& w : windows_)
        if (!w.direct) advance(w);
    }
    for (auto& m : scratch_)
      if (const auto left = machine_.copies.close(*m); !left.empty()) throw Error(left);
    result_.grid_steps = static_cast<long>(steps);
    result_.ops = machine_.ops;
    collect_outputs();
    return std::move(result_);
  }

 private:
  struct Window {
    std::string name;
    int argument = 0;
    bool direct = false;   // no window: the kernel gets the array itself
    bool watched = false;  // another argument shares the array: what is on its way must be seen
    bool output = false, aliased = false, prefetched = false, buffered = false;
    std::uint32_t fetching = 0, writing = 0;  // copies in flight, of a watched array
    Memory block, spare;  // spare: the next step's block, on its way
    bool staged = false;
    std::shared_ptr<Memory> array;
    const Region* transform = nullptr;
    std::shared_ptr<Block> transform_body;
    Shape index, next;
    std::set<Shape> visited;  // of an output: the block indices it had
  };

  std::int64_t capacity() const {
    constexpr std::int64_t MiB = 1 << 20;
    return (options_.target == Target::tpu7x ? 64 * MiB : 128 * MiB) - MiB / 16;
  }
  std::int64_t default_scoped_limit() const { return (options_.target == Target::v5e ? 16 : 32) * std::int64_t{1 << 20}; }

  // ---- loading

  void find_function() {
    for (auto& f : module_.functions) {
      f.check(f.name == "func.func" && f.regions.size() == 1, "a module holds functions with a body");
      const auto& name = f.attribute("sym_name").text;
      f.check(functions_.emplace(name, &f).second, "function @", name, " is defined twice");
      const auto& type = f.attribute("function_type").type;
      const auto& r = f.regions[0];
      f.check(type.inputs == r.types, "function_type and the arguments of @", name, " differ");
      f.check(!r.nodes.empty() && r.nodes.back().name == "func.return" && r.nodes.back().operand_types == type.outputs, "@", name,
              " must end in func.return of its results");
      if (!f.attributes.find("tpu.core_type")) continue;
      f.check(f.tagged("tpu.core_type", "tpu.core_type") == "tc", "only TensorCore kernels (tc) are simulated");
      f.check(!function_, "two functions have a tpu.core_type");
      function_ = &f;
    }
    require(function_, "no function has tpu.core_type = #tpu.core_type<tc>");
    ops::check_attributes(
        *function_,
        "sym_name function_type dimension_semantics iteration_bounds scalar_prefetch scratch_operands tpu.core_type window_params");
    function_->check(function_->attribute("function_type").type.outputs.empty(), "a kernel returns nothing");
  }

  void read_grid(const Call& call, const std::vector<Array>& operands) {
    const auto& f = *function_;
    require(operands.size() == call.operands.size(), "the kernel takes ", call.operands.size(), " arrays, not ", operands.size());
    for (std::size_t i = 0; i < operands.size(); i++) check_array(operands[i], call.operands[i], text("operand ", i));
    if (f.attributes.find("iteration_bounds")) bounds_ = f.integers("iteration_bounds");
    static_bounds_ = bounds_;
    const auto& semantics = f.attribute("dimension_semantics");
    f.check(semantics.elements.size() == bounds_.size(), "dimension_semantics has ", semantics.elements.size(), " entries, the grid ",
            bounds_.size(), " axes");
    for (auto& s : semantics.elements) {
      f.check(s.name == "tpu.dimension_semantics" && (s.text == "parallel" || s.text == "arbitrary"), "dimension semantics '", s.text,
              "' are not simulated");
      parallel_.push_back(s.text == "parallel");
    }
    for (std::size_t d = 0; d < bounds_.size(); d++) {
      if (bounds_[d] == INT64_MIN) {
        f.check(used_ < operands.size() && operands[used_].element == Element::i32 && operands[used_].shape.empty(),
                "the bound of grid axis ", d, " is dynamic: operand ", used_, " must be a tensor<i32>");
        bounds_[d] = static_cast<std::int32_t>(operands[used_++].data[0]);
      }
      f.check(bounds_[d] >= 0, "grid axis ", d, " has bound ", bounds_[d]);
      orders_.push_back(axis_order(d));
    }
  }

  // The order in which an axis is walked.
  std::vector<std::int64_t> axis_order(std::size_t axis) const {
    std::vector<std::int64_t> order(static_cast<std::size_t>(bounds_[axis]));
    for (std::size_t i = 0; i < order.size(); i++) order[i] = static_cast<std::int64_t>(i);
    if (!parallel_[axis] || options_.parallel_order == 0 || order.size() < 2) return order;
    auto state = options_.parallel_order * 0x9e3779b97f4a7c15u + axis;
    for (std::size_t i = order.size() - 1; i > 0; i--) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::swap(order[i], order[(state >> 33) % (i + 1)]);
    }
    if (std::is_sorted(order.begin(), order.end())) std::reverse(order.begin(), order.end());
    return order;
  }

  const Type& argument_type(std::size_t i) const { return function_->regions[0].types[i]; }
  int argument(std::size_t i) const { return function_->regions[0].arguments[i]; }
  const std::string& argument_name(std::size_t i) const { return module_.names[static_cast<std::size_t>(argument(i))]; }

  std::shared_ptr<Memory> array_of(const Array& a, const std::string& name) {
    auto m = std::make_shared<Memory>(make_memory(name, scalar_of(a.element), "hbm", a.shape, machine_.origin(name)));
    m->words = a.data;
    std::vector<Origin> marks;
    for (auto d : a.defined) {
      if (!d) m->words[marks.size()] = poison(m->element);
      marks.push_back(d ? Origin{0} : m->origin);
    }
    if (!marks.empty()) set_marks(*m, 0, make_box(m->shape, m->strides, m->strides), marks.data());
    return m;
  }

  void read_prefetch(const Call& call, const std::vector<Array>& operands) {
    const auto& f = *function_;
    const auto count = static_cast<std::size_t>(f.integer("scalar_prefetch"));
    const auto scratch = static_cast<std::size_t>(f.integer("scratch_operands"));
    f.check(used_ + count <= operands.size(), "scalar_prefetch is ", count, ", but the call has ", operands.size(), " operands");
    const auto inputs = operands.size() - used_ - count;
    const auto wanted = bounds_.size() + count + inputs + call.results.size() + scratch;
    f.check(function_->regions[0].arguments.size() == wanted, "takes ", function_->regions[0].arguments.size(), " arguments; grid axes ",
            bounds_.size(), " + scalar_prefetch ", count, " + inputs ", inputs, " + outputs ", call.results.size(), " + scratch ", scratch,
            " make ", wanted);
    for (std::size_t d = 0; d < bounds_.size(); d++)
      f.check(argument_type(d).is(Type::Kind::scalar, Scalar::i32), "argument ", argument_name(d), " is a grid index and must be i32");
    for (std::size_t i = 0; i < count; i++) {
      const auto at = bounds_.size() + i;
      const auto& t = argument_type(at);
      const auto& a = operands[used_];
      f.check(t.is(Type::Kind::memref, scalar_of(a.element)) && t.shape == a.shape && t.space == "smem", "argument ", argument_name(at),
              " is a ", t, ", the prefetched operand ", used_, " a ", text_of(a));
      prefetch_.push_back(array_of(a, text("prefetched operand ", used_, " ", argument_name(at))));
      used_++;
    }
  }

  void read_windows(const Call& call, const std::vector<Array>& operands) {
    const auto& f = *function_;
    const auto inputs = operands.size() - used_, count = inputs + call.results.size();
    const auto* params = f.attributes.find("window_params");
    f.check(bounds_.empty() != (params != nullptr), "window_params come with a grid, and only with one");
    f.check(!params || params->elements.size() == count, "window_params has ", params ? params->elements.size() : 0, " entries for ",
            inputs, " inputs and ", call.results.size(), " outputs");
    std::vector<std::shared_ptr<Memory>> arrays;
    for (std::size_t i = 0; i < inputs; i++) {
      arrays.push_back(array_of(operands[used_ + i], text("input ", i)));
      arrays.back()->read_only = true;
    }
    for (auto [output, operand] : call.aliases) {
      require(output < call.results.size() && operand >= used_ && operand < operands.size(), "output ", output, " cannot alias operand ",
              operand, ": it is no input of the kernel");
      require(call.results[output] == call.operands[operand], "output ", output, " and the operand it aliases differ: ",
              call.results[output], " and ", call.operands[operand]);
    }
    for (std::size_t i = 0; i < call.results.size(); i++) {
      const auto& t = call.results[i];
      require(t.kind == Type::Kind::tensor, "result ", i, " is no tensor");
      const auto alias = call.aliases.find(i);
      const auto name = text("output ", i);
      if (alias != call.aliases.end()) {
        arrays.push_back(arrays[alias->second - used_]);
        arrays.back()->read_only = false;
      } else {
        arrays.push_back(std::make_shared<Memory>(make_memory(name, t.element, "hbm", t.shape, machine_.origin(name))));
        make_undefined(*arrays.back());
      }
    }
    const auto first = bounds_.size() + prefetch_.size();
    for (std::size_t i = 0; i < count; i++) {
      Window w;
      w.argument = argument(first + i);
      w.output = i >= inputs;
      w.aliased = w.output && call.aliases.count(i - inputs);
      w.array = arrays[i];
      w.name = text(w.output ? "output" : "input", " window ", w.output ? i - inputs : i, " ", argument_name(first + i));
      const auto& t = argument_type(first + i);
      w.direct = t.space == "hbm" || t.space == "any";
      f.check(t.kind == Type::Kind::memref && (t.space == "vmem" || t.space == "smem" || w.direct), w.name, " is a ", t,
              ": it must be a memref in vmem or smem, or a whole array in hbm or any");
      f.check(t.element == w.array->element && t.shape.size() == w.array->shape.size(), w.name, " is a ", t, ", its array has the shape ",
              w.array->shape);
      int buffers = 1;
      if (params && !w.direct) buffers = read_window_params(w, params->elements[i], t);
      else f.check(t.shape == w.array->shape, w.name, " is a ", t, "; without a grid, and in hbm or any, it is the whole array ", w.array->shape);
      if (w.direct) {
        f.check(!params || params->elements[i].keys.empty(), w.name, ": a whole array in ", t.space, " has no window parameters");
        windows_.push_back(std::move(w));
        continue;
      }
      w.block = make_memory(w.name, t.element, t.space, t.shape, machine_.origin(w.name + (w.output ? " (not written)" : " (outside its array)")));
      make_undefined(w.block);
      w.buffered = buffers > 1 && !options_.late_windows;
      w.prefetched = !w.output && w.buffered;
      if (w.prefetched) w.spare = w.block;
      if (t.space == "vmem") allocations_.push_back({w.name + " " + tuple_text(t.shape), padded_bytes(t.element, t.shape), buffers, true});
      windows_.push_back(std::move(w));
    }
    for (auto& w : windows_)
      w.watched = std::count_if(windows_.begin(), windows_.end(), [&](auto& other) { return other.array == w.array; }) > 1;
  }

  // Returns the number of buffers.
  int read_window_params(Window& w, const Attribute& params, const Type& t) {
    const auto& f = *function_;
    for (auto& key : params.keys)
      f.check(key == "transform_indices" || key == "window_bounds" || key == "pipeline_mode", w.name, ": window parameter '", key,
              "' is not simulated");
    const auto *transform = params.find("transform_indices"), *bounds = params.find("window_bounds"), *mode = params.find("pipeline_mode");
    f.check(transform && bounds, w.name, ": transform_indices and window_bounds are needed");
    Shape shape;
    for (auto& e : bounds->elements) shape.push_back(std::stoll(e.text));
    f.check(shape == t.shape, w.name, ": window_bounds ", shape, " and the argument's ", t, " differ");
    check_block_rule(w, shape, t.space);
    const auto found = functions_.find(transform->text);
    f.check(found != functions_.end(), w.name, ": no function @", transform->text);
    const auto& g = *found->second;
    const auto& r = g.regions[0];
    const auto outer = static_cast<std::ptrdiff_t>(bounds_.size() + prefetch_.size());
    const auto& types = function_->regions[0].types;
    g.check(r.types == std::vector<Type>(types.begin(), types.begin() + outer), "@", transform->text,
            " must take the kernel's grid indices and prefetched scalars");
    const auto& results = r.nodes.back().operand_types;
    g.check(results.size() == shape.size(), "@", transform->text, " gives ", results.size(), " block indices for rank ", shape.size());
    for (auto& result : results) g.check(result.is(Type::Kind::scalar, Scalar::i32), "block indices are i32");
    w.transform = &r;
    auto& body = transforms_[transform->text];
    if (!body) body = load_block(r);
    w.transform_body = body;
    if (mode) {
      f.check(mode->text == "synchronous" || mode->text == "double_buffered", w.name, ": pipeline_mode '", mode->text, "'");
      return mode->text == "synchronous" ? 1 : 2;
    }
    return moves(r) ? 2 : 1;
  }

  // The compiler refuses other blocks (E2002).
  void check_block_rule(const Window& w, const Shape& block, const std::string& space) const {
    const auto& f = *function_;
    const auto& array = w.array->shape;
    for (std::size_t d = 0; d < block.size(); d++) f.check(block[d] > 0, w.name, ": block ", block, " is empty");
    const auto rank = block.size();
    if (rank == 0 || w.array->size() == 0 || space != "vmem") return;
    const auto what = text(w.name, ": block ", block, " of array ", array, ": ");
    if (rank == 1) {
      const std::int64_t packing = w.array->element == Scalar::bf16 ? 2 : 1, n = block[0];
      f.check(n == array[0] || n % 1024 == 0 || ((n & (n - 1)) == 0 && n >= 128 * packing), what,
              "the block rule for one dim wants the whole array, a multiple of 1024 or a power of two from ", 128 * packing);
      return;
    }
    f.check(block[rank - 1] % 128 == 0 || block[rank - 1] == array[rank - 1], what,
            "the block rule wants a last dim that is a multiple of 128 or the array's ", array[rank - 1]);
    f.check(block[rank - 2] % 8 == 0 || block[rank - 2] == array[rank - 2], what,
            "the block rule wants a second-minor dim that is a multiple of 8 or the array's ", array[rank - 2]);
  }

  // Whether a block index depends on a grid axis longer than one, or on prefetched scalars: then the window has two buffers.
  bool moves(const Region& transform) const {
    std::set<int> moving;
    for (std::size_t i = 0; i < transform.arguments.size(); i++)
      if (i >= static_bounds_.size() || static_bounds_[i] != 1) moving.insert(transform.arguments[i]);
    bool results_move = false;
    for (auto& n : transform.nodes) {
      std::vector<int> uses;
      add_uses(n, uses);
      const bool moved = std::any_of(uses.begin(), uses.end(), [&](int v) { return moving.count(v) > 0; });
      if (moved) moving.insert(n.results.begin(), n.results.end());
      results_move = moved;  // the last node is the return
    }
    return results_move;
  }

  void read_scratch() {
    const auto& f = *function_;
    const auto first = bounds_.size() + prefetch_.size() + windows_.size();
    for (std::size_t i = first; i < f.regions[0].arguments.size(); i++) {
      const auto& t = argument_type(i);
      const bool semaphores = is_semaphore(t.element) && t.space == "semaphore_mem";
      const bool storage = ops::is_storage(t.element) && (t.space == "vmem" || t.space == "smem");
      f.check(t.kind == Type::Kind::memref && (storage || semaphores), "scratch ", argument_name(i), " is a ", t,
              ": only f32, bf16, i32, i16 and i8 in vmem or smem, and semaphores, are simulated");
      const auto name = text("scratch ", i - first, " ", argument_name(i));
      scratch_.push_back(std::make_unique<Memory>(make_memory(name, t.element, t.space, t.shape, machine_.origin(name + " (not written)"))));
      if (storage) make_undefined(*scratch_.back());
      if (t.space == "vmem") allocations_.push_back({name + " " + tuple_text(t.shape), padded_bytes(t.element, t.shape), 1, false});
    }
    const auto scoped = scoped_allocations(f.regions[0]);
    allocations_.insert(allocations_.end(), scoped.begin(), scoped.end());
  }

  // What the regions inside allocate, of those that follow each other the largest.
  std::vector<Allocation> scoped_allocations(const Region& r) const {
    const auto total = [](const std::vector<Allocation>& list) {
      std::int64_t sum = 0;
      for (auto& a : list) sum += a.total();
      return sum;
    };
    std::vector<Allocation> own, inner;
    for (auto& n : r.nodes) {
      for (auto& region : n.regions)
        if (auto list = scoped_allocations(region); total(list) > total(inner)) inner = std::move(list);
      if (n.name != "memref.alloca" || n.result_types.empty() || n.result_types[0].space != "vmem") continue;
      const auto& t = n.result_types[0];
      const auto& name = module_.names[static_cast<std::size_t>(n.results[0])];
      own.push_back({text("allocation ", name, " ", tuple_text(t.shape)), padded_bytes(t.element, t.shape), 1, false});
    }
    own.insert(own.end(), inner.begin(), inner.end());
    return own;
  }

  // ---- running

  void set_step(std::int64_t s) {
    machine_.grid_step.assign(bounds_.size(), 0);
    for (std::size_t d = bounds_.size(); d-- > 0;) {
      machine_.grid_step[d] = orders_[d][static_cast<std::size_t>(s % bounds_[d])];
      s /= bounds_[d];
    }
  }

  // Gives the arguments of the kernel or of a transform their values.
  void bind(const Region& r, bool kernel) {
    std::size_t at = 0;
    const auto next = [&]() -> Value& { return machine_[r.arguments[at++]] = Value{}; };
    for (auto id : machine_.grid_step) next().scalar = static_cast<std::uint32_t>(id);
    const auto refer = [&](Memory& m) { next() = ops::value_of(ref_to(m)); };
    for (auto& p : prefetch_) refer(*p);
    if (!kernel) return;
    for (auto& w : windows_) refer(w.direct ? *w.array : w.block);
    for (auto& s : scratch_) refer(*s);
  }

  Shape block_index(Window& w) {
    if (!w.transform) return Shape(w.block.shape.size(), 0);
    machine_.during = "block index of " + w.name;
    bind(*w.transform, false);
    const auto ops = machine_.ops;
    machine_.run(*w.transform_body);
    machine_.ops = ops;
    Shape index;
    for (int r : w.transform_body->results) index.push_back(machine_.number(r));
    machine_.finish(*w.transform_body);
    for (std::size_t d = 0; d < index.size(); d++)
      if (index[d] < 0 || index[d] * w.block.shape[d] >= w.array->shape[d])
        throw Error(text(w.name, ", grid step ", machine_.grid_step, ": block index ", index, " is out of bounds: dim ", d,
                         " of the array ", w.array->shape, " has no element in it (blocks of ", w.block.shape, ")"));
    machine_.during.clear();
    return index;
  }

  Shape corner(const Window& w, const Shape& index) const {
    auto at = index;
    for (std::size_t d = 0; d < at.size(); d++) at[d] *= w.block.shape[d];
    return at;
  }

  // The part of the block at `at` that lies inside the array.
  Shape inside(const Window& w, const Shape& at) const {
    auto extent = w.block.shape;
    for (std::size_t d = 0; d < at.size(); d++) extent[d] = std::min(extent[d], w.array->shape[d] - at[d]);
    return extent;
  }

  // The refusal of a window: what, and of which grid step.
  template <class... Parts>
  [[noreturn]] void fail(const Window& w, const Parts&... parts) const {
    throw Error(text(w.name, ", ", machine_.when(), ": ", parts...));
  }

  // A window's own reads and writes obey the rule for races too.
  void no_race(const Window& w, const Ref& r, bool write) const {
    const auto race = machine_.copies.conflict(r, write);
    if (!race.empty()) fail(w, race);
  }

  // No copy may be in flight over a buffer that goes to another block.
  void settled(const Window& w) const {
    if (const auto* user = machine_.copies.user_of(w.block)) fail(w, "is left for another block, or for good, while ", user->what, " is in flight");
  }

  Ref in_array(const Window& w, const Shape& index) const {
    const auto at = corner(w, index);
    return ref_to(*w.array, at, inside(w, at));
  }

  void fetch(const Window& w, Memory& block, const Shape& index) const {
    const auto from = in_array(w, index);
    no_race(w, from, false);
    if (from.shape != block.shape) make_undefined(block);
    copy_elements(ref_to(block, Shape(from.shape.size(), 0), from.shape), from);
  }

  // The end of an output window's step. The copy of a buffered one is in flight until the next step ends.
  void leave(Window& w, bool last) {
    if (last || w.next != w.index) {
      const auto to = in_array(w, w.index);
      const auto from = ref_to(w.block, Shape(to.shape.size(), 0), to.shape);
      no_race(w, from, false);
      settled(w);
      no_race(w, to, true);
      copy_elements(to, from);
      if (w.writing) machine_.copies.end(std::exchange(w.writing, 0));
      if (w.watched && w.buffered && !last)
        w.writing = machine_.copies.start(text("the copy out of ", w.name, ", ", machine_.when(), ","), nullptr, &to);
    } else if (w.writing) {
      machine_.copies.end(std::exchange(w.writing, 0));
    }
  }

  void start_windows() {
    set_step(0);
    for (auto& w : windows_) {
      if (w.direct) continue;
      w.index = block_index(w);
      w.visited.insert(w.index);
      if (!w.output) fetch(w, w.block, w.index);
    }
  }

  void look_ahead(std::int64_t s) {
    set_step(s);
    for (auto& w : windows_) {
      if (w.direct) continue;
      w.next = block_index(w);
      w.staged = w.prefetched && w.next != w.index;
      if (!w.staged) continue;
      fetch(w, w.spare, w.next);
      const auto from = in_array(w, w.next);
      if (w.watched) w.fetching = machine_.copies.start(text("the copy into ", w.name, ", ", machine_.when(), ","), &from, nullptr);
    }
  }

  // To the next step's block.
  void advance(Window& w) {
    if (w.next == w.index) return;
    settled(w);
    w.index = w.next;
    if (w.output) {
      const bool fresh = w.visited.insert(w.index).second;
      require(fresh || w.aliased, w.name, ", grid step ", machine_.grid_step, ": block ", w.index,
              " is visited again after another one (its window would be undefined)");
      make_undefined(w.block);
    } else if (w.staged) {
      if (w.fetching) machine_.copies.end(std::exchange(w.fetching, 0));
      std::swap(w.block, w.spare);
    } else {
      fetch(w, w.block, w.index);
    }
  }

  void collect_outputs() {
    for (auto& w : windows_) {
      if (!w.output) continue;
      const auto& m = *w.array;
      if (!m.undefined.empty() && !options_.undefined_outputs) {
        const auto at = std::find_if(m.undefined.begin(), m.undefined.end(), [](Origin o) { return o != 0; }) - m.undefined.begin();
        Shape block(m.shape.size());
        for (std::size_t d = 0; d < block.size() && !w.direct; d++) block[d] = at / m.strides[d] % m.shape[d] / w.block.shape[d];
        throw Error(text(w.name, ": index ", index_text(at, m.shape), " of the output ", m.shape,
                         w.direct || w.visited.count(block)
                             ? text(" was left undefined: it comes from ", machine_.origins[m.undefined[static_cast<std::size_t>(at)]])
                             : text(" was never written: its block ", block, " was never visited")));
      }
      Array a;
      a.element = element_of(m.element);
      a.shape = m.shape;
      a.data = m.words;
      if (!m.undefined.empty()) {
        a.defined.resize(m.words.size());
        for (std::size_t i = 0; i < a.defined.size(); i++) a.defined[i] = m.undefined[i] == 0;
      }
      result_.outputs.push_back(std::move(a));
    }
  }

  Options options_;
  Module module_;
  Machine machine_;
  const Node* function_ = nullptr;
  std::map<std::string, const Node*> functions_;
  std::map<std::string, std::shared_ptr<Block>> transforms_;
  std::shared_ptr<Block> body_;
  std::vector<std::int64_t> bounds_, static_bounds_;
  std::vector<bool> parallel_;
  std::vector<std::vector<std::int64_t>> orders_;
  std::size_t used_ = 0;  // operands taken so far
  std::vector<std::shared_ptr<Memory>> prefetch_;
  std::vector<Window> windows_;
  std::vector<std::unique_ptr<Memory>> scratch_;
  std::vector<Allocation> allocations_;
  Result result_;
};

}  // namespace gdn::sim
