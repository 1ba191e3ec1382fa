// The front door: every kernel call, and the CPU machine that runs it. Emit and Simulate are in emit.hpp and simulate.hpp.
#pragma once
#include "gdn/calls/forward.hpp"
#include "gdn/cpu/machine.hpp"
