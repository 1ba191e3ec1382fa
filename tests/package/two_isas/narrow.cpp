#include "../sample.hpp"

Sample narrow() { return sample(); }
