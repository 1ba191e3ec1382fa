// Simulate: the machine that emits a call and runs the emitted program in the simulator, on the arrays of the call.
#pragma once
#include "gdn/emit.hpp"
#include "gdn/sim.hpp"

namespace gdn {

class Simulate {
 public:
  explicit Simulate(mosaic::Schedule schedule = {}, sim::Options options = {}) : schedule_(std::move(schedule)), options_(options) {}
  mosaic::Module module;
  sim::Result result;

  // What is run instead of the emitted program, if set: for tests that change it.
  std::function<std::string(const mosaic::Module&)> text_of;

  template <class Call> void run(const Call& call) {
    Trace traced = Emit::traced(call);
    module = mosaic::lower(std::move(traced.program), schedule_);
    auto named = [&](const std::string& name) -> const AnyView& {
      for (const AnyView& v : traced.views)
        if (v.info.name == name) return v;
      throw Error(text("simulate: no array ", name));
    };
    std::vector<sim::Array> inputs;
    for (const mosaic::Argument& a : module.parameters()) inputs.push_back(gathered(named(a.name), a));
    sim::Options options = options_;
    options.undefined_outputs |= module.limited;
    result = sim::run(text_of ? text_of(module) : module.program(), std::move(inputs), options);
    for (std::size_t i = 0; i < module.outputs.size(); i++) scatter(result.outputs[i], named(module.outputs[i].name));
  }
  template <class F> void check_data(F) const {}
  template <class... Text> void check_kernels(std::int64_t, Text...) const {}
  static void check_turns(const char* call, const std::vector<i32>& turns, int C) { Emit::check_turns(call, turns, C); }

 private:
  static sim::Array gathered(const AnyView& v, const mosaic::Argument& a) {
    sim::Array out;
    out.element = a.element == Element::bf16 ? sim::Element::bf16 : a.element == Element::f32 ? sim::Element::f32 : sim::Element::i32;
    out.shape.assign(a.shape.begin(), a.shape.end());
    std::size_t n = 1;
    for (int d : a.shape) n *= static_cast<std::size_t>(d);
    out.data.resize(n);
    Emit::each_element(v, [&](std::size_t i, std::int64_t at) {
      out.data[i] = a.element == Element::bf16 ? static_cast<const bf16*>(v.data)[at].bits : static_cast<const std::uint32_t*>(v.data)[at];
    });
    return out;
  }
  static void scatter(const sim::Array& x, const AnyView& v) {
    Emit::each_element(v, [&](std::size_t i, std::int64_t at) {
      if (!x.defined.empty() && !x.defined[i]) return;  // never written: the caller's memory stays what it is
      if (v.info.element == Element::bf16) static_cast<bf16*>(v.data)[at].bits = static_cast<std::uint16_t>(x.data[i]);
      else static_cast<std::uint32_t*>(v.data)[at] = x.data[i];
    });
  }

  mosaic::Schedule schedule_;
  sim::Options options_;
};

}  // namespace gdn
