// mpirun -np 4 mpi_context: this rank's part over MPI has the bits of the same part over threads.
// mpirun -np 4 mpi_context fails: one rank throws; the job has to end, with its reason.
#include <cstdio>
#include <cstring>

#include "../kernels/context.hpp"
#include "gdn/context/mpi.hpp"

using namespace gdn;
using namespace gdn::test;
using namespace gdn::test::context_parallel;

namespace {

// Of every output, what this rank wrote: the rest of `mine` is zeros.
template <class Row> void compare(context::Mpi& c, const char* name, const Row& row, bool states) {
  Row mine = row;
  run_part(c, Cpu(1), mine, states);
  Outputs whole = on_ranks(c.size(), row, states), part = mine.outputs();
  std::size_t written = 0;
  for (std::size_t i = 0; i < part.size(); i++)
    for (std::size_t k = 0; k < part[i].values.size(); k++) {
      if (part[i].values[k] == 0) continue;
      written++;
      require(same_bits(part[i].values[k], whole[i].values[k]), "rank ", c.rank(), ": ", name, ", element ", k, " of ", part[i].name, " is ",
              part[i].values[k], " over MPI and ", whole[i].values[k], " over threads");
    }
  require(written > static_cast<std::size_t>(B * T * H * V) / static_cast<std::size_t>(c.size()), "rank ", c.rank(), ": ", name, " wrote ", written, " elements");
  std::printf("rank %d of %d: %s, %zu elements equal\n", c.rank(), c.size(), name, written);
}

}  // namespace

int main(int argc, char** argv) {
  const bool fails = argc > 1 && std::strcmp(argv[1], "fails") == 0;
  return context::Mpi::run(argc, argv, [&](context::Mpi& c) {
    require(c.size() > 1, "mpi_context: ", c.size(), " rank; expected several, from mpirun -np 4");
    if (fails && c.rank() == 2) throw Error("this rank gives up");
    for (bool states : {false, true}) {
      compare(c, states ? "core, states" : "core", Sequence(documents), states);
      compare(c, states ? "layer, states" : "layer", LayerSequence(documents), states);
    }
  });
}
