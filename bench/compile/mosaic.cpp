#include <gdn/mosaic.hpp>
