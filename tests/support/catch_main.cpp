// The main function of all test executables, compiled once and without optimisation.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
