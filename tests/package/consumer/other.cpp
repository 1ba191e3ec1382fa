// A second translation unit with all headers: whatever is not inline fails to link.
#include "../sample.hpp"

Sample other() { return sample(); }
