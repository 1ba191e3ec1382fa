#include "../sample.hpp"

Sample wide() { return sample(); }
