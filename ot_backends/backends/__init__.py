"""One object per framework: host calls, gradients set by hand, and the array namespace."""
