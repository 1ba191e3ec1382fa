// Ranks as processes under MPI. The program links MPI itself (find_package(MPI), MPI::MPI_CXX).
#pragma once
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <exception>

#include "gdn/context/communicator.hpp"
#include "gdn/error.hpp"

namespace gdn::context {

class Mpi {
 public:
  explicit Mpi(MPI_Comm comm = MPI_COMM_WORLD) : comm_(comm) {
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    check(MPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm, &size_), "MPI_Comm_size");
  }
  int rank() const { return rank_; }
  int size() const { return size_; }
  void exchange(int to, const void* out, int from, void* in, std::size_t bytes) {
    static constexpr std::size_t most = 1 << 30;  // counts are ints
    const auto *o = static_cast<const std::byte*>(out);
    auto* i = static_cast<std::byte*>(in);
    for (std::size_t at = 0; at < bytes || at == 0; at += most) {
      const int n = static_cast<int>(std::min(most, bytes - at));
      MPI_Status status;
      check(MPI_Sendrecv(to < 0 ? nullptr : o + at, to < 0 ? 0 : n, MPI_BYTE, to < 0 ? MPI_PROC_NULL : to, 0, from < 0 ? nullptr : i + at,
                         from < 0 ? 0 : n, MPI_BYTE, from < 0 ? MPI_PROC_NULL : from, 0, comm_, &status),
            "MPI_Sendrecv");
      int received = 0;
      check(MPI_Get_count(&status, MPI_BYTE, &received), "MPI_Get_count");
      require(from < 0 || received == n, "rank ", rank_, " expects ", n, " bytes from rank ", from, ", which sent ", received);
    }
  }

  // f(communicator) between MPI_Init and MPI_Finalize. A rank that throws says why and ends all ranks of the job.
  template <class F> static int run(int& argc, char**& argv, F f) {
    MPI_Init(&argc, &argv);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    try {
      Mpi c;
      f(c);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
      std::fflush(stderr);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return MPI_Finalize() == MPI_SUCCESS ? 0 : 1;
  }

 private:
  static void check(int code, const char* what) {
    if (code == MPI_SUCCESS) return;
    char message[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, message, &length);
    throw Error(text(what, ": ", std::string(message, static_cast<std::size_t>(length))));
  }
  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
};

}  // namespace gdn::context
