// The state of an execution, and regions made ready to run.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "api.hpp"
#include "copies.hpp"
#include "memory.hpp"
#include "parse.hpp"
#include "value.hpp"

namespace gdn::sim {

class Machine;
using Execute = std::function<void(Machine&)>;

struct Step {
  const Node* node = nullptr;
  Execute execute;
  std::vector<int> last_uses;  // values that die here
};

// A region, ready to run. `results` are the operands of its terminator.
struct Block {
  std::vector<int> arguments;
  std::vector<Step> steps;
  std::vector<int> results, result_last_uses;
};

// The state of an execution: the values by number, and what errors have to tell.
class Machine {
 public:
  Machine(const std::vector<std::string>& names, const Options& options)
      : values(names.size()), copies(options.copy_order), carry_undefined(options.carry_undefined), names_(names) {}

  std::vector<Value> values;
  std::vector<std::string> origins{""};  // names of memories, by the mark of their undefined elements
  std::vector<std::int64_t> grid_step, bounds;
  std::string during;  // "" in the body, else the transform being evaluated
  long ops = 0;
  Copies copies;
  std::vector<std::unique_ptr<Memory>> scoped;  // allocations of the regions that run
  int regions = 0;                              // how many do
  const bool carry_undefined;

  Value& operator[](int i) { return values[static_cast<std::size_t>(i)]; }
  const std::string& name(int i) const { return names_[static_cast<std::size_t>(i)]; }

  // Leaves the results in place; `finish` drops what dies with the block.
  void run(const Block& b) {
    for (const auto& step : b.steps) {
      node_ = step.node;
      ops++;
      copies.pass_time();
      step.execute(*this);
      for (int v : step.last_uses) (*this)[v] = Value{};
    }
  }
  void finish(const Block& b) {
    for (int v : b.result_last_uses) (*this)[v] = Value{};
  }

  // After a region of an op, what fails is the op again.
  void back_at(const Node& n) { node_ = &n; }

  // The op being run, where and when.
  std::string now() const { return text(node_->where(), ", ", when()); }
  std::string when() const {
    return text(during, during.empty() ? "" : ", ", bounds.empty() ? "without a grid" : "grid step " + tuple_text(grid_step));
  }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    fail_with({Part(parts)...});
  }
  template <class... Parts>
  void check(bool condition, const Parts&... parts) const {
    if (!condition) fail(parts...);
  }

  [[noreturn, gnu::noinline, gnu::cold]] void fail_with(std::initializer_list<Part> parts) const {
    throw Error(text(now(), ": ", joined(parts)));
  }

  // The mark for undefined elements of a memory called so.
  Origin origin(const std::string& name) {
    if (origins.size() == 255) origins.push_back("another buffer");
    else if (origins.size() < 255) origins.push_back(name);
    return static_cast<Origin>(origins.size() - 1);
  }

  // A read or write of elements: they must be there, and must not meet a copy that is in flight.
  void use(const Ref& r, bool write) const {
    if (!r.outside.empty()) fail(r.outside);
    if (r.memory->traffic.copies == 0) return;
    const auto race = copies.conflict(r, write);
    if (!race.empty()) fail(race);
  }

  // The marks of an operand of arithmetic, which refuses undefined elements unless told to carry them.
  const Origin* marks_in_arithmetic(int i, const Shape& shape) {
    if (!carry_undefined) need_defined(i, shape);
    return (*this)[i].undefined();
  }

  // Anything but a move refuses undefined elements.
  void need_defined(int i, const Shape& shape) {
    const auto* marks = (*this)[i].undefined();
    if (!marks) return;
    const auto n = volume(shape);
    const auto at = std::find_if(marks, marks + n, [](Origin o) { return o != 0; }) - marks;
    fail("operand ", name(i), shape.empty() ? std::string() : ", index " + index_text(at, shape) + ",", " is undefined: it comes from ",
         origins[marks[at]]);
  }

  // A scalar operand that is an index, a bound or an amount.
  std::int64_t number(int i) {
    need_defined(i, {});
    return static_cast<std::int32_t>((*this)[i].scalar);
  }

 private:
  const std::vector<std::string>& names_;
  const Node* node_ = nullptr;
};

std::shared_ptr<Block> load_block(const Region& r);
std::shared_ptr<Block> load_block(const Region& r);

}  // namespace gdn::sim
