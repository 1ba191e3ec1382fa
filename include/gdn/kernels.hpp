// The front door: every kernel call, and the CPU machine that runs it. Emit and Simulate are in emit.hpp and simulate.hpp.
#pragma once
#include "gdn/calls/backward.hpp"
#include "gdn/calls/documents_apart.hpp"
#include "gdn/calls/experts.hpp"
#include "gdn/calls/forward.hpp"
#include "gdn/calls/gated_norm.hpp"
#include "gdn/calls/inverse.hpp"
#include "gdn/calls/parts.hpp"
#include "gdn/calls/recurrent.hpp"
#include "gdn/calls/rows.hpp"
#include "gdn/calls/scans.hpp"
#include "gdn/calls/sequences.hpp"
#include "gdn/cpu/machine.hpp"
