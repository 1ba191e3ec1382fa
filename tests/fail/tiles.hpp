// What the snippets are made of: tiles of the tracing machine, whose header is the lightest.
#pragma once
#include <gdn/trace/machine.hpp>

using namespace gdn;

template <class R, class C> Tile<Trace, f32, R, C> tile() { return {}; }
