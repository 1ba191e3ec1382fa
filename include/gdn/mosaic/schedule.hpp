// A schedule: where heads lie on the TPU, and in which order a step's work is written down. It changes no bit of a result.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace gdn::mosaic {

enum class Target { tpu7x, v6e, v5e };
inline constexpr Target targets[] = {Target::tpu7x, Target::v6e, Target::v5e};
inline const char* name_of(Target t) { return t == Target::tpu7x ? "tpu7x" : t == Target::v6e ? "v6e" : "v5e"; }

struct Schedule {
  enum class Heads {
    lifted,  // heads are a leading axis of every tile: the readable second opinion
    paired,  // two value heads of a key head side by side in 128 lanes
  };
  Heads heads = Heads::lifted;
  int heads_per_step = 0;  // value heads of one grid step; 0: all

  // The rest is for paired heads.
  int group = 2;                    // pairs that move through the stages together
  std::vector<int> delay{0, 0, 0};  // chunks by which each stage of the kernel lags; {0, 1, 2}: skewed
  std::vector<int> order{0, 1, 2};  // of the stages within one tick
  std::vector<int> start{};         // ticks by which the first group of each stage waits; none: 0
  bool vectors_ahead = false;       // per-head vectors are made one chunk before the first stage needs them, at this tick:
  int vectors_tick = 8;
  bool join_narrow_dots = true;     // 128-lane dots of two pairs as one of 256: for 256x256 matrix units
  bool stack_dots = false;          // dots of a pair that share their right operand are one
  bool turn_narrow = false;         // tiles whose values bf16 holds, or which are rounded next, are transposed in bf16
  int push_transposed_from = 1 << 20;  // the matrix unit transposes right operands of that many columns and more
  std::int64_t vmem_limit_bytes = 60ll << 20;
  // States that move from slot to slot have one buffer instead of two: less VMEM, and steps that wait for them.
  bool single_buffered_states = false;
  // Functions such as exp2 as the TPU's own operations (native), or spelled out in operations whose rounding is known (exact).
  bool exact_functions = false;

  static Schedule lifted(int heads_per_step = 0) { return {.heads_per_step = heads_per_step}; }
  static Schedule paired(int heads_per_step = 0) { return {.heads = Heads::paired, .heads_per_step = heads_per_step}; }
  // Stage k works on chunk t - k of step t: no dot waits for the one before it.
  static Schedule skewed(int heads_per_step = 0) {
    Schedule s = paired(heads_per_step);
    s.delay = {0, 1, 2};
    s.order = {1, 0, 2};
    s.vectors_ahead = true;
    s.vectors_tick = 18;
    return s;
  }
  // The fastest found for a kernel, by its name, at 64 value heads of 128 channels. Neighbours differ by some percent without a
  // visible reason, so these are found by trying (cmake/tune.sh), not derived.
  static Schedule fastest(const std::string& kernel, Target target) {
    Schedule s = kernel == "layer_backward" ? lifted() : skewed();
    if (kernel == "layer_forward") s.vectors_tick = 6;
    if (kernel.ends_with("_states")) s.vectors_tick = 4;
    if (kernel.ends_with("_states") || kernel == "transition" || kernel == "state_gradient") s.group = 4;
    if (kernel == "transition") s.delay = {0, 0, 1};
    if (kernel == "state_gradient") s.order = {2, 1, 0};
    if (kernel == "backward") {
      s.group = 4;
      s.delay = {0, 1, 1};
      s.vectors_tick = 4;
      s.stack_dots = s.turn_narrow = true;
      s.push_transposed_from = 64;
    }
    if (target == Target::v5e) s.join_narrow_dots = false;  // its matrix units are 128 wide
    if (target != Target::tpu7x) s.vmem_limit_bytes = 100ll << 20;
    return s;
  }
  std::string name() const {
    std::string s = heads == Heads::lifted ? "lifted" : delay.back() ? "skewed" : "paired";
    return heads_per_step ? s + "_" + std::to_string(heads_per_step) : s;
  }
};

}  // namespace gdn::mosaic
